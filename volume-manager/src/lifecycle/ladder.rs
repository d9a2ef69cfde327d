//! Which states of rest a volume has.

use super::state::{Goal, VolumeState};

/// What a driver can do, as far as the lifecycle depends on it. What it cannot do is skipped.
#[allow(clippy::exhaustive_structs, reason = "the two capabilities that the spec's lifecycle depends on")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME` of the controller service: there are NODE_READY and the two calls around it.
    pub publish_unpublish: bool,
    /// `STAGE_UNSTAGE_VOLUME` of the node service: there are VOL_READY and the two calls around it.
    pub stage_unstage: bool,
}

/// The lowest state of a volume: here it begins, and here it ends.
#[allow(clippy::exhaustive_enums, reason = "an attach is made here or elsewhere")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Floor {
    /// The attach is made here (figures 5 and 6). Volumes that somebody else provisioned (figure 7) begin here as
    /// well if this side attaches them: the figure's nameless ends are CREATED.
    Created,
    /// The attach is made elsewhere, such as in the cloud, and is done. No controller call is ever made.
    NodeReady,
}

/// A state of rest that a call enters from below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    NodeReady,
    VolReady,
    Published,
}

impl Rung {
    /// Lowest first.
    const ALL: [Self; 3] = [Self::NodeReady, Self::VolReady, Self::Published];

    pub(super) fn goal(self) -> Goal {
        match self {
            Self::NodeReady => Goal::NodeReady,
            Self::VolReady => Goal::VolReady,
            Self::Published => Goal::Published,
        }
    }
}

/// The states of rest that one volume has: a floor, and the rungs above it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ladder {
    pub(super) floor: Floor,
    pub(super) capabilities: DriverCapabilities,
}

impl Ladder {
    /// The lowest state of rest.
    pub(super) fn floor(self) -> Goal {
        match self.floor {
            Floor::Created => Goal::Created,
            Floor::NodeReady => Goal::NodeReady,
        }
    }

    /// The goal itself if the volume has that state, else the next lower one that it has.
    pub(super) fn at_or_below(self, goal: Goal) -> Goal {
        self.rung_at_or_below(goal).map_or_else(|| self.floor(), Rung::goal)
    }

    /// The rung that a volume stands on at a goal; `None` on the floor.
    pub(super) fn rung_at_or_below(self, goal: Goal) -> Option<Rung> {
        Rung::ALL.into_iter().rev().find(|rung| self.has(*rung) && rung.goal() <= goal)
    }

    /// The next rung up.
    pub(super) fn rung_above(self, goal: Goal) -> Option<Rung> {
        Rung::ALL.into_iter().find(|rung| self.has(*rung) && rung.goal() > goal)
    }

    /// Where a volume stands after it left a rung downward.
    pub(super) fn below(self, rung: Rung) -> Goal {
        let lower = Rung::ALL.into_iter().rev().find(|lower| self.has(*lower) && lower.goal() < rung.goal());
        lower.map_or_else(|| self.floor(), Rung::goal)
    }

    /// A recorded state as this volume can have it. A state of rest that it lacks is the next lower one, or the floor;
    /// a state on the way stays, since its call may have been made, unless that call is another's business.
    pub(super) fn state(self, state: VolumeState) -> VolumeState {
        let attach = matches!(state, VolumeState::ControllerPublish | VolumeState::ControllerUnpublish);
        if attach && self.floor == Floor::NodeReady {
            return VolumeState::NodeReady;
        }
        let goal = Goal::ALL.into_iter().find(|goal| goal.state() == state);
        goal.map_or(state, |goal| self.at_or_below(goal).state())
    }

    fn has(self, rung: Rung) -> bool {
        match rung {
            Rung::NodeReady => self.floor == Floor::Created && self.capabilities.publish_unpublish,
            Rung::VolReady => self.capabilities.stage_unstage,
            Rung::Published => true,
        }
    }
}
