//! How long to wait before something is tried again.

use std::time::Duration;

use fastrand::Rng;

/// The wait after so many failures in a row: `first` after one, then twice as long each time, up to `longest`.
pub(crate) fn doubled(first: Duration, longest: Duration, failures: u32) -> Duration {
    let factor = 2u32.checked_pow(failures.saturating_sub(1));
    factor.and_then(|factor| first.checked_mul(factor)).map_or(longest, |wait| wait.min(longest))
}

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
        let half = doubled(self.first, self.longest, u32::from(attempt)) / 2;
        let mut chance = Rng::with_seed(seed ^ u64::from(attempt).rotate_left(32));
        let spread = half.mul_f64(chance.f64());
        half.saturating_add(spread).clamp(Self::SHORTEST, self.longest)
    }
}
