//! The stream of changes.

use tokio::sync::broadcast;

use super::change::VolumeChange;

/// The changes of all volumes since the subscription. The stream is bounded: a slow reader receives the number of
/// missed changes.
#[derive(Debug)]
pub struct Changes(pub(super) broadcast::Receiver<VolumeChange>);

/// An item of [`Changes`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A change of a volume.
    Change(VolumeChange),
    /// The number of changes that were missed, because the reader was too slow. `list` and `explain` return the
    /// current state.
    Lagged(u64),
}

impl Changes {
    /// The maximum number of buffered changes.
    pub const CAPACITY: usize = 1024;

    /// Returns the next change, or `None` when the volume manager has shut down. Cancel safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        match self.0.recv().await {
            Ok(change) => Some(WatchEvent::Change(change)),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(WatchEvent::Lagged(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
