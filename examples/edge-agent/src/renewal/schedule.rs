//! When a certificate is renewed.

use std::time::{Duration, SystemTime};

/// The maximum time between two checks of the certificate, which the operator may replace.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The time until a certificate has to be renewed, at most [`CHECK_INTERVAL`]; `None` if that is now. The certificate is renewed
/// when a third of its validity is left, or up to a quarter of that third later: `share`, from 0 to 1, spreads the nodes.
pub(super) fn wait(
    now: SystemTime,
    (valid_from, expires): (SystemTime, SystemTime),
    share: f64,
) -> Option<Duration> {
    let third = expires.duration_since(valid_from).unwrap_or_default() / 3;
    let due = expires - third + (third / 4).mul_f64(share.clamp(0.0, 1.0));
    match due.duration_since(now) {
        Ok(left) if !left.is_zero() => Some(left.min(CHECK_INTERVAL)),
        _ => None,
    }
}

/// The time until the next check if there is no certificate to renew.
pub(super) const NO_CERTIFICATE_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renews_in_the_last_third_and_before_its_last_three_quarters() {
        let from = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let validity = (from, from + Duration::from_secs(1200));
        let at = |seconds, share| wait(from + Duration::from_secs(seconds), validity, share);
        assert_eq!(at(0, 0.5), Some(CHECK_INTERVAL));
        assert_eq!(at(799, 0.0), Some(Duration::from_secs(1)));
        assert_eq!(at(800, 0.0), None);
        assert_eq!(at(840, 1.0), Some(CHECK_INTERVAL));
        assert_eq!(at(899, 1.0), Some(Duration::from_secs(1)));
        assert_eq!((at(900, 1.0), at(5000, 1.0)), (None, None), "also when it has expired");
        assert_eq!(wait(from - Duration::from_secs(9), validity, 0.0), Some(CHECK_INTERVAL), "a slow clock");
    }
}
