//! What a volume needs next, and whether it may have it now.

use super::call::{Call, Check};
use super::ladder::Attach;
use super::snapshot::{Base, Half, Snapshot, TargetState};
use super::state::Rpc;
use super::volume::{Unsent, Volume};

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
            Some(call) if self.backs_off(call) || self.never.contains(&call.rpc) => return None,
            Some(call) => call.clone(),
        };
        if call.rpc == Rpc::NodeUnstageVolume && !self.unused {
            return Some(Next::Check(Check::Unused));
        }
        Some(Next::Call(call))
    }

    /// What leads to the goal, most urgent first, whether its time has come or not. Each of them is legal now.
    ///
    /// Down before up: a target that has to go may be what stands in the way of one that comes. Expansions come last: none
    /// of them shall keep a volume from its consumers.
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
        let ready = self.is_ready();
        for (consumer, target) in targets {
            let arrives = matches!(
                target.state,
                TargetState::Absent | TargetState::NodePublish | TargetState::Republish
            );
            if ready && target.wanted && arrives {
                calls.push(Call::of_target(Rpc::NodePublishVolume, consumer.clone()));
            }
        }
        if let Some(expansion) = self.record.expansion {
            let possible = match expansion.half {
                Half::Controller => self.growing || !self.record.base.is_on_the_way(),
                Half::Node => self.is_node_half_possible(),
            };
            if possible {
                calls.push(Call::of_volume(expansion.half.rpc()));
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
            // Nothing is built under those who live there.
            _ if self.is_wanted() && !self.is_ready() => ladder.up(base),
            _ => None,
        };
        let stays = self.is_wanted() && (self.is_ready() || up.is_some());
        let leaves = (!stays || self.is_going_down()) && !self.is_occupied();
        up.or_else(|| leaves.then(|| ladder.down(base)).flatten())
    }

    /// Whether every target has to be unpublished, wanted or not.
    pub(super) fn is_going_down(&self) -> bool {
        matches!(self.record.base, Base::ControllerUnpublish | Base::NodeUnstage)
            || (self.attach == Attach::Awaited && !self.record.attached && !self.record.attached_here)
    }

    fn is_published(&self) -> bool {
        let published = |state| matches!(state, TargetState::Published | TargetState::Republish);
        self.record.targets.values().any(|target| published(target.state))
    }

    pub(super) fn is_held_back(&self, call: &Call) -> bool {
        let attach = matches!(call.rpc, Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume);
        self.backs_off(call) || self.never.contains(&call.rpc) || (self.growing && attach)
    }

    /// Whether a call that may still be running can be repeated as things are. If not, somebody took away what it needs.
    pub(super) fn is_repeatable(&self, call: &Call) -> bool {
        let Snapshot { base, targets, expansion, .. } = &self.record;
        let target = call.consumer.as_ref().and_then(|consumer| targets.get(consumer));
        let is_about = target.is_some_and(|target| target.state.rpc() == Some(call.rpc));
        let half = expansion.is_some_and(|expansion| expansion.half.rpc() == call.rpc);
        match call.rpc {
            Rpc::ControllerPublishVolume => base.state().rpc() == Some(call.rpc),
            Rpc::NodeStageVolume => base.state().rpc() == Some(call.rpc) && self.ladder().top().is_some(),
            Rpc::ControllerUnpublishVolume | Rpc::NodeUnstageVolume => {
                base.state().rpc() == Some(call.rpc) && !self.is_occupied()
            }
            Rpc::NodePublishVolume => is_about && self.is_ready() && !self.is_going_down(),
            Rpc::NodeUnpublishVolume => is_about,
            Rpc::ControllerExpandVolume => half,
            Rpc::NodeExpandVolume => half && self.is_node_half_possible(),
        }
    }

    fn is_node_half_possible(&self) -> bool {
        self.is_ready() && (self.record.base == Base::VolReady || self.is_published())
    }

    /// Notes the intent of a call, before it is recorded and made.
    pub(super) fn intend(&mut self, call: &Call) {
        let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
        let before = Unsent {
            call: call.clone(),
            base: self.record.base,
            attached_here: self.record.attached_here,
            target: target.map(|target| target.state),
        };
        self.record.calling = Some(call.clone());
        match call.rpc {
            Rpc::ControllerPublishVolume => {
                self.record.base = Base::ControllerPublish;
                self.record.attached_here = true;
            }
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
        let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
        let moved = before.base != self.record.base || before.target != target.map(|target| target.state);
        self.unsent = moved.then_some(before);
    }

    /// Takes back what was intended with a call that was not sent, unless something else has happened to it since.
    pub(super) fn take_back(&mut self) {
        let Some(Unsent { call, base, attached_here, target: before }) = self.unsent.take() else { return };
        if self.record.calling.as_ref() == Some(&call) {
            self.record.calling = None;
        }
        if let (Some(target), Some(before)) = (self.target(&call), before) {
            if target.state.rpc() == Some(call.rpc) && target.state != TargetState::Republish {
                target.state = before;
            }
        } else if self.record.base.state().rpc() == Some(call.rpc) {
            self.record.base = base;
            self.record.attached_here = attached_here;
            self.fit_base();
        }
    }
}
