//! Selection of the next call of a volume.

use super::call::Call;
use super::snapshot::{Base, ExpansionPhase, Snapshot, TargetState};
use super::state::{Direction, Rpc};
use super::transitions::{base_during, next_target_call, target_during};
use super::volume::{Attach, UnsentIntent, Volume};

impl Volume {
    /// Returns the next call, or `None` if no call is needed or the call must wait.
    pub(super) fn next(&self) -> Option<Call> {
        match self.uncertain_call() {
            None => self.candidate_calls().into_iter().find(|call| !self.is_deferred(call)),
            // An earlier call may still be running in the driver. Only a repetition of the same call, needed or
            // not, cannot collide with it.
            Some(call) if self.is_backing_off(call) || self.never_retry.contains(&call.rpc) => None,
            Some(call) => Some(call.clone()),
        }
    }

    /// Returns the calls that lead to the goal, most urgent first, including those in back-off. Each call is permitted
    /// in the current state.
    ///
    /// Teardown precedes setup: a target to be removed may block another one. Expansions are last, so that they do not
    /// delay the consumers.
    pub(super) fn candidate_calls(&self) -> Vec<Call> {
        let (tearing_down, ready) = (self.is_tearing_down(), self.is_ready());
        let target_calls = |wanted: Rpc| {
            self.record.targets.iter().filter_map(move |(consumer, target)| {
                let up = ready.then_some(Direction::Up);
                let direction = if tearing_down || !target.wanted { Some(Direction::Down) } else { up };
                let rpc = next_target_call(*target, direction).filter(|rpc| *rpc == wanted)?;
                Some(Call::of_target(rpc, consumer.clone()))
            })
        };
        let mut calls: Vec<_> = target_calls(Rpc::NodeUnpublishVolume).collect();
        calls.extend(self.candidate_base_call().map(Call::of_volume));
        calls.extend(target_calls(Rpc::NodePublishVolume));
        calls.extend(self.candidate_expansion_call());
        calls
    }

    fn candidate_expansion_call(&self) -> Option<Call> {
        let phase = self.record.expansion?.phase;
        let call = Call::of_volume(phase.rpc());
        let possible = match phase {
            ExpansionPhase::Controller => self.may_be_running(&call) || !self.record.base.is_transitional(),
            ExpansionPhase::Node => self.can_expand_on_node(),
        };
        possible.then_some(call)
    }

    /// Returns the call that moves the base towards the goal.
    fn candidate_base_call(&self) -> Option<Rpc> {
        let base = self.record.base;
        // No attach or stage call is made below active targets.
        let builds = self.is_wanted() && !self.is_ready();
        let up = if builds { self.next_base_call(base, Direction::Up) } else { None };
        let stays = self.is_wanted() && (self.is_ready() || up.is_some());
        let leaves = (!stays || self.is_tearing_down()) && !self.has_mounted_targets();
        up.or_else(|| if leaves { self.next_base_call(base, Direction::Down) } else { None })
    }

    /// Returns whether every target must be unpublished, wanted or not.
    pub(super) fn is_tearing_down(&self) -> bool {
        matches!(self.record.base, Base::ControllerUnpublish | Base::NodeUnstage)
            || (self.attach == Attach::Awaited && !self.record.attached && !self.record.attached_here)
    }

    fn is_published(&self) -> bool {
        self.record.targets.values().any(|target| target.state.is_published())
    }

    pub(super) fn is_deferred(&self, call: &Call) -> bool {
        let attach = matches!(call.rpc, Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume);
        let delayed_by_expand = attach && self.uncertain_calls.iter().any(Call::is_controller_expand);
        self.is_backing_off(call) || self.never_retry.contains(&call.rpc) || delayed_by_expand
    }

    /// Returns whether an uncertain call can be repeated in the current state. A call whose precondition was removed
    /// meanwhile cannot be repeated.
    pub(super) fn is_repeatable(&self, call: &Call) -> bool {
        let Snapshot { base, targets, expansion, .. } = &self.record;
        let target = call.consumer.as_ref().and_then(|consumer| targets.get(consumer));
        let is_current_target = target.is_some_and(|target| target.state.rpc() == Some(call.rpc));
        let is_current_phase = expansion.is_some_and(|expansion| expansion.phase.rpc() == call.rpc);
        match call.rpc {
            Rpc::ControllerPublishVolume => base.state().rpc() == Some(call.rpc),
            Rpc::NodeStageVolume => base.state().rpc() == Some(call.rpc) && self.publish_base().is_some(),
            Rpc::ControllerUnpublishVolume | Rpc::NodeUnstageVolume => {
                base.state().rpc() == Some(call.rpc) && !self.has_mounted_targets()
            }
            Rpc::NodePublishVolume => is_current_target && self.is_ready() && !self.is_tearing_down(),
            Rpc::NodeUnpublishVolume => is_current_target,
            Rpc::ControllerExpandVolume => is_current_phase,
            Rpc::NodeExpandVolume => is_current_phase && self.can_expand_on_node(),
        }
    }

    fn can_expand_on_node(&self) -> bool {
        self.is_ready() && (self.record.base == Base::VolReady || self.is_published())
    }

    /// Sets the intent of a call, before the intent is recorded and the call is sent.
    pub(super) fn set_intent(&mut self, call: &Call) {
        let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
        let before = UnsentIntent {
            call: call.clone(),
            base: self.record.base,
            attached_here: self.record.attached_here,
            target: target.map(|target| target.state),
        };
        self.record.calling = Some(call.clone());
        self.record.attached_here |= call.rpc == Rpc::ControllerPublishVolume;
        self.record.base = base_during(call.rpc).unwrap_or(self.record.base);
        if let Some(target) = self.target(call) {
            target.state = target_during(call.rpc, target.state);
        }
        let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
        let changed = before.base != self.record.base || before.target != target.map(|target| target.state);
        self.unsent_intent = changed.then_some(before);
    }

    /// Undoes the intent of a call that was not sent, unless the state has changed since.
    pub(super) fn undo_unsent_intent(&mut self) {
        let Some(UnsentIntent { call, base, attached_here, target: before }) = self.unsent_intent.take()
        else {
            return;
        };
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
            self.normalize_base();
        }
    }
}
