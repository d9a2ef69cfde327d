//! Numbers that look random and follow from a seed.

/// A number that nobody can guess, never 0. A hasher with random keys is the standard library's source of random numbers.
#[cfg(feature = "runtime")]
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish().max(1)
}

/// The next number (SplitMix64): one addition and a few shifts. `state` begins as the seed.
pub(crate) const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
