//! The names of states, goals and calls, and what each says of the others.

use std::fmt;

use super::ladder::Rung;

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
        Rpc::ALL.into_iter().find(|rpc| rpc.state() == self)
    }
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

/// Where a volume shall be: one of the states of rest, lowest first.
#[allow(clippy::exhaustive_enums, reason = "the spec's states of rest")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Goal {
    /// Attached to no node.
    Created,
    /// Attached to this node.
    NodeReady,
    /// Staged on this node.
    VolReady,
    /// At the target.
    Published,
}

impl Goal {
    /// Every goal, lowest first.
    pub const ALL: [Self; 4] = [Self::Created, Self::NodeReady, Self::VolReady, Self::Published];

    /// The state in which the goal is reached.
    #[must_use]
    pub fn state(self) -> VolumeState {
        match self {
            Self::Created => VolumeState::Created,
            Self::NodeReady => VolumeState::NodeReady,
            Self::VolReady => VolumeState::VolReady,
            Self::Published => VolumeState::Published,
        }
    }
}

/// Whether a call leads towards PUBLISHED or away from it.
#[allow(clippy::exhaustive_enums, reason = "there are two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards PUBLISHED.
    Up,
    /// Towards CREATED.
    Down,
}

/// A call that moves a volume.
#[allow(clippy::exhaustive_enums, reason = "the calls of the spec's lifecycle figures")]
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
}

impl Rpc {
    /// Every call, lowest first, each followed by its negation.
    pub const ALL: [Self; 6] = [
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::NodeStageVolume,
        Self::NodeUnstageVolume,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
    ];

    /// The state that a volume is in from the moment the call is intended until it is known to have succeeded.
    #[must_use]
    pub fn state(self) -> VolumeState {
        match self {
            Self::ControllerPublishVolume => VolumeState::ControllerPublish,
            Self::ControllerUnpublishVolume => VolumeState::ControllerUnpublish,
            Self::NodeStageVolume => VolumeState::NodeStage,
            Self::NodeUnstageVolume => VolumeState::NodeUnstage,
            Self::NodePublishVolume => VolumeState::NodePublish,
            Self::NodeUnpublishVolume => VolumeState::NodeUnpublish,
        }
    }

    /// Where the call leads.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::ControllerPublishVolume | Self::NodeStageVolume | Self::NodePublishVolume => Direction::Up,
            Self::ControllerUnpublishVolume | Self::NodeUnstageVolume | Self::NodeUnpublishVolume => {
                Direction::Down
            }
        }
    }

    /// The call that undoes this one.
    #[must_use]
    pub fn negation(self) -> Self {
        match self.direction() {
            Direction::Up => Self::leaving(self.rung()),
            Direction::Down => Self::entering(self.rung()),
        }
    }

    /// The state of rest that the call enters, if it leads up, or leaves, if it leads down.
    pub(super) fn rung(self) -> Rung {
        match self {
            Self::ControllerPublishVolume | Self::ControllerUnpublishVolume => Rung::NodeReady,
            Self::NodeStageVolume | Self::NodeUnstageVolume => Rung::VolReady,
            Self::NodePublishVolume | Self::NodeUnpublishVolume => Rung::Published,
        }
    }

    pub(super) fn entering(rung: Rung) -> Self {
        match rung {
            Rung::NodeReady => Self::ControllerPublishVolume,
            Rung::VolReady => Self::NodeStageVolume,
            Rung::Published => Self::NodePublishVolume,
        }
    }

    pub(super) fn leaving(rung: Rung) -> Self {
        match rung {
            Rung::NodeReady => Self::ControllerUnpublishVolume,
            Rung::VolReady => Self::NodeUnstageVolume,
            Rung::Published => Self::NodeUnpublishVolume,
        }
    }
}
