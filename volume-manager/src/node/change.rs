//! What is told to those who watch the volumes.

use std::fmt;
use std::time::Duration;

use crate::lifecycle::VolumeState;
use crate::name::{ConsumerId, VolumeKey};

use super::explanation::CallFailure;

/// Something that happened to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The volume.
    pub key: VolumeKey,
    /// What happened.
    pub kind: ChangeKind,
}

/// What can happen to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The volume as a whole is in another state.
    State {
        /// The state before.
        from: VolumeState,
        /// The state now.
        to: VolumeState,
        /// How long it was in the state before.
        dwelt: Duration,
    },
    /// The consumer has the volume at its target, and the mount table agrees.
    Published(ConsumerId),
    /// Nothing of the volume is at the consumer's target any more, and the consumer is forgotten.
    Unpublished(ConsumerId),
    /// A call failed; what is wanted is tried again.
    Failed(CallFailure),
    /// A mount was gone, and is made again: the staging if no consumer is named, else the consumer's target.
    MountLost(Option<ConsumerId>),
    /// The volume has grown, to at least so many bytes.
    Expanded(u64),
    /// Nothing is left of the volume on this node.
    Forgotten,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.key)?;
        match &self.kind {
            ChangeKind::State { from, to, .. } => write!(f, "{from} to {to}"),
            ChangeKind::Published(consumer) => write!(f, "published for {consumer}"),
            ChangeKind::Unpublished(consumer) => write!(f, "unpublished for {consumer}"),
            ChangeKind::Failed(error) => write!(f, "{error}"),
            ChangeKind::MountLost(None) => write!(f, "the staging mount was lost"),
            ChangeKind::MountLost(Some(consumer)) => write!(f, "the mount of {consumer} was lost"),
            ChangeKind::Expanded(bytes) => write!(f, "has {bytes} bytes now"),
            ChangeKind::Forgotten => write!(f, "gone from this node"),
        }
    }
}
