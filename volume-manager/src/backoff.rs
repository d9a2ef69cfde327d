//! How long to wait before something is tried again.

use std::time::Duration;

/// The wait after so many failures in a row: `first` after one, then twice as long each time, up to `longest`.
pub(crate) fn doubled(first: Duration, longest: Duration, failures: u32) -> Duration {
    let factor = 2u32.checked_pow(failures.saturating_sub(1));
    factor.and_then(|factor| first.checked_mul(factor)).map_or(longest, |wait| wait.min(longest))
}
