//! The clocks of the parts: none agrees with another.

use std::time::{Duration, Instant, SystemTime};

/// What one process takes for the time. It is ahead of the run's own time, and goes a little too fast or too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Instant,
    ahead: Duration,
    /// Parts in a million by which it is too fast.
    drift: i64,
}

/// From 1970 to some day.
const YEARS: Duration = Duration::from_secs(1_800_000_000);
const MILLION: i128 = 1_000_000;

impl Clock {
    pub(crate) const fn new(base: Instant, ahead: Duration, drift: i64) -> Self {
        Self { base, ahead, drift }
    }

    /// What the clock shows at a moment of the run.
    pub(crate) fn show(&self, at: Duration) -> Instant {
        let nanos = at.as_nanos() as i128;
        let shown = nanos + nanos * i128::from(self.drift) / MILLION;
        self.base + self.ahead + Duration::from_nanos(shown as u64)
    }

    /// The wall clock of the same machine.
    pub(crate) fn wall(&self, at: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + YEARS + self.ahead + at
    }

    /// The first moment of the run at which the clock shows so much.
    pub(crate) fn when(&self, shown: Instant) -> Duration {
        let nanos = shown.saturating_duration_since(self.base + self.ahead).as_nanos() as i128;
        let mut at = Duration::from_nanos((nanos * MILLION / (MILLION + i128::from(self.drift))) as u64);
        while self.show(at) < shown {
            at += Duration::from_nanos(1);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_found_again_whatever_the_clock_does_to_it() {
        for drift in [-300, 0, 300] {
            let clock = Clock::new(Instant::now(), Duration::from_secs(3600), drift);
            for millis in [0, 1, 17, 60_000, 3_600_001] {
                let at = Duration::from_millis(millis);
                let found = clock.when(clock.show(at));
                assert!(clock.show(found) >= clock.show(at));
                assert!(found.abs_diff(at) <= Duration::from_nanos(2), "{found:?} for {at:?}");
            }
        }
    }
}
