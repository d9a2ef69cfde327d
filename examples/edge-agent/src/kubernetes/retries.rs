//! Trying again and again what the hub has not done, and logging each cause once.

use std::time::Duration;

use edge_transport::peer::Backoff;

/// The first and the longest wait before another try.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The tries of one thing.
#[derive(Debug)]
pub(super) struct Retries {
    backoff: Backoff,
    /// What is not done.
    what: &'static str,
    /// The cause that was logged last.
    last: String,
}

impl Retries {
    /// None so far. `what` is not done while they last; `seed` spreads the waits of nodes apart.
    pub(super) fn new(what: &'static str, seed: u64) -> Self {
        Self { backoff: Backoff::new(AGAIN.0, AGAIN.1, seed), what, last: String::new() }
    }

    /// It is done.
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
        self.last.clear();
    }

    /// It is not done. Answers how long to wait before the next try.
    pub(super) fn failed(&mut self, cause: &str) -> Duration {
        if self.last == cause {
            tracing::debug!("{}: {cause}", self.what);
        } else {
            tracing::warn!("{}, trying again and again: {cause}", self.what);
            cause.clone_into(&mut self.last);
        }
        self.backoff.next_wait()
    }
}
