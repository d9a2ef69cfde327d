//! What every journal promises, as a suite that any implementation can run.
//!
//! ```
//! use csi_proxy::operation::journal::conformance::{self, Medium};
//! use csi_proxy::operation::journal::memory::MemoryDisk;
//! use csi_proxy::operation::journal::Journal;
//!
//! struct Memory(MemoryDisk);
//!
//! impl Medium for Memory {
//!     fn open(&mut self) -> Result<Box<dyn Journal>, String> {
//!         Ok(Box::new(self.0.open()))
//!     }
//! }
//!
//! conformance::run(|| Ok(Memory(MemoryDisk::default()))).unwrap();
//! ```

use std::collections::BTreeMap;

use super::{Change, Journal, MAX_ASIDE};

/// What a journal is kept on, and what outlives it.
pub trait Medium {
    /// Opens the journal that is there. The one before was dropped.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&mut self) -> Result<Box<dyn Journal>, String>;
}

/// A promise that the journal does not keep.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {what}")]
#[non_exhaustive]
pub struct Violation {
    /// The promise.
    pub case: &'static str,
    /// What was seen instead.
    pub what: String,
}

type Case = fn(&mut dyn Medium) -> Result<(), String>;

const CASES: [(&str, Case); 6] = [
    ("what is committed is there after a restart, in the order of its numbers", commits_last),
    ("the changes of a commit are made in their order", changes_keep_order),
    ("rows of every size and of any bytes come back", every_size_comes_back),
    ("a row that is set aside is in quarantine and nowhere else", set_aside),
    ("quarantine is bounded, and the oldest goes first", quarantine_is_bounded),
    ("any sequence of commits, reopenings and restarts ends as in a map", as_a_map),
];

/// Runs every case, each on an empty medium of its own.
///
/// # Errors
/// The first [`Violation`].
pub fn run<M: Medium>(mut make: impl FnMut() -> Result<M, String>) -> Result<(), Violation> {
    for (case, check) in CASES {
        make().and_then(|mut medium| check(&mut medium)).map_err(|what| Violation { case, what })?;
    }
    Ok(())
}

type Rows = Vec<(u64, Vec<u8>)>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn rows(journal: &mut dyn Journal) -> Result<Rows, String> {
    let mut rows = Vec::new();
    journal.load(&mut |row, bytes| rows.push((row, bytes.to_vec()))).map_err(text)?;
    Ok(rows)
}

fn expect<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("found {found:?}, expected {expected:?}")) }
}

fn commits_last(medium: &mut dyn Medium) -> Result<(), String> {
    let mut journal = medium.open()?;
    expect(&rows(&mut *journal)?, &Vec::new())?;
    let put = |row: u64| Change::Put(row, vec![u8::try_from(row % 251).unwrap_or_default(); 3]);
    journal.commit(&[put(u64::MAX), put(7)]).map_err(text)?;
    journal.commit(&[put(0), put(300)]).map_err(text)?;
    drop(journal);
    let found: Vec<_> = rows(&mut *medium.open()?)?.into_iter().map(|(row, _)| row).collect();
    expect(&found, &vec![0, 7, 300, u64::MAX])
}

fn changes_keep_order(medium: &mut dyn Medium) -> Result<(), String> {
    let mut journal = medium.open()?;
    let put = |row, byte| Change::Put(row, vec![byte]);
    let changes =
        [put(1, 1), Change::Remove(1), put(2, 1), put(2, 2), Change::Remove(9), Change::SetAside(9)];
    journal.commit(&changes).map_err(text)?;
    journal.commit(&[]).map_err(text)?;
    expect(&rows(&mut *journal)?, &vec![(2, vec![2])])
}

fn every_size_comes_back(medium: &mut dyn Medium) -> Result<(), String> {
    let sizes = [0, 1, 2, 4095, 4096, 65_537, 1 << 20];
    let bytes =
        |size: usize| (0..size).map(|at| u8::try_from(at % 256).unwrap_or_default()).collect::<Vec<u8>>();
    let changes: Vec<_> = (0..).zip(sizes).map(|(row, size)| Change::Put(row, bytes(size))).collect();
    medium.open()?.commit(&changes).map_err(text)?;
    let expected: Rows = (0..).zip(sizes).map(|(row, size)| (row, bytes(size))).collect();
    if rows(&mut *medium.open()?)? == expected { Ok(()) } else { Err("other bytes came back".to_owned()) }
}

fn set_aside(medium: &mut dyn Medium) -> Result<(), String> {
    let mut journal = medium.open()?;
    journal.commit(&[Change::Put(1, vec![1]), Change::Put(2, vec![2])]).map_err(text)?;
    journal.commit(&[Change::SetAside(1), Change::Put(1, vec![3])]).map_err(text)?;
    drop(journal);
    let mut journal = medium.open()?;
    expect(&rows(&mut *journal)?, &vec![(1, vec![3]), (2, vec![2])])?;
    expect(&journal.aside().map_err(text)?, &vec![(1, vec![1])])
}

fn quarantine_is_bounded(medium: &mut dyn Medium) -> Result<(), String> {
    let mut journal = medium.open()?;
    let last = MAX_ASIDE as u64 + 2;
    for row in 0..last {
        journal.commit(&[Change::Put(row, vec![0]), Change::SetAside(row)]).map_err(text)?;
    }
    let aside: Vec<_> = journal.aside().map_err(text)?.into_iter().map(|(row, _)| row).collect();
    expect(&aside, &(2..last).collect())
}

fn as_a_map(medium: &mut dyn Medium) -> Result<(), String> {
    let mut expected = BTreeMap::new();
    let mut chance = 7_u64;
    let mut draw = |below: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % below
    };
    let mut journal = medium.open()?;
    for _ in 0..60 {
        let changes: Vec<_> = (0..draw(5))
            .map(|_| match (draw(12), draw(3)) {
                (row, 0) => Change::Remove(row),
                (row, _) => Change::Put(row, vec![u8::try_from(draw(256)).unwrap_or_default(); 20]),
            })
            .collect();
        for change in &changes {
            match change {
                Change::Put(row, bytes) => drop(expected.insert(*row, bytes.clone())),
                Change::Remove(row) | Change::SetAside(row) => drop(expected.remove(row)),
            }
        }
        journal.commit(&changes).map_err(text)?;
        match draw(6) {
            0 => {
                drop(journal);
                journal = medium.open()?;
            }
            1 => journal.reopen().map_err(text)?,
            _ => {}
        }
        expect(&rows(&mut *journal)?, &expected.clone().into_iter().collect())?;
    }
    Ok(())
}
