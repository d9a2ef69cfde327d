//! How much is kept, and for how long.

use std::time::Duration;

/// Bounds of a [`Core`](super::Core). Only the wait is an operator's to choose; the others keep memory bounded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long a call waits for its turn.
    pub(super) wait: Duration,
    /// Most results that are kept. The one that would be forgotten next goes first; its call gets no replay then, and
    /// never begins again.
    pub(super) kept: usize,
    /// Most bytes of those. A result that is larger alone is not kept.
    pub(super) kept_bytes: usize,
    /// Most copies of calls that wait, for results and for their turns.
    pub(super) waiters: usize,
    /// Most operations that wait for their turn, and at one volume, snapshot or group.
    pub(super) queued: usize,
    pub(super) queued_on_one: usize,
}

/// How long a result is there for other copies of the calls that asked for it: longer than a proxy waits for a node
/// that it has lost.
pub(super) const REPLAYED_FOR: Duration = Duration::from_secs(60);

/// How long a result is there for the next equal call, if no caller waited for it: longer than the longest pause
/// between two tries of a sidecar (5 minutes unless set otherwise). Not much longer: what is done to a volume past this
/// process makes a result wrong.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(600);

/// Most calls that a result remembers as its own. A sidecar that asks every 10 s makes 90 of them in the longest time
/// that a driver has.
pub(super) const MAX_CALLS: usize = 128;

impl Limits {
    pub(super) const fn new(wait: Duration) -> Self {
        Self { wait, kept: 4096, kept_bytes: 4 << 20, waiters: 16 * 1024, queued: 256, queued_on_one: 8 }
    }
}
