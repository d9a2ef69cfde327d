//! What a volume needs next, and whether it may have it now.

use super::call::Call;
use super::snapshot::{Base, Half, Snapshot, TargetState};
use super::state::{Direction, Rpc};
use super::transitions::{next_target, shared_during, target_during};
use super::volume::{Attach, Unsent, Volume};

impl Volume {
    /// The next call. `None`: nothing is needed, or what is needed has to wait.
    pub(super) fn next(&self) -> Option<Call> {
        match self.suspect() {
            None => self.wishes().into_iter().find(|call| !self.is_held_back(call)),
            // An older call may still be running in the driver. Its repetition is the only call that cannot collide
            // with it, wanted or not.
            Some(call) if self.backs_off(call) || self.never.contains(&call.rpc) => None,
            Some(call) => Some(call.clone()),
        }
    }

    /// What leads to the goal, most urgent first, whether its time has come or not. Each of them is legal now.
    ///
    /// Down before up: a target that has to go may be what stands in the way of one that comes. Expansions come last: none
    /// of them shall keep a volume from its consumers.
    pub(super) fn wishes(&self) -> Vec<Call> {
        let (goes_down, ready) = (self.is_going_down(), self.is_ready());
        let of_targets = |wanted: Rpc| {
            self.record.targets.iter().filter_map(move |(consumer, target)| {
                let up = ready.then_some(Direction::Up);
                let direction = if goes_down || !target.wanted { Some(Direction::Down) } else { up };
                let rpc = next_target(*target, direction).filter(|rpc| *rpc == wanted)?;
                Some(Call::of_target(rpc, consumer.clone()))
            })
        };
        let mut calls: Vec<_> = of_targets(Rpc::NodeUnpublishVolume).collect();
        calls.extend(self.shared_wish().map(Call::of_volume));
        calls.extend(of_targets(Rpc::NodePublishVolume));
        calls.extend(self.expansion_wish());
        calls
    }

    fn expansion_wish(&self) -> Option<Call> {
        let half = self.record.expansion?.half;
        let call = Call::of_volume(half.rpc());
        let possible = match half {
            Half::Controller => self.may_be_running(&call) || !self.record.base.is_on_the_way(),
            Half::Node => self.is_node_half_possible(),
        };
        possible.then_some(call)
    }

    /// What the shared part of the volume needs.
    fn shared_wish(&self) -> Option<Rpc> {
        let base = self.record.base;
        // Nothing is built under those who live there.
        let builds = self.is_wanted() && !self.is_ready();
        let up = if builds { self.next_shared(base, Direction::Up) } else { None };
        let stays = self.is_wanted() && (self.is_ready() || up.is_some());
        let leaves = (!stays || self.is_going_down()) && !self.is_occupied();
        up.or_else(|| if leaves { self.next_shared(base, Direction::Down) } else { None })
    }

    /// Whether every target has to be unpublished, wanted or not.
    pub(super) fn is_going_down(&self) -> bool {
        matches!(self.record.base, Base::ControllerUnpublish | Base::NodeUnstage)
            || (self.attach == Attach::Awaited && !self.record.attached && !self.record.attached_here)
    }

    fn is_published(&self) -> bool {
        self.record.targets.values().any(|target| target.state.is_published())
    }

    pub(super) fn is_held_back(&self, call: &Call) -> bool {
        let attach = matches!(call.rpc, Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume);
        let grows = attach && self.suspects.iter().any(Call::is_growth);
        self.backs_off(call) || self.never.contains(&call.rpc) || grows
    }

    /// Whether a call that may still be running can be repeated as things are. If not, somebody took away what it needs.
    pub(super) fn is_repeatable(&self, call: &Call) -> bool {
        let Snapshot { base, targets, expansion, .. } = &self.record;
        let target = call.consumer.as_ref().and_then(|consumer| targets.get(consumer));
        let is_about = target.is_some_and(|target| target.state.rpc() == Some(call.rpc));
        let half = expansion.is_some_and(|expansion| expansion.half.rpc() == call.rpc);
        match call.rpc {
            Rpc::ControllerPublishVolume => base.state().rpc() == Some(call.rpc),
            Rpc::NodeStageVolume => base.state().rpc() == Some(call.rpc) && self.top().is_some(),
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
        self.record.attached_here |= call.rpc == Rpc::ControllerPublishVolume;
        self.record.base = shared_during(call.rpc).unwrap_or(self.record.base);
        if let Some(target) = self.target(call) {
            target.state = target_during(call.rpc, target.state);
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
