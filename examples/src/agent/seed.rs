//! A number from a name, which spreads the waits of this node apart from those of others.

use std::hash::{DefaultHasher, Hasher};

pub(super) fn seed_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}
