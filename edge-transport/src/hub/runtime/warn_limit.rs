//! Limits warnings that anyone can cause.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Shortest interval between two warnings of a limit.
const INTERVAL: Duration = Duration::from_secs(10);

/// Longest reason in characters: others choose parts of its text.
const MAX_REASON: usize = 300;

/// Permits one warning in [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct WarnLimit(Mutex<Option<Instant>>);

impl WarnLimit {
    /// Whether to warn now. If so, the next warning is permitted an interval later.
    pub(super) fn permits(&self) -> bool {
        let (now, mut last) = (Instant::now(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let permitted = last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if permitted {
            *last = Some(now);
        }
        permitted
    }

    /// Logs why a link was not admitted: as a warning if one is permitted.
    pub(super) fn not_admitted(&self, remote: &str, reason: &impl Display) {
        let reason = shortened(reason);
        if self.permits() {
            tracing::warn!(remote, reason, "link not admitted; at most one such warning in {INTERVAL:?}");
        } else {
            tracing::debug!(remote, reason, "link not admitted");
        }
    }
}

/// Returns one line of at most [`MAX_REASON`] characters.
fn shortened(reason: &impl Display) -> String {
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    reason.to_string().chars().take(MAX_REASON).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn permits_one_warning_in_10_s() {
        let limit = WarnLimit::default();
        for (after, expected) in [(0, true), (9_999, false), (1, true), (1, false), (10_000, true)] {
            tokio::time::advance(Duration::from_millis(after)).await;
            assert_eq!(limit.permits(), expected, "{after}");
        }
    }

    #[test]
    fn reason_is_one_short_line() {
        assert_eq!(shortened(&"a\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(shortened(&"x".repeat(5000)).len(), MAX_REASON);
    }
}
