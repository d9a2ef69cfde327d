//! Maps by what operations are about.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::subject::Key;

/// A map by [`Key`]. Keys have a hash already, and each operation is looked up many times: here it is only stirred, by numbers that
/// nobody can know who chooses the names of volumes.
pub(super) type ByKey<V> = HashMap<Key, V, Stirred>;

/// What the hashes of one map are stirred by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stirred {
    before: u64,
    factor: u64,
}

impl Default for Stirred {
    fn default() -> Self {
        let random = RandomState::new();
        Self { before: random.hash_one(0), factor: random.hash_one(1) | 1 }
    }
}

impl BuildHasher for Stirred {
    type Hasher = Stir;

    fn build_hasher(&self) -> Stir {
        Stir { by: *self, number: 0 }
    }
}

/// The hasher of [`Stirred`].
#[derive(Debug)]
pub(super) struct Stir {
    by: Stirred,
    number: u64,
}

impl Hasher for Stir {
    fn finish(&self) -> u64 {
        self.number
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the halves are meant")]
    fn write_u64(&mut self, number: u64) {
        // Both halves of the product: each bit of it depends on bits of the number that the other half does not show.
        let product = u128::from(self.number ^ number ^ self.by.before) * u128::from(self.by.factor);
        self.number = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn hash(by: Stirred, number: u64) -> u64 {
        let mut stir = by.build_hasher();
        stir.write_u64(number);
        stir.finish()
    }

    #[test]
    fn maps_stir_differently() {
        assert_ne!(hash(Stirred::default(), 7), hash(Stirred::default(), 7));
    }

    /// With fixed numbers: of those that are drawn, one factor in some thousands puts numbers that differ in the highest bits alone
    /// closer together. Keys have a hash already, and differ in all.
    #[test]
    fn near_numbers_lie_far_apart() {
        for (before, factor) in [
            (0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345),
            (0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89),
            (0x4528_21e6_38d0_1377, 0xbe54_66cf_34e9_0c6d),
        ] {
            let by = Stirred { before, factor };
            // Buckets are taken from the low bits and tags from the high ones.
            let low: BTreeSet<u64> = (0..4096).map(|number| hash(by, number << 52) & 0xfff).collect();
            let high: BTreeSet<u64> = (0..4096).map(|number| hash(by, number) >> 57).collect();
            assert!(low.len() > 1024 && high.len() == 128, "{factor:x}: {} {}", low.len(), high.len());
        }
    }
}
