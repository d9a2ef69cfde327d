//! The names of sessions inside the hub.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A peer's session at this hub. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

impl SessionKey {
    /// The session that is admitted after `admitted` others.
    pub(super) const fn after(admitted: u64) -> Self {
        Self(admitted)
    }
}

/// A map by session. Every frame looks up several; since the hub itself counts the keys, no peer can choose ones that collide,
/// and the hash may be cheap.
pub(in crate::hub) type BySession<V> = HashMap<SessionKey, V, BuildHasherDefault<Spread>>;

/// Spreads consecutive numbers over all bits: the map takes its buckets from the low ones and its tags from the high ones.
#[derive(Debug, Default)]
pub(in crate::hub) struct Spread(u64);

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
