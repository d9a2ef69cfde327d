//! How long to wait before the next attempt.

use std::time::Duration;

use fastrand::Rng;

/// Exponential waits with jitter. The same seed gives the same waits.
///
/// The n-th wait lies between half of `first * 2^n` and all of it, and never above the cap, so that many peers which lost
/// the same hub do not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    attempt: u32,
    jitter: Rng,
}

impl Backoff {
    /// Waits of at most `first` for the first time and at most `cap` ever.
    #[must_use]
    pub const fn new(first: Duration, cap: Duration, seed: u64) -> Self {
        Self { first, cap, attempt: 0, jitter: Rng::with_seed(seed) }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let full =
            self.first.saturating_mul(1_u32.checked_shl(self.attempt).unwrap_or(u32::MAX)).min(self.cap);
        self.attempt = (self.attempt + 1).min(31);
        full.mul_f64(0.5 + 0.5 * self.jitter.f64())
    }

    /// Starts over after a success.
    pub const fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10), 7);
        for round in 0..2 {
            for full in [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000] {
                let wait = backoff.next_wait();
                let full = Duration::from_millis(full);
                assert!(wait >= full / 2 && wait <= full, "round {round}: {wait:?} for {full:?}");
            }
            backoff.reset();
        }
    }

    #[test]
    fn it_never_overflows_however_often_it_is_asked() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3), 1);
        assert!((0..10_000).all(|_| backoff.next_wait() <= Duration::from_secs(3)));
    }

    #[test]
    fn two_seeds_spread() {
        let wait = |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(10), seed).next_wait();
        assert_ne!(wait(1), wait(2));
        assert_eq!(wait(1), wait(1));
    }
}
