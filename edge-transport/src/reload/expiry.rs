//! When to warn about expiring certificates.

use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Time before the expiry from which warnings are logged.
const WARNING_PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The validity of a certificate at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    Valid,
    /// The certificate expires within [`WARNING_PERIOD`].
    Expiring {
        left: Duration,
    },
    Expired {
        ago: Duration,
    },
}

impl Validity {
    pub(super) fn at(now: SystemTime, end: SystemTime) -> Self {
        match end.duration_since(now) {
            Ok(left) if left.is_zero() => Self::Expired { ago: left },
            Ok(left) if left <= WARNING_PERIOD => Self::Expiring { left },
            Ok(_) => Self::Valid,
            Err(past) => Self::Expired { ago: past.duration() },
        }
    }
}

/// Limits the warnings about one certificate.
#[derive(Debug, Default)]
pub(super) struct WarnThrottle {
    /// Whether the last warning was about an expired certificate.
    expired: bool,
    warned_at: Option<SystemTime>,
}

impl WarnThrottle {
    /// Whether to warn now: at first, each day, and at the expiry. A warning is also due after the clock was set back.
    pub(super) fn due(&mut self, validity: Validity, now: SystemTime) -> bool {
        let expired = match validity {
            Validity::Valid => {
                *self = Self::default();
                return false;
            }
            Validity::Expiring { .. } => false,
            Validity::Expired { .. } => true,
        };
        let recently =
            self.warned_at.is_some_and(|at| now.duration_since(at).is_ok_and(|passed| passed < DAY))
                && expired == self.expired;
        if !recently {
            *self = Self { expired, warned_at: Some(now) };
        }
        !recently
    }
}

#[cfg(any(feature = "metrics", test))]
/// Seconds until the expiry, negative after it.
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
    fn warns_daily_from_thirty_days_before_expiry() {
        let start = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let end = start + 60 * DAY;
        let mut throttle = WarnThrottle::default();
        let mut warned_on = Vec::new();
        for hour in 0..63 * 24 {
            let now = start + Duration::from_secs(3600) * hour;
            let validity = Validity::at(now, end);
            if throttle.due(validity, now) {
                warned_on.push((hour, matches!(validity, Validity::Expired { .. })));
            }
        }
        let expected: Vec<_> = (30..63).map(|day| (day * 24, day >= 60)).collect();
        assert_eq!(warned_on, expected);
    }

    #[test]
    fn warns_at_expiry_and_resets_after_renewal() {
        let now = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let hour = Duration::from_secs(3600);
        let mut throttle = WarnThrottle::default();
        assert!(throttle.due(Validity::at(now, now + hour), now));
        assert!(!throttle.due(Validity::at(now, now + hour), now));
        assert!(
            throttle.due(Validity::at(now + hour, now + hour), now + hour),
            "warns at the expiry at once"
        );
        assert!(!throttle.due(Validity::at(now, now + 90 * DAY), now));
        assert!(throttle.due(Validity::at(now, now + DAY), now));
        assert!(throttle.due(Validity::at(now - hour, now + DAY), now - hour), "the clock went back");
        assert_eq!(seconds_left(now, now - hour), -3600.0);
        assert_eq!(seconds_left(now, now + hour), 3600.0);
    }
}
