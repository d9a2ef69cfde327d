//! The transition table of a volume: the next call, and the states after success and failure.
//!
//! The names are from the spec (section "Volume Lifecycle", figures 5 to 8). [`Base`] is the state that all consumers
//! share, and [`TargetState`] is the state of one consumer's target. Further preconditions of calls are in `plan`.

use super::outcome::{Failure, Mismatch};
use super::snapshot::{Base, Target, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Attach, Volume};

// Calls towards a goal.

impl Volume {
    /// Returns the call that moves a base one step in a direction, or the call to repeat in a transitional state.
    pub(super) fn next_base_call(&self, base: Base, direction: Direction) -> Option<Rpc> {
        let attaches_here = self.attaches_here();
        let stages = self.publish_base() == Some(Base::VolReady);
        // A driver that gained the attach capability meanwhile must attach before the stage call.
        let is_attached = self.record.attached_here || !attaches_here;
        match (direction, base) {
            (Direction::Up, Base::Created | Base::ControllerPublish) if attaches_here => {
                Some(Rpc::ControllerPublishVolume)
            }
            (Direction::Up, Base::Created | Base::NodeReady) if stages => Some(Rpc::NodeStageVolume),
            (Direction::Up, Base::NodeStage) if stages && is_attached => Some(Rpc::NodeStageVolume),
            // Required by the spec: a downward call is repeated until it succeeds, even if the volume is wanted again.
            (Direction::Up, _) => None,
            (Direction::Down, Base::VolReady | Base::NodeStage | Base::NodeUnstage) => {
                Some(Rpc::NodeUnstageVolume)
            }
            (Direction::Down, Base::NodeReady) if !self.record.attached_here => None,
            (Direction::Down, Base::NodeReady | Base::ControllerPublish | Base::ControllerUnpublish) => {
                Some(Rpc::ControllerUnpublishVolume)
            }
            (Direction::Down, Base::Created) => None,
        }
    }

    /// Returns the base after an unstage: attached if this node attached the volume.
    pub(super) fn base_after_unstage(&self) -> Base {
        if self.record.attached_here { Base::NodeReady } else { self.lowest_base() }
    }

    /// Returns the base of a volume that is neither staged nor attached by this node.
    pub(super) fn lowest_base(&self) -> Base {
        match self.attach {
            Attach::Here => Base::Created,
            Attach::Awaited if !self.record.attached => Base::Created,
            Attach::Awaited | Attach::NotRequired => Base::NodeReady,
        }
    }

    /// Returns the base on which targets can be published, or `None` while an external attach is pending.
    pub(super) fn publish_base(&self) -> Option<Base> {
        match self.attach {
            Attach::Awaited if !self.record.attached && !self.record.attached_here => None,
            _ if self.capabilities.stage_unstage => Some(Base::VolReady),
            Attach::Here if !self.attaches_here() && !self.record.attached_here => Some(Base::Created),
            _ => Some(Base::NodeReady),
        }
    }

    pub(super) fn attaches_here(&self) -> bool {
        self.attach == Attach::Here && self.capabilities.publish_unpublish
    }

    // States after a success.

    /// Returns the base after a successful call. A concurrent event may have changed the base meanwhile.
    pub(super) fn base_after_success(&self, rpc: Rpc) -> Base {
        match (rpc, self.record.base) {
            (Rpc::ControllerPublishVolume, Base::ControllerPublish) => Base::NodeReady,
            (Rpc::NodeStageVolume, Base::NodeStage) => Base::VolReady,
            (Rpc::NodeUnstageVolume, Base::NodeUnstage) => self.base_after_unstage(),
            (Rpc::ControllerUnpublishVolume, Base::ControllerUnpublish) => Base::Created,
            (_, base) => base,
        }
    }
}

/// Returns the next call for a target. `direction` is `None` if the base is not ready for the target.
pub(super) fn next_target_call(target: Target, direction: Option<Direction>) -> Option<Rpc> {
    use TargetState::{Absent, NodePublish, NodeUnpublish, Published, Republish};
    match (target.state, direction) {
        (Absent | NodePublish | Republish, Some(Direction::Up)) => Some(Rpc::NodePublishVolume),
        (NodePublish | Published | Republish, Some(Direction::Down)) => Some(Rpc::NodeUnpublishVolume),
        (NodeUnpublish, _) => Some(Rpc::NodeUnpublishVolume),
        (Published, Some(Direction::Up)) | (Absent, Some(Direction::Down)) => None,
        (Absent | NodePublish | Published | Republish, None) => None,
    }
}

/// Returns the base from the time a call is intended until it is known to have succeeded.
pub(super) fn base_during(rpc: Rpc) -> Option<Base> {
    Base::ALL.into_iter().find(|base| base.state().rpc() == Some(rpc))
}

/// Returns the target state from the time a call is intended until it is known to have succeeded.
pub(super) fn target_during(rpc: Rpc, state: TargetState) -> TargetState {
    match (rpc, state) {
        (Rpc::NodePublishVolume, TargetState::Republish) => TargetState::Republish,
        (Rpc::NodePublishVolume, _) => TargetState::NodePublish,
        (Rpc::NodeUnpublishVolume, _) => TargetState::NodeUnpublish,
        (_, state) => state,
    }
}

/// Returns the target state after a successful call.
pub(super) fn target_after_success(rpc: Rpc, state: TargetState) -> TargetState {
    match (rpc, state) {
        (Rpc::NodePublishVolume, TargetState::NodePublish | TargetState::Republish) => TargetState::Published,
        (Rpc::NodeUnpublishVolume, TargetState::NodeUnpublish) => TargetState::Absent,
        (_, state) => state,
    }
}

// States after a failure. A transitional state is kept, and its call is repeated or undone, with the exceptions
// below.

/// Returns the base after a failed call: a wrong staging mount is unstaged before the volume is staged again.
pub(super) fn base_after_failure(rpc: Rpc, base: Base, failure: Failure) -> Base {
    match (rpc, base, failure) {
        (_, base, Failure::Contradicted(Mismatch::Missing)) => base,
        (Rpc::NodeStageVolume, Base::NodeStage, Failure::Contradicted(_)) => Base::NodeUnstage,
        (_, base, _) => base,
    }
}

/// Returns the target state after a failed call: a wrong mount, or a published target whose mount is missing, is
/// unpublished before it is published again. A published target stays published if its repeated publish fails or stacks
/// a second mount: tearing it down would interrupt the consumer, so the second mount is removed when the consumer is
/// released.
pub(super) fn target_after_failure(rpc: Rpc, state: TargetState, failure: Failure) -> TargetState {
    use Failure::{Contradicted, Final, Infeasible, NeverRetry, NotSent};
    match (rpc, state, failure) {
        (Rpc::NodePublishVolume, TargetState::Republish, Contradicted(Mismatch::Missing)) => {
            TargetState::NodeUnpublish
        }
        (Rpc::NodePublishVolume, TargetState::NodePublish, Contradicted(found))
            if found != Mismatch::Missing =>
        {
            TargetState::NodeUnpublish
        }
        (
            Rpc::NodePublishVolume,
            TargetState::Republish,
            Final | NeverRetry | Infeasible | NotSent | Contradicted(Mismatch::Wrong),
        ) => TargetState::Published,
        (_, state, _) => state,
    }
}
