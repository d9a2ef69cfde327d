//! How much is kept, and for how long.

use std::time::Duration;

/// Bounds of a [`Core`](super::Core).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Most operations that are over and not forgotten: kept answers, answers on their way, and operations whose end is not known.
    /// Default 4096. The oldest goes first.
    pub kept: usize,
    /// Most bytes of those; default 4 MiB. An answer that is larger alone is not kept.
    pub kept_bytes: usize,
    /// How long an answer waits for its asker; default one hour. It should be longer than the longest pause between two tries
    /// of a sidecar (5 minutes unless set otherwise) and than the usual absence of a hub. It should not be much longer: what
    /// is done to a volume past this process makes an answer wrong.
    pub kept_for: Duration,
    /// Most calls that wait, or whose answer is on its way, at once, over all operations; default 16384. One more fails with
    /// [`Fault::Overloaded`](crate::Fault::Overloaded).
    pub askers: usize,
    /// How long a call waits for its turn while something else is done to what it is about, before it fails with
    /// [`Fault::OperationPending`](crate::Fault::OperationPending); default 2 s. Less if its caller stops waiting sooner, so that this
    /// reaches the caller in time. Zero: not at all. More than a minute counts as a minute.
    pub wait: Duration,
    /// Most operations that wait for their turn; default 256. One more fails at once.
    pub waiting: usize,
    /// Most operations that wait for their turn at one volume, snapshot or group; default 8. One more fails at once.
    pub waiting_on_one: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            kept: 4096,
            kept_bytes: 4 << 20,
            kept_for: Duration::from_secs(3600),
            askers: 16 * 1024,
            wait: Duration::from_secs(2),
            waiting: 256,
            waiting_on_one: 8,
        }
    }
}
