//! How old the facts are, and when they are due to be written. Wall time is an argument; nothing but an age is made of it.

use std::time::{Duration, SystemTime};

/// After this time the record on disk is written again, though only its time has changed.
const RENEWAL: Duration = Duration::from_secs(3600);

/// Since when the facts were not confirmed, in memory and on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Age {
    as_of: Option<SystemTime>,
    on_disk: Option<SystemTime>,
    failing: bool,
}

impl Age {
    /// Facts that were read from the disk.
    pub(super) fn of_kept(as_of: SystemTime) -> Self {
        Self { as_of: Some(as_of), on_disk: Some(as_of), failing: false }
    }

    /// The driver has just said so.
    pub(super) fn confirm(&mut self, now: SystemTime) {
        self.as_of = Some(now);
    }

    /// When the driver last said so.
    pub(super) fn as_of(&self) -> Option<SystemTime> {
        self.as_of
    }

    /// How long the driver has not said so; nothing if the clock was put back meanwhile.
    pub(super) fn since(&self, now: SystemTime) -> Option<Duration> {
        self.as_of.map(|as_of| now.duration_since(as_of).unwrap_or_default())
    }

    /// Whether the disk holds another time.
    pub(super) fn is_newer_than_disk(&self) -> bool {
        self.as_of != self.on_disk
    }

    /// Whether to write now what has not changed: after a failure, and so seldom otherwise that a disk is not worn.
    pub(super) fn is_due(&self) -> bool {
        let (Some(as_of), Some(on_disk)) = (self.as_of, self.on_disk) else { return self.as_of.is_some() };
        // A clock that was put back makes a record that is too young: write the right time.
        self.failing || as_of.duration_since(on_disk).map_or(true, |since| since >= RENEWAL)
    }

    /// A record of that time was written, or could not be. Whether the failure is the first one in a row.
    pub(super) fn written(&mut self, as_of: SystemTime, done: bool) -> bool {
        if done {
            self.on_disk = Some(as_of);
        }
        let was_failing = std::mem::replace(&mut self.failing, !done);
        !done && !was_failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_age_counts_from_the_last_time_the_driver_said_so_and_is_never_below_nothing() {
        let mut age = Age::default();
        assert_eq!((age.since(at(9)), age.is_due(), age.is_newer_than_disk()), (None, false, false));
        age.confirm(at(100));
        assert_eq!(age.since(at(160)), Some(Duration::from_secs(60)));
        assert_eq!(age.since(at(40)), Some(Duration::ZERO));
        assert_eq!(Age::of_kept(at(5)).since(at(7)), Some(Duration::from_secs(2)));
    }

    #[test]
    fn an_unchanged_record_is_written_hourly_and_after_a_failure_at_once() {
        let mut age = Age::of_kept(at(10_000));
        for (now, due) in [(10_010, false), (13_599, false), (13_600, true), (9_000, true)] {
            age.confirm(at(now));
            assert_eq!(age.is_due(), due, "{now}");
        }
        assert!(age.is_newer_than_disk());
        assert!(age.written(at(9_000), false), "the first failure is told");
        age.confirm(at(10_001));
        assert!(age.is_due());
        assert!(!age.written(at(10_001), false), "and no other");
        assert!(!age.written(at(10_001), true));
        assert!(!age.is_due() && !age.is_newer_than_disk());
        assert!(age.written(at(10_002), false));
    }
}
