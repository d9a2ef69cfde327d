//! Limits of kept results and queues.

use std::time::Duration;

/// Limits of a [`Core`](super::Core). Only the wait is configurable; the others bound memory. [Remote](share) calls use
/// at most half of `waiters`, `queued` and `queued_per_subject`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The queue timeout.
    pub(super) wait: Duration,
    /// The maximum number of kept results. The result that expires next is evicted first; its calls then get no
    /// replay and never begin again.
    pub(super) kept: usize,
    /// The maximum size of kept results in bytes. A single larger result is not kept.
    pub(super) kept_bytes: usize,
    /// The maximum number of waiting copies of calls, for results and in the queue.
    pub(super) waiters: usize,
    /// The maximum number of queued operations in total.
    pub(super) queued: usize,
    /// The maximum number of queued operations per volume, snapshot or group.
    pub(super) queued_per_subject: usize,
}

/// How long a result is kept for copies of its calls: longer than a proxy waits for a lost node.
pub(super) const REPLAYED_FOR: Duration = Duration::from_secs(60);

/// How long a result is kept for the next equal call, if no caller waited for it: longer than the longest retry
/// interval of a sidecar (5 minutes by default). Changes to the volume that bypass this process make a result
/// wrong, so the time is not much longer.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(600);

/// The maximum number of calls recorded for a result. A sidecar that retries every 10 s makes 90 calls in the maximum
/// time of a driver.
pub(super) const MAX_CALLS: usize = 128;

/// The part of a limit that a call may use: a remote call is refused once half is used, so that the other half is left
/// for the calls of the node.
pub(crate) const fn share(limit: usize, remote: bool) -> usize {
    if remote { limit.div_ceil(2) } else { limit }
}

impl Limits {
    pub(super) const fn new(wait: Duration) -> Self {
        Self { wait, kept: 4096, kept_bytes: 4 << 20, waiters: 16 * 1024, queued: 256, queued_per_subject: 8 }
    }
}
