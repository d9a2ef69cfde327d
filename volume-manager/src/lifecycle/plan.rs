//! What a volume needs next, and whether it may have it now.

use super::call::{Call, Check};
use super::ladder::Floor;
use super::snapshot::{Base, Half, Snapshot, TargetState};
use super::state::Rpc;
use super::volume::Volume;

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    Call(Call),
    Check(Check),
}

impl Volume {
    /// The next call or check. `None`: nothing is needed, or what is needed has to wait.
    pub(super) fn next(&self) -> Option<Next> {
        let call = match &self.suspect {
            None => self.wishes().into_iter().find(|call| !self.is_held_back(call))?,
            // An older call may still be running in the driver. Its repetition is the only call that cannot collide
            // with it, wanted or not.
            Some((call, _)) if self.is_held_back(call) => return None,
            Some((call, _)) => call.clone(),
        };
        if call.rpc == Rpc::NodeUnstageVolume && !self.unused {
            return Some(Next::Check(Check::Unused));
        }
        Some(Next::Call(call))
    }

    /// What leads to the goal, most urgent first, whether its time has come or not. Each of them is legal now.
    ///
    /// Down before up: a target that has to go may be what stands in the way of one that comes.
    pub(super) fn wishes(&self) -> Vec<Call> {
        let targets = &self.record.targets;
        let mut calls = Vec::new();
        for (consumer, target) in targets {
            let leaves = !target.wanted || self.is_going_down() || target.state == TargetState::NodeUnpublish;
            if leaves && target.state != TargetState::Absent {
                calls.push(Call::of_target(Rpc::NodeUnpublishVolume, consumer.clone()));
            }
        }
        calls.extend(self.shared_wish().map(Call::of_volume));
        let ready = Some(self.record.base) == self.ladder().top();
        if let Some(expansion) = self.record.expansion {
            let possible = match expansion.half {
                Half::Controller => !self.record.base.is_on_the_way(),
                Half::Node => self.is_node_half_possible(),
            };
            if possible {
                calls.push(Call::of_volume(expansion.half.rpc()));
            }
        }
        for (consumer, target) in targets {
            let arrives = matches!(
                target.state,
                TargetState::Absent | TargetState::NodePublish | TargetState::Republish
            );
            if ready && target.wanted && arrives {
                calls.push(Call::of_target(Rpc::NodePublishVolume, consumer.clone()));
            }
        }
        calls
    }

    /// What the shared part of the volume needs.
    fn shared_wish(&self) -> Option<Rpc> {
        let (ladder, base) = (self.ladder(), self.record.base);
        let up = match base {
            // The spec's rule: a downward call is repeated until it succeeds, whatever is wanted now.
            Base::ControllerUnpublish | Base::NodeUnstage => None,
            _ if self.is_wanted() => ladder.up(base),
            _ => None,
        };
        let stays = self.is_wanted() && (!base.is_on_the_way() || up.is_some());
        let leaves = (!stays || self.is_going_down()) && !self.is_occupied();
        up.or_else(|| leaves.then(|| ladder.down(base)).flatten())
    }

    /// Whether every target has to be unpublished, wanted or not.
    pub(super) fn is_going_down(&self) -> bool {
        matches!(self.record.base, Base::ControllerUnpublish | Base::NodeUnstage)
            || (self.floor == Floor::Awaited && !self.record.attached)
    }

    fn is_published(&self) -> bool {
        let published = |state| matches!(state, TargetState::Published | TargetState::Republish);
        self.record.targets.values().any(|target| published(target.state))
    }

    pub(super) fn is_held_back(&self, call: &Call) -> bool {
        self.backs_off(call) || self.never.contains(&call.rpc)
    }

    /// Whether a call that may still be running can be repeated as things are. If not, somebody took away what it needs.
    pub(super) fn is_repeatable(&self, call: &Call) -> bool {
        let Snapshot { base, targets, expansion, .. } = &self.record;
        let target = call.consumer.as_ref().and_then(|consumer| targets.get(consumer));
        let is_about = target.is_some_and(|target| target.state.rpc() == Some(call.rpc));
        let half = expansion.is_some_and(|expansion| expansion.half.rpc() == call.rpc);
        match call.rpc {
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume => {
                base.state().rpc() == Some(call.rpc) && self.ladder().up(*base) == Some(call.rpc)
            }
            Rpc::ControllerUnpublishVolume | Rpc::NodeUnstageVolume => {
                base.state().rpc() == Some(call.rpc) && !self.is_occupied()
            }
            Rpc::NodePublishVolume => is_about && Some(*base) == self.ladder().top(),
            Rpc::NodeUnpublishVolume => is_about,
            Rpc::ControllerExpandVolume => half,
            Rpc::NodeExpandVolume => half && self.is_node_half_possible(),
        }
    }

    fn is_node_half_possible(&self) -> bool {
        Some(self.record.base) == self.ladder().top() && (self.ladder().stages() || self.is_published())
    }

    /// Notes the intent of a call, before it is recorded and made.
    pub(super) fn intend(&mut self, call: &Call) {
        self.record.calling = Some(call.clone());
        match call.rpc {
            Rpc::ControllerPublishVolume => self.record.base = Base::ControllerPublish,
            Rpc::ControllerUnpublishVolume => self.record.base = Base::ControllerUnpublish,
            Rpc::NodeStageVolume => self.record.base = Base::NodeStage,
            Rpc::NodeUnstageVolume => self.record.base = Base::NodeUnstage,
            Rpc::NodePublishVolume | Rpc::NodeUnpublishVolume => {
                if let Some(target) = self.target(call)
                    && target.state.rpc() != Some(call.rpc)
                {
                    target.state = if call.rpc == Rpc::NodePublishVolume {
                        TargetState::NodePublish
                    } else {
                        TargetState::NodeUnpublish
                    };
                }
            }
            // The expansion was recorded when it was asked for.
            Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => {}
        }
    }
}
