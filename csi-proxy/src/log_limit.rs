//! Limits a warning that others can cause at will.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum interval between two warnings.
const INTERVAL: Duration = Duration::from_secs(10);

/// Permits one warning in 10 s.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    /// Whether to log a warning now. If so, the next one is permitted 10 s later.
    pub(crate) fn permits(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let permitted = last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if permitted {
            *last = Some(now);
        }
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_one_warning_in_10_s() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let permitted = |after| limit.permits(start + Duration::from_millis(after));
        let times = [0, 0, 9_999, 10_000, 10_001, 19_999, 20_000];
        assert_eq!(times.map(permitted), [true, false, false, true, false, false, true]);
    }
}
