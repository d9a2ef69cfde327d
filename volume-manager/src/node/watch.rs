//! A stream of changes.

use tokio::sync::broadcast;

use super::change::Change;

/// The changes of all volumes, from when it was asked for. Bounded: who reads too slowly is told how many were missed.
#[derive(Debug)]
pub struct Changes(pub(super) broadcast::Receiver<Change>);

/// What a reader of [`Changes`] is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Watched {
    /// Something happened.
    Change(Change),
    /// So many changes were missed, since they came faster than they were read. `list` and `explain` tell what is.
    Missed(u64),
}

impl Changes {
    /// How many changes wait for a reader at most.
    pub const CAPACITY: usize = 1024;

    /// The next change; `None` when the volumes are not run any more. If the future is dropped, nothing is lost.
    pub async fn next(&mut self) -> Option<Watched> {
        match self.0.recv().await {
            Ok(change) => Some(Watched::Change(change)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Watched::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
