//! The names of states and calls, and what each says of the others.

use std::fmt;

/// Where a volume is: four states in which it rests, and six on the way.
///
/// A state on the way means that its call may be running, may have failed, or may have succeeded unheard.
#[allow(clippy::exhaustive_enums, reason = "the spec's states and calls; another would be another machine")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// Exists, and is attached to no node.
    Created,
    /// Attached to this node.
    NodeReady,
    /// Staged on this node.
    VolReady,
    /// At the target.
    Published,
    /// CREATED to NODE_READY.
    ControllerPublish,
    /// NODE_READY to CREATED.
    ControllerUnpublish,
    /// NODE_READY to VOL_READY.
    NodeStage,
    /// VOL_READY to NODE_READY.
    NodeUnstage,
    /// VOL_READY to PUBLISHED.
    NodePublish,
    /// PUBLISHED to VOL_READY.
    NodeUnpublish,
}

impl VolumeState {
    /// The call that this state is about, if it is a state on the way.
    #[must_use]
    pub fn rpc(self) -> Option<Rpc> {
        Rpc::ALL.into_iter().find(|rpc| rpc.state() == Some(self))
    }

    /// Every state: those of rest, lowest first, then those on the way.
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
    /// The name as the spec's figures have it; for the states on the way in the same style.
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

/// Whether a call leads towards PUBLISHED or away from it.
#[allow(clippy::exhaustive_enums, reason = "there are two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards PUBLISHED. A call that did not end well may be repeated, or negated if it has a negation.
    Up,
    /// Towards CREATED. A call that did not end well may only be repeated.
    Down,
}

/// A call that moves a volume, or makes it larger.
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
    /// Every call: those of the lifecycle, lowest first, each followed by its negation, then those of expansion.
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

    /// The state that a volume is in from the moment the call is intended until it is known to have succeeded.
    /// `None` for the calls of expansion: they leave a volume where it is.
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

    /// Where the call leads.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::ControllerUnpublishVolume | Self::NodeUnstageVolume | Self::NodeUnpublishVolume => {
                Direction::Down
            }
            _ => Direction::Up,
        }
    }

    /// Whether the call makes the volume larger, and leaves it where it is.
    #[must_use]
    pub fn expands(self) -> bool {
        self.state().is_none()
    }

    /// Whether the mount table shows what the call did.
    #[must_use]
    pub fn shows_in_mount_table(self) -> bool {
        !matches!(self, Self::ControllerPublishVolume | Self::ControllerUnpublishVolume) && !self.expands()
    }

    /// The name of the method in the spec.
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
