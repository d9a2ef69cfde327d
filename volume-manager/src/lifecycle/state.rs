//! States and RPCs, and how they relate.

use std::fmt;

/// The state of a volume: four stable and six transitional states.
///
/// In a transitional state the call may be running, may have failed, or may have succeeded without a response.
#[allow(
    clippy::exhaustive_enums,
    reason = "the spec's states and calls; another state would change the state machine"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// Not attached to a node.
    Created,
    /// Attached to this node.
    NodeReady,
    /// Staged on this node.
    VolReady,
    /// Mounted at the target.
    Published,
    /// In transition from CREATED to NODE_READY.
    ControllerPublish,
    /// In transition from NODE_READY to CREATED.
    ControllerUnpublish,
    /// In transition from NODE_READY to VOL_READY.
    NodeStage,
    /// In transition from VOL_READY to NODE_READY.
    NodeUnstage,
    /// In transition from VOL_READY to PUBLISHED.
    NodePublish,
    /// In transition from PUBLISHED to VOL_READY.
    NodeUnpublish,
}

impl VolumeState {
    /// Returns the call that belongs to this state, if the state is transitional.
    #[must_use]
    pub fn rpc(self) -> Option<Rpc> {
        Rpc::ALL.into_iter().find(|rpc| rpc.state() == Some(self))
    }

    /// All states: stable states, lowest first, then transitional states.
    pub const ALL: [Self; 10] = [
        Self::Created,
        Self::NodeReady,
        Self::VolReady,
        Self::Published,
        Self::ControllerPublish,
        Self::ControllerUnpublish,
        Self::NodeStage,
        Self::NodeUnstage,
        Self::NodePublish,
        Self::NodeUnpublish,
    ];
}

impl fmt::Display for VolumeState {
    /// Writes the name from the spec's figures. Names of transitional states follow the same style.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "CREATED",
            Self::NodeReady => "NODE_READY",
            Self::VolReady => "VOL_READY",
            Self::Published => "PUBLISHED",
            Self::ControllerPublish => "CONTROLLER_PUBLISH",
            Self::ControllerUnpublish => "CONTROLLER_UNPUBLISH",
            Self::NodeStage => "NODE_STAGE",
            Self::NodeUnstage => "NODE_UNSTAGE",
            Self::NodePublish => "NODE_PUBLISH",
            Self::NodeUnpublish => "NODE_UNPUBLISH",
        })
    }
}

/// The direction of a call: towards PUBLISHED or away from it.
#[allow(clippy::exhaustive_enums, reason = "there are two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards PUBLISHED. A call that did not succeed may be repeated, or undone by its opposite if there is one.
    Up,
    /// Towards CREATED. A call that did not succeed may only be repeated.
    Down,
}

/// An RPC that changes the state or the size of a volume.
#[allow(
    clippy::exhaustive_enums,
    reason = "the calls of the spec's lifecycle figures, and those of expansion"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rpc {
    /// `Controller/ControllerPublishVolume`
    ControllerPublishVolume,
    /// `Controller/ControllerUnpublishVolume`
    ControllerUnpublishVolume,
    /// `Node/NodeStageVolume`
    NodeStageVolume,
    /// `Node/NodeUnstageVolume`
    NodeUnstageVolume,
    /// `Node/NodePublishVolume`
    NodePublishVolume,
    /// `Node/NodeUnpublishVolume`
    NodeUnpublishVolume,
    /// `Controller/ControllerExpandVolume`
    ControllerExpandVolume,
    /// `Node/NodeExpandVolume`
    NodeExpandVolume,
}

impl Rpc {
    /// All RPCs: first the lifecycle RPCs, lowest first, each followed by its opposite, then the expansion RPCs.
    pub const ALL: [Self; 8] = [
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::NodeStageVolume,
        Self::NodeUnstageVolume,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
        Self::ControllerExpandVolume,
        Self::NodeExpandVolume,
    ];

    /// Returns the state of a volume from the time the call is intended until it is known to have succeeded, or `None`
    /// for expansion calls, which do not change the state.
    #[must_use]
    pub fn state(self) -> Option<VolumeState> {
        match self {
            Self::ControllerPublishVolume => Some(VolumeState::ControllerPublish),
            Self::ControllerUnpublishVolume => Some(VolumeState::ControllerUnpublish),
            Self::NodeStageVolume => Some(VolumeState::NodeStage),
            Self::NodeUnstageVolume => Some(VolumeState::NodeUnstage),
            Self::NodePublishVolume => Some(VolumeState::NodePublish),
            Self::NodeUnpublishVolume => Some(VolumeState::NodeUnpublish),
            Self::ControllerExpandVolume | Self::NodeExpandVolume => None,
        }
    }

    /// Returns the direction of the call.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::ControllerUnpublishVolume | Self::NodeUnstageVolume | Self::NodeUnpublishVolume => {
                Direction::Down
            }
            _ => Direction::Up,
        }
    }

    /// Returns whether the call changes the size of the volume and not its state.
    #[must_use]
    pub fn expands(self) -> bool {
        self.state().is_none()
    }

    /// Returns whether the effect of the call is visible in the mount table.
    #[must_use]
    pub fn shows_in_mount_table(self) -> bool {
        !matches!(self, Self::ControllerPublishVolume | Self::ControllerUnpublishVolume) && !self.expands()
    }

    /// Returns the name of the method in the spec.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ControllerPublishVolume => "ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "ControllerUnpublishVolume",
            Self::NodeStageVolume => "NodeStageVolume",
            Self::NodeUnstageVolume => "NodeUnstageVolume",
            Self::NodePublishVolume => "NodePublishVolume",
            Self::NodeUnpublishVolume => "NodeUnpublishVolume",
            Self::ControllerExpandVolume => "ControllerExpandVolume",
            Self::NodeExpandVolume => "NodeExpandVolume",
        }
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
