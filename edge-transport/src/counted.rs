//! Maps by numbers that this process counts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys hash as one number each. Every frame looks up several; since the keys are counted here, no peer can choose ones
/// that collide, and the hash may be cheap.
pub(crate) type ByCount<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads consecutive numbers over all bits: the map takes its buckets from the low ones and its tags from the high ones.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((self.0 << 8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}
