//! The back-off between retries.

use std::time::Duration;

use fastrand::Rng;

/// Returns the delay after consecutive failures: `first` after one, then doubled each time, up to `longest`.
pub(crate) fn doubled(first: Duration, longest: Duration, failures: u32) -> Duration {
    let factor = 2u32.checked_pow(failures.saturating_sub(1));
    factor.and_then(|factor| first.checked_mul(factor)).map_or(longest, |wait| wait.min(longest))
}

/// An exponential back-off with a maximum and seeded jitter.
///
/// Every delay is at least half of the delay without jitter, at least 1 ms and at most the maximum, for any attempt. It
/// never overflows and never becomes a hot loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
}

impl Default for BackOff {
    /// Returns a back-off from 0.5 s to 2 min.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(120))
    }
}

impl BackOff {
    /// The shortest delay.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// Creates a back-off from `first` to `longest`. `first` is raised to [`Self::SHORTEST`], and `longest` to `first`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        let first = first.max(Self::SHORTEST);
        Self { first, longest: longest.max(first) }
    }

    /// Returns the longest delay.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.longest
    }

    /// Returns the delay after `attempt` consecutive failures. Equal seeds and attempts give equal delays, so the seed
    /// should differ between volumes and between processes.
    #[must_use]
    pub fn wait(self, attempt: u8, seed: u64) -> Duration {
        let half = doubled(self.first, self.longest, u32::from(attempt)) / 2;
        let mut rng = Rng::with_seed(seed ^ u64::from(attempt).rotate_left(32));
        let spread = half.mul_f64(rng.f64());
        half.saturating_add(spread).clamp(Self::SHORTEST, self.longest)
    }
}
