//! Events for watchers of the volumes.

use std::fmt;
use std::time::Duration;

use crate::lifecycle::VolumeState;
use crate::name::{ConsumerId, VolumeKey};

use super::explanation::CallFailure;

/// A change of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeChange {
    /// The volume.
    pub key: VolumeKey,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The kinds of changes of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The state of the volume as a whole changed.
    State {
        /// The state before.
        from: VolumeState,
        /// The state now.
        to: VolumeState,
        /// How long the volume was in the previous state.
        time_in_state: Duration,
    },
    /// The volume is published at the consumer's target, and the mount table agrees.
    Published(ConsumerId),
    /// The volume is unpublished from the consumer's target, and the consumer is removed.
    Unpublished(ConsumerId),
    /// A call failed and is retried.
    Failed(CallFailure),
    /// A mount was lost and is restored: the staging mount if no consumer is named, else the mount at the consumer's
    /// target.
    MountLost(Option<ConsumerId>),
    /// The volume was expanded to at least this size in bytes.
    Expanded(u64),
    /// The volume was removed from this node.
    Removed,
}

impl fmt::Display for VolumeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.key)?;
        match &self.kind {
            ChangeKind::State { from, to, .. } => write!(f, "{from} to {to}"),
            ChangeKind::Published(consumer) => write!(f, "published for {consumer}"),
            ChangeKind::Unpublished(consumer) => write!(f, "unpublished for {consumer}"),
            ChangeKind::Failed(error) => write!(f, "{error}"),
            ChangeKind::MountLost(None) => write!(f, "the staging mount was lost"),
            ChangeKind::MountLost(Some(consumer)) => write!(f, "the mount of {consumer} was lost"),
            ChangeKind::Expanded(bytes) => write!(f, "expanded to {bytes} bytes"),
            ChangeKind::Removed => write!(f, "removed from this node"),
        }
    }
}
