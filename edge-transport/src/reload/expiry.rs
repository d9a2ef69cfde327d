//! When to say that a certificate ends.

use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// So long before its end a certificate is warned of.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// How a certificate stands at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Good,
    /// It ends within [`SOON`].
    Ending {
        left: Duration,
    },
    Over {
        ago: Duration,
    },
}

impl Standing {
    pub(super) fn at(now: SystemTime, end: SystemTime) -> Self {
        match end.duration_since(now) {
            Ok(left) if left.is_zero() => Self::Over { ago: left },
            Ok(left) if left <= SOON => Self::Ending { left },
            Ok(_) => Self::Good,
            Err(past) => Self::Over { ago: past.duration() },
        }
    }
}

/// What was told of one certificate.
#[derive(Debug, Default)]
pub(super) struct Told {
    over: bool,
    at: Option<SystemTime>,
}

impl Told {
    /// Whether it is to be told now: at first, each day, and when the end has come. A clock that was set back tells again.
    pub(super) fn due(&mut self, standing: Standing, now: SystemTime) -> bool {
        let over = match standing {
            Standing::Good => {
                *self = Self::default();
                return false;
            }
            Standing::Ending { .. } => false,
            Standing::Over { .. } => true,
        };
        let recently = self.at.is_some_and(|at| now.duration_since(at).is_ok_and(|passed| passed < DAY))
            && over == self.over;
        if !recently {
            *self = Self { over, at: Some(now) };
        }
        !recently
    }
}

#[cfg(any(feature = "metrics", test))]
/// Seconds until the end, negative after it.
pub(super) fn seconds_left(now: SystemTime, end: SystemTime) -> f64 {
    match end.duration_since(now) {
        Ok(left) => left.as_secs_f64(),
        Err(past) => -past.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_from_thirty_days_before_once_a_day_and_when_it_has_come() {
        let start = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let end = start + 60 * DAY;
        let mut told = Told::default();
        let mut told_on = Vec::new();
        for hour in 0..63 * 24 {
            let now = start + Duration::from_secs(3600) * hour;
            let standing = Standing::at(now, end);
            if told.due(standing, now) {
                told_on.push((hour, matches!(standing, Standing::Over { .. })));
            }
        }
        let expected: Vec<_> = (30..63).map(|day| (day * 24, day >= 60)).collect();
        assert_eq!(told_on, expected);
    }

    #[test]
    fn the_end_is_told_at_once_and_a_renewal_starts_over() {
        let now = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let hour = Duration::from_secs(3600);
        let mut told = Told::default();
        assert!(told.due(Standing::at(now, now + hour), now));
        assert!(!told.due(Standing::at(now, now + hour), now));
        assert!(told.due(Standing::at(now + hour, now + hour), now + hour), "the end itself is told at once");
        assert!(!told.due(Standing::at(now, now + 90 * DAY), now));
        assert!(told.due(Standing::at(now, now + DAY), now));
        assert!(told.due(Standing::at(now - hour, now + DAY), now - hour), "the clock went back");
        assert_eq!(seconds_left(now, now - hour), -3600.0);
        assert_eq!(seconds_left(now, now + hour), 3600.0);
    }
}
