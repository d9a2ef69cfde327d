//! How long to wait before a call is repeated.

use std::time::Duration;

/// Waits that double with each failure up to a longest one, spread by a seed.
///
/// Every wait is at least half of the unspread one, at least 1 ms and at most the longest, for any attempt: nothing
/// overflows, and nothing becomes a hot loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
}

impl Default for BackOff {
    /// From 0.5 s to 2 min.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(120))
    }
}

impl BackOff {
    /// The shortest wait that there is.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// Waits from `first` to `longest`; below [`Self::SHORTEST`] is raised to it, and `longest` to `first`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        let first = first.max(Self::SHORTEST);
        Self { first, longest: longest.max(first) }
    }

    /// The longest wait.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.longest
    }

    /// The wait after this many failures in a row, from 1. Equal seeds and attempts give equal waits, so a seed should
    /// differ from volume to volume, and from process to process.
    #[must_use]
    pub fn wait(self, attempt: u8, seed: u64) -> Duration {
        let doublings = u32::from(attempt.saturating_sub(1));
        let factor = 2u32.checked_pow(doublings);
        let wait = factor.and_then(|factor| self.first.checked_mul(factor)).unwrap_or(self.longest);
        let half = wait.min(self.longest) / 2;
        let spread = half.mul_f64(fraction(seed ^ u64::from(attempt).rotate_left(32)));
        half.saturating_add(spread).clamp(Self::SHORTEST, self.longest)
    }
}

/// A number in 0..=1 that looks random: the finalizer of SplitMix64.
fn fraction(seed: u64) -> f64 {
    let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let bits = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(bits) / f64::from(u32::MAX)
}
