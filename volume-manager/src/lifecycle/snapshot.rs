//! What has to be on disk of a volume.

use std::collections::BTreeMap;

use crate::ConsumerId;

use super::call::Call;
use super::state::{Rpc, VolumeState};

/// What is durable of a volume: enough to go on after any crash or power cut. The default is a volume to which nothing was
/// done yet.
///
/// It has no secrets, no paths and no back-off: a new process tries at once. The boot id belongs beside it on disk, for
/// [`Event::Rebooted`](super::Event::Rebooted).
#[allow(clippy::exhaustive_structs, reason = "its maker and its reader must handle every field")]
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// What the consumers share: attach and staging.
    pub base: Base,
    /// Whether an attach that is made elsewhere stands. Only [`Attach::Awaited`](super::Attach::Awaited) looks at it.
    pub attached: bool,
    /// Whether the volume is attached by this side, or may be: `ControllerPublishVolume` was intended, and no
    /// `ControllerUnpublishVolume` ended well since. It is detached before the volume is forgotten, whatever the attach and
    /// the driver's capabilities have become.
    pub attached_here: bool,
    /// The call that was sent last, if it is not known to have ended well: it may still be running when the record is read.
    pub calling: Option<Call>,
    /// The consumers, which are the reference count, and their targets.
    pub targets: BTreeMap<ConsumerId, Target>,
    /// The size that was asked for and reached last; 0 if none was.
    pub granted_bytes: u64,
    /// The size that the driver reported last; 0 if it is not known. At least [`Self::granted_bytes`].
    pub capacity_bytes: u64,
    /// An expansion that is not done.
    pub expansion: Option<Expansion>,
}

/// Where the part of a volume is that all its consumers share: [`VolumeState`] without those of a target.
#[allow(clippy::exhaustive_enums, reason = "the spec's states")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Base {
    /// Attached to no node.
    #[default]
    Created,
    /// On the way from CREATED to NODE_READY.
    ControllerPublish,
    /// On the way from NODE_READY to CREATED.
    ControllerUnpublish,
    /// Attached to this node.
    NodeReady,
    /// On the way from NODE_READY to VOL_READY.
    NodeStage,
    /// On the way from VOL_READY to NODE_READY. As long as there are targets, these are unpublished first.
    NodeUnstage,
    /// Staged on this node.
    VolReady,
}

impl Base {
    /// Every one, lowest first.
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::ControllerPublish,
        Self::ControllerUnpublish,
        Self::NodeReady,
        Self::NodeStage,
        Self::NodeUnstage,
        Self::VolReady,
    ];

    /// The state of a volume that has no targets.
    #[must_use]
    pub fn state(self) -> VolumeState {
        match self {
            Self::Created => VolumeState::Created,
            Self::ControllerPublish => VolumeState::ControllerPublish,
            Self::ControllerUnpublish => VolumeState::ControllerUnpublish,
            Self::NodeReady => VolumeState::NodeReady,
            Self::NodeStage => VolumeState::NodeStage,
            Self::NodeUnstage => VolumeState::NodeUnstage,
            Self::VolReady => VolumeState::VolReady,
        }
    }

    pub(super) fn is_on_the_way(self) -> bool {
        self.state().rpc().is_some()
    }
}

/// A consumer's target.
#[allow(clippy::exhaustive_structs, reason = "its maker and its reader must handle every field")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Whether the consumer still wants the volume.
    pub wanted: bool,
    /// Where the target is.
    pub state: TargetState,
}

/// Where one target of a volume is.
#[allow(clippy::exhaustive_enums, reason = "the spec's states of a target, and a repeated publish")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetState {
    /// Nothing is there, and no call was made that could change it.
    Absent,
    /// On the way to PUBLISHED.
    NodePublish,
    /// Published.
    Published,
    /// Published, and `NodePublishVolume` is made again, such as with a fresh token. A failure leaves it published.
    Republish,
    /// On the way from PUBLISHED.
    NodeUnpublish,
}

impl TargetState {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::Absent, Self::NodePublish, Self::Published, Self::Republish, Self::NodeUnpublish];

    /// Whether the consumer has the volume there.
    #[must_use]
    pub fn is_published(self) -> bool {
        matches!(self, Self::Published | Self::Republish)
    }

    /// The call that this state is about.
    pub(super) fn rpc(self) -> Option<Rpc> {
        match self {
            Self::Absent | Self::Published => None,
            Self::NodePublish | Self::Republish => Some(Rpc::NodePublishVolume),
            Self::NodeUnpublish => Some(Rpc::NodeUnpublishVolume),
        }
    }
}

/// An expansion on its way. It goes on after a crash, from the half that it was in.
#[allow(clippy::exhaustive_structs, reason = "its maker and its reader must handle every field")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expansion {
    /// `capacity_range.required_bytes` of both calls.
    pub required_bytes: u64,
    /// Which call is owed.
    pub half: Half,
}

/// The two halves of an expansion, in their order.
#[allow(clippy::exhaustive_enums, reason = "there are two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// `ControllerExpandVolume`
    Controller,
    /// `NodeExpandVolume`, which needs a volume that is staged, or published if the driver does not stage.
    Node,
}

impl Half {
    pub(super) fn rpc(self) -> Rpc {
        match self {
            Self::Controller => Rpc::ControllerExpandVolume,
            Self::Node => Rpc::NodeExpandVolume,
        }
    }
}
