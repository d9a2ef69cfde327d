//! How long to wait before a call is tried again.

use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);

/// The longest wait. A registrar that comes right again is noticed within it.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits that double with each failure, up to a longest one. No jitter: there is one caller, and its peers are local.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Notes a failure and answers how long to wait.
    pub(super) fn failed(&mut self) -> Duration {
        let wait = 2u32.checked_pow(self.failures).and_then(|factor| FIRST.checked_mul(factor));
        self.failures = self.failures.saturating_add(1);
        wait.map_or(LONGEST, |wait| wait.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Duration, FIRST, LONGEST};

    #[test]
    fn waits_double_to_the_longest_and_never_shrink_or_overflow() {
        let mut backoff = Backoff::default();
        let mut last = Duration::ZERO;
        for failure in 0..200 {
            let wait = backoff.failed();
            assert!(wait >= last && wait >= FIRST && wait <= LONGEST, "failure {failure}: {wait:?}");
            last = wait;
        }
        let mut again = Backoff { failures: u32::MAX };
        assert_eq!((last, again.failed(), again.failed()), (LONGEST, LONGEST, LONGEST));
        assert_eq!(Backoff { failures: 3 }.failed(), Duration::from_secs(4));
    }
}
