//! The life of a volume as one table: which call comes next, and where its success and its failure lead.
//!
//! The names are the spec's (section "Volume Lifecycle", figures 5 to 8). [`Base`] is what all consumers share, and
//! [`TargetState`] is one consumer's target. What else has to hold before a call is made is in `plan`.

use super::outcome::{Failure, Mismatch};
use super::snapshot::{Base, Target, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Attach, Volume};

// Towards a goal.

impl Volume {
    /// The call that leads from a shared state to the next one in a direction, or again out of a state on the way.
    pub(super) fn next_shared(&self, base: Base, direction: Direction) -> Option<Rpc> {
        let attaches = self.attaches();
        let stages = self.top() == Some(Base::VolReady);
        // A driver that came to attach since needs its attach before the stage call.
        let founded = self.record.attached_here || !attaches;
        match (direction, base) {
            (Direction::Up, Base::Created | Base::ControllerPublish) if attaches => {
                Some(Rpc::ControllerPublishVolume)
            }
            (Direction::Up, Base::Created | Base::NodeReady) if stages => Some(Rpc::NodeStageVolume),
            (Direction::Up, Base::NodeStage) if stages && founded => Some(Rpc::NodeStageVolume),
            // The spec's rule: a downward call is repeated until it succeeds, whatever is wanted.
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

    /// Where the shared part rests while nothing is published; with an attach of our own, above it.
    pub(super) fn unstaged(&self) -> Base {
        if self.record.attached_here { Base::NodeReady } else { self.floor() }
    }

    /// Where a volume is that is neither staged nor attached from here.
    pub(super) fn floor(&self) -> Base {
        match self.attach {
            Attach::Here => Base::Created,
            Attach::Awaited if !self.record.attached => Base::Created,
            Attach::Awaited | Attach::NotRequired => Base::NodeReady,
        }
    }

    /// Where targets can be published; `None` while an attach is awaited.
    pub(super) fn top(&self) -> Option<Base> {
        match self.attach {
            Attach::Awaited if !self.record.attached && !self.record.attached_here => None,
            _ if self.capabilities.stage_unstage => Some(Base::VolReady),
            Attach::Here if !self.attaches() && !self.record.attached_here => Some(Base::Created),
            _ => Some(Base::NodeReady),
        }
    }

    pub(super) fn attaches(&self) -> bool {
        self.attach == Attach::Here && self.capabilities.publish_unpublish
    }

    // On success.

    /// Where the shared part is after a call succeeded. It may be on its way elsewhere by then.
    pub(super) fn shared_after(&self, rpc: Rpc) -> Base {
        match (rpc, self.record.base) {
            (Rpc::ControllerPublishVolume, Base::ControllerPublish) => Base::NodeReady,
            (Rpc::NodeStageVolume, Base::NodeStage) => Base::VolReady,
            (Rpc::NodeUnstageVolume, Base::NodeUnstage) => self.unstaged(),
            (Rpc::ControllerUnpublishVolume, Base::ControllerUnpublish) => Base::Created,
            (_, base) => base,
        }
    }
}

/// The call that a target needs next. `direction` is `None` where the shared part is not ready for it.
pub(super) fn next_target(target: Target, direction: Option<Direction>) -> Option<Rpc> {
    use TargetState::{Absent, NodePublish, NodeUnpublish, Published, Republish};
    match (target.state, direction) {
        (Absent | NodePublish | Republish, Some(Direction::Up)) => Some(Rpc::NodePublishVolume),
        (NodePublish | Published | Republish, Some(Direction::Down)) => Some(Rpc::NodeUnpublishVolume),
        (NodeUnpublish, _) => Some(Rpc::NodeUnpublishVolume),
        (Published, Some(Direction::Up)) | (Absent, Some(Direction::Down)) => None,
        (Absent | NodePublish | Published | Republish, None) => None,
    }
}

/// The shared state from the moment a call is intended until it is known to have succeeded.
pub(super) fn shared_during(rpc: Rpc) -> Option<Base> {
    Base::ALL.into_iter().find(|base| base.state().rpc() == Some(rpc))
}

/// The same of a target.
pub(super) fn target_during(rpc: Rpc, state: TargetState) -> TargetState {
    match (rpc, state) {
        (Rpc::NodePublishVolume, TargetState::Republish) => TargetState::Republish,
        (Rpc::NodePublishVolume, _) => TargetState::NodePublish,
        (Rpc::NodeUnpublishVolume, _) => TargetState::NodeUnpublish,
        (_, state) => state,
    }
}

/// Where a target is after a call succeeded.
pub(super) fn target_after(rpc: Rpc, state: TargetState) -> TargetState {
    match (rpc, state) {
        (Rpc::NodePublishVolume, TargetState::NodePublish | TargetState::Republish) => TargetState::Published,
        (Rpc::NodeUnpublishVolume, TargetState::NodeUnpublish) => TargetState::Absent,
        (_, state) => state,
    }
}

// On failure. A state on the way stays what it is, and its call is repeated or negated, except for these.

/// What is wrongly staged is unstaged before it is staged again.
pub(super) fn shared_failed(rpc: Rpc, base: Base, failure: Failure) -> Base {
    match (rpc, base, failure) {
        (_, base, Failure::Contradicted(Mismatch::Missing)) => base,
        (Rpc::NodeStageVolume, Base::NodeStage, Failure::Contradicted(_)) => Base::NodeUnstage,
        (_, base, _) => base,
    }
}

/// What is wrongly published is unpublished before it is published again, and so is a published target whose mount is
/// gone. A target that is published stays so if its repeated publish fails, or puts a second mount on the first: that
/// is the consumer's to lose, and is undone when the consumer is released.
pub(super) fn target_failed(rpc: Rpc, state: TargetState, failure: Failure) -> TargetState {
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
