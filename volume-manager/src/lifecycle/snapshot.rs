//! The durable state of a volume.

use std::collections::BTreeMap;

use crate::ConsumerId;

use super::call::Call;
use super::state::{Rpc, VolumeState};

/// The durable state of a volume: enough to continue after any crash or power cut. The default is the state of a volume
/// without any call.
///
/// The snapshot contains no secrets, paths or back-offs: a new process retries immediately. The caller stores the boot
/// id beside the snapshot, for [`Event::Rebooted`](super::Event::Rebooted).
#[allow(clippy::exhaustive_structs, reason = "writers and readers must handle every field")]
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The state that the consumers share: attach and staging.
    pub base: Base,
    /// True if the external attach is complete. Used by [`Attach::Awaited`](super::Attach::Awaited) only.
    pub attached: bool,
    /// True if this node attached the volume, or may have: `ControllerPublishVolume` was intended, and no
    /// `ControllerUnpublishVolume` succeeded since. The volume is detached before its record is removed, even if
    /// the attach mode or the driver's capabilities changed.
    pub attached_here: bool,
    /// The last call, if it is not known to have succeeded: it may still be running when the record is read.
    pub calling: Option<Call>,
    /// The consumers, which are the reference count, and their targets.
    pub targets: BTreeMap<ConsumerId, Target>,
    /// The last requested size that was reached, in bytes; 0 if none was requested.
    pub granted_bytes: u64,
    /// The last size that the driver reported, in bytes; 0 if unknown. At least [`Self::granted_bytes`].
    pub capacity_bytes: u64,
    /// The pending expansion.
    pub expansion: Option<Expansion>,
}

/// The state of the part that all consumers share: [`VolumeState`] without the states of a target.
#[allow(clippy::exhaustive_enums, reason = "the spec's states")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Base {
    /// Not attached to a node.
    #[default]
    Created,
    /// In transition from CREATED to NODE_READY.
    ControllerPublish,
    /// In transition from NODE_READY to CREATED.
    ControllerUnpublish,
    /// Attached to this node.
    NodeReady,
    /// In transition from NODE_READY to VOL_READY.
    NodeStage,
    /// In transition from VOL_READY to NODE_READY. Existing targets are unpublished first.
    NodeUnstage,
    /// Staged on this node.
    VolReady,
}

impl Base {
    /// All states, lowest first.
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::ControllerPublish,
        Self::ControllerUnpublish,
        Self::NodeReady,
        Self::NodeStage,
        Self::NodeUnstage,
        Self::VolReady,
    ];

    /// Returns the state of a volume with this base and no targets.
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

    pub(super) fn is_transitional(self) -> bool {
        self.state().rpc().is_some()
    }
}

/// A consumer's target.
#[allow(clippy::exhaustive_structs, reason = "writers and readers must handle every field")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// True if the consumer still wants the volume.
    pub wanted: bool,
    /// The state of the target.
    pub state: TargetState,
}

/// The state of one target of a volume.
#[allow(clippy::exhaustive_enums, reason = "the spec's states of a target, and a repeated publish")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetState {
    /// Nothing is mounted, and no call was made that could change that.
    Absent,
    /// In transition to PUBLISHED.
    NodePublish,
    /// Published.
    Published,
    /// Published, and `NodePublishVolume` is being repeated, for example with a fresh token. A failure leaves the
    /// target published.
    Republish,
    /// In transition from PUBLISHED.
    NodeUnpublish,
}

impl TargetState {
    /// All states.
    pub const ALL: [Self; 5] =
        [Self::Absent, Self::NodePublish, Self::Published, Self::Republish, Self::NodeUnpublish];

    /// Returns whether the volume is published at the target.
    #[must_use]
    pub fn is_published(self) -> bool {
        matches!(self, Self::Published | Self::Republish)
    }

    /// Returns the call that belongs to this state.
    pub(super) fn rpc(self) -> Option<Rpc> {
        match self {
            Self::Absent | Self::Published => None,
            Self::NodePublish | Self::Republish => Some(Rpc::NodePublishVolume),
            Self::NodeUnpublish => Some(Rpc::NodeUnpublishVolume),
        }
    }
}

/// A pending expansion. After a crash it continues with its current phase.
#[allow(clippy::exhaustive_structs, reason = "writers and readers must handle every field")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expansion {
    /// `capacity_range.required_bytes` of both calls.
    pub required_bytes: u64,
    /// The phase whose call is pending.
    pub phase: ExpansionPhase,
}

/// The phases of an expansion, in order.
#[allow(clippy::exhaustive_enums, reason = "there are two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExpansionPhase {
    /// `ControllerExpandVolume`
    Controller,
    /// `NodeExpandVolume`, which needs a volume that is staged, or published if the driver does not stage.
    Node,
}

impl ExpansionPhase {
    pub(super) fn rpc(self) -> Rpc {
        match self {
            Self::Controller => Rpc::ControllerExpandVolume,
            Self::Node => Rpc::NodeExpandVolume,
        }
    }
}
