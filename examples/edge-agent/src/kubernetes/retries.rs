//! Backoff for failed operations, whose causes are logged once each.

use std::time::Duration;

use edge_transport::advanced::Backoff;

/// The first and the longest wait before a retry.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The backoff of one operation.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    /// The failure in the log, without its cause.
    failure: &'static str,
    /// The cause that was logged last.
    last: String,
}

impl Retries {
    /// Creates the backoff of an operation. The log reports `failure`; `seed` spreads the waits of different
    /// nodes.
    pub(super) fn new(failure: &'static str, seed: u64) -> Self {
        Self { backoff: Backoff::new(RETRY_DELAY.0, RETRY_DELAY.1, seed), failure, last: String::new() }
    }

    /// Records a success, which resets the wait.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
        self.last.clear();
    }

    /// Records and logs a failure. Returns the wait before the next attempt.
    pub(super) fn failed(&mut self, cause: &str) -> Duration {
        if self.last == cause {
            tracing::debug!("{}: {cause}", self.failure);
        } else {
            tracing::warn!("{}, retrying: {cause}", self.failure);
            cause.clone_into(&mut self.last);
        }
        self.backoff.next_wait()
    }
}
