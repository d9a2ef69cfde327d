//! Runs each target over its corpus, and over mutations of the corpus that a seed determines.

use std::path::Path;

mod examples;

/// The number of mutations of each file.
const MUTATIONS: u64 = 300;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn mutated(bytes: &[u8], seed: u64) -> Vec<u8> {
    let (mut bytes, mut random) = (bytes.to_vec(), Random(seed));
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.below(256) as u8),
            2 => bytes.extend_from_within(at..),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    bytes
}

fn over_the_corpus(target: &str, run: fn(&[u8])) {
    let corpus = corpus(target);
    assert!(corpus.len() >= 3, "the corpus of {target} has {} files", corpus.len());
    for bytes in corpus {
        run(&bytes);
        for seed in 0..MUTATIONS {
            let bytes = mutated(&bytes, seed);
            let caught = std::panic::catch_unwind(|| run(&bytes));
            assert!(caught.is_ok(), "{target} breaks with {}", bytes.escape_ascii());
        }
    }
}

macro_rules! targets {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            over_the_corpus(stringify!($target), crate::$target::run);
        })*
    };
}

targets!(envelope frame hub mount_table operation record registration session);
