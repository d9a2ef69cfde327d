//! Exponential backoff between connection attempts.

use std::time::Duration;

use fastrand::Rng;

/// Exponential backoff with jitter. The same seed gives the same delays.
///
/// The n-th delay is between half of `first * 2^n` and `first * 2^n`, and never above the cap, so that many peers that lost the
/// same hub do not reconnect at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    attempt: u32,
    jitter: Rng,
}

impl Backoff {
    /// Creates a backoff whose first delay is at most `first` and whose longest is at most `cap`.
    #[must_use]
    pub const fn new(first: Duration, cap: Duration, seed: u64) -> Self {
        Self { first, cap, attempt: 0, jitter: Rng::with_seed(seed) }
    }

    /// Returns the next delay.
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
    fn doubles_up_to_the_cap_and_resets_after_success() {
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
    fn never_overflows() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3), 1);
        assert!((0..10_000).all(|_| backoff.next_wait() <= Duration::from_secs(3)));
    }

    #[test]
    fn seeds_give_different_delays() {
        let wait = |seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(10), seed).next_wait();
        assert_ne!(wait(1), wait(2));
        assert_eq!(wait(1), wait(1));
    }
}
