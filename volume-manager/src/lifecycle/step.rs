//! The transition function.

use crate::ConsumerId;

use super::call::{Call, Part};
use super::event::{Completed, Effect, Event, LostMount, Waiter};
use super::outcome::Failure;
use super::snapshot::{Base, Snapshot, Target, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Attach, DriverCapabilities, InFlight, RecordState, Volume};

impl Volume {
    /// Handles an event and appends the resulting effects to `effects`.
    ///
    /// An event that does not apply, such as the end of a call that is not in flight, changes nothing.
    pub fn step(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let before = self.record.clone();
        match event {
            Event::Want(consumer) => self.want(consumer),
            Event::Release(consumer) => self.release(consumer, effects),
            Event::Expand { required_bytes } => self.expand(required_bytes, effects),
            Event::Republish(consumer) => self.republish(consumer),
            Event::Attached => self.attached(),
            Event::Detached => self.detached(),
            Event::Recorded(durable) => self.recorded(durable),
            Event::Finished { call, outcome } => self.finished(&call, outcome, effects),
            Event::MountLost(lost) => self.mount_lost(lost),
            Event::DriverRestarted(capabilities) => self.driver_restarted(capabilities),
            Event::Reconnected(capabilities) => self.reconnected(capabilities),
            Event::Rebooted => self.rebooted(),
            Event::Resume(call) => self.resume(&call),
            Event::Proceed if self.record_state == RecordState::Failed => {
                self.record_state = RecordState::Dirty;
            }
            Event::Proceed => {}
        }
        self.advance(&before, effects);
    }

    fn want(&mut self, consumer: ConsumerId) {
        let absent = Target { wanted: true, state: TargetState::Absent };
        self.record.targets.entry(consumer.clone()).or_insert(absent).wanted = true;
        self.released.remove(&consumer);
        self.waiters.insert(Waiter::Consumer(consumer));
    }

    fn release(&mut self, consumer: ConsumerId, effects: &mut Vec<Effect>) {
        self.waiters.remove(&Waiter::Consumer(consumer.clone()));
        if let Some(target) = self.record.targets.get_mut(&consumer) {
            target.wanted = false;
            let call = Call::of_target(Rpc::NodeUnpublishVolume, consumer.clone());
            if target.state != TargetState::Absent && self.never_retry.contains(&call.rpc) {
                let (waiter, failure) = (Waiter::Consumer(consumer), Failure::NeverRetry);
                effects.push(Effect::Failed { waiter, call, failure });
            }
        } else if !self.released.contains(&consumer) {
            effects.push(Effect::Completed(Completed::Released(consumer)));
        }
    }

    fn republish(&mut self, consumer: ConsumerId) {
        let ready = self.is_ready();
        if let Some(target) = self.record.targets.get_mut(&consumer)
            && ready
            && target.wanted
            && target.state == TargetState::Published
        {
            target.state = TargetState::Republish;
        }
    }

    fn attached(&mut self) {
        if self.attach == Attach::Awaited {
            self.record.attached = true;
            self.normalize_base();
        }
    }

    fn detached(&mut self) {
        if self.attach == Attach::Awaited {
            self.record.attached = false;
            self.confirm_teardown();
            self.record.base = match self.record.base {
                Base::VolReady | Base::NodeStage if !self.record.attached_here => Base::NodeUnstage,
                base => base,
            };
            self.normalize_base();
        }
    }

    /// Keeps a pending teardown: the mount has changed, so the teardown is needed whether its call was sent or not.
    fn confirm_teardown(&mut self) {
        self.unsent_intent.take_if(|unsent_intent| unsent_intent.call.rpc.direction() == Direction::Down);
    }

    fn recorded(&mut self, durable: bool) {
        if let RecordState::Writing { dirty } = self.record_state {
            self.record_state = match (durable, dirty) {
                (true, false) => RecordState::Clean,
                (true, true) => RecordState::Dirty,
                (false, _) => RecordState::Failed,
            };
        }
    }

    /// Tears down the lost mount in the permitted order, so that the driver releases its resources, and sets the mount
    /// up again for the consumers that want it.
    fn mount_lost(&mut self, lost: LostMount) {
        self.confirm_teardown();
        match lost {
            LostMount::Staging if self.record.base == Base::VolReady => {
                self.record.base = Base::NodeUnstage;
                let wanted = self.record.targets.iter().filter(|(_, target)| target.wanted);
                self.waiters.extend(wanted.map(|(consumer, _)| Waiter::Consumer(consumer.clone())));
            }
            LostMount::Staging => {}
            LostMount::Target(consumer) => {
                if let Some(target) = self.record.targets.get_mut(&consumer)
                    && matches!(target.state, TargetState::Published | TargetState::Republish)
                {
                    target.state = TargetState::NodeUnpublish;
                    if target.wanted {
                        self.waiters.insert(Waiter::Consumer(consumer));
                    }
                }
            }
        }
    }

    fn reconnected(&mut self, capabilities: DriverCapabilities) {
        self.capabilities = capabilities;
        self.normalize_base();
        self.never_retry.clear();
    }

    fn driver_restarted(&mut self, capabilities: DriverCapabilities) {
        self.reconnected(capabilities);
        self.uncertain_calls.clear();
        self.failed_calls.clear();
        if let Some(running) = &mut self.in_flight {
            running.driver_restarted = true;
        }
    }

    /// Resets the state after a boot, which removed all mounts. Targets that are wanted start again from absent. For
    /// targets that are not wanted, the spec still requires one successful unpublish for each target, and one unstage,
    /// before a detach.
    ///
    /// The record is written even if nothing changed, so that it contains the current boot id before any call.
    /// Otherwise the next process would treat the mounts of this boot as lost too.
    fn rebooted(&mut self) {
        if matches!(self.record_state, RecordState::Clean) {
            self.record_state = RecordState::Dirty;
        }
        (self.in_flight, self.unsent_intent) = (None, None);
        self.uncertain_calls.clear();
        self.failed_calls.clear();
        for (consumer, target) in &mut self.record.targets {
            if target.wanted {
                target.state = TargetState::Absent;
                self.waiters.insert(Waiter::Consumer(consumer.clone()));
            } else if target.state != TargetState::Absent {
                target.state = TargetState::NodeUnpublish;
            }
        }
        if matches!(self.record.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady) {
            self.record.base = if self.is_wanted() { self.base_after_unstage() } else { Base::NodeUnstage };
        }
    }

    fn resume(&mut self, call: &Call) {
        if let Some(failed) = self.failed_calls.get_mut(&call.part())
            && failed.call == *call
        {
            failed.backing_off = false;
        }
    }

    /// Selects the next call, and sends a call whose intent is on disk.
    fn advance(&mut self, before: &Snapshot, effects: &mut Vec<Effect>) {
        // While a record is being written, no new intent is set: the decision may be obsolete when the write is done.
        let may_set_intent =
            self.in_flight.is_none() && matches!(self.record_state, RecordState::Clean | RecordState::Dirty);
        if may_set_intent {
            // An unsent intent is reconsidered, so that a call that was never made is not undone.
            self.undo_unsent_intent();
        }
        self.drop_released_targets();
        self.advance_expansion(effects);
        let mut uncertain_calls = std::mem::take(&mut self.uncertain_calls);
        uncertain_calls.retain(|call| self.is_repeatable(call));
        self.uncertain_calls = uncertain_calls;
        let next = if may_set_intent { self.next() } else { None };
        if let Some(call) = &next {
            self.set_intent(call);
        }
        if self.record != *before {
            self.record_state = match self.record_state {
                RecordState::Clean | RecordState::Dirty => RecordState::Dirty,
                RecordState::Writing { .. } => RecordState::Writing { dirty: true },
                RecordState::Failed => RecordState::Failed,
            };
        }
        match self.record_state {
            RecordState::Clean => {}
            RecordState::Dirty => {
                self.record_state = RecordState::Writing { dirty: false };
                return effects.push(Effect::Record);
            }
            RecordState::Writing { .. } | RecordState::Failed => return,
        }
        self.notify_waiters(effects);
        match next {
            Some(call) => {
                let required_bytes = self.record.expansion.map_or(0, |expansion| expansion.required_bytes);
                self.in_flight =
                    Some(InFlight { call: call.clone(), driver_restarted: false, required_bytes });
                effects.push(Effect::Call(call));
            }
            None if self.in_flight.is_none() && self.is_removable() => effects.push(Effect::Forget),
            None => {}
        }
    }

    /// Removes released targets that are absent.
    fn drop_released_targets(&mut self) {
        let (released, failed_calls) = (&mut self.released, &mut self.failed_calls);
        self.record.targets.retain(|consumer, target| {
            let stays = target.wanted || target.state != TargetState::Absent;
            if !stays {
                failed_calls.remove(&Part::Target(consumer.clone()));
                released.insert(consumer.clone());
            }
            stays
        });
    }

    fn is_removable(&self) -> bool {
        self.record.targets.is_empty()
            && self.record.base == self.lowest_base()
            && !self.record.attached_here
            && self.record.expansion.is_none()
    }

    /// Notifies waiters whose result is on disk, and those that depend on a call that this driver does not support.
    fn notify_waiters(&mut self, effects: &mut Vec<Effect>) {
        let released = std::mem::take(&mut self.released);
        effects.extend(released.into_iter().map(|consumer| Effect::Completed(Completed::Released(consumer))));
        let record = &self.record;
        let tearing_down = self.is_tearing_down();
        // A published target that must be torn down first, for example above a lost staging mount, does not complete a
        // request.
        let completed = |waiter: &Waiter| match waiter {
            Waiter::Consumer(consumer) => record
                .targets
                .get(consumer)
                .filter(|target| target.wanted && target.state.is_published() && !tearing_down)
                .map(|_| Completed::Published(consumer.clone())),
            Waiter::Expansion if record.expansion.is_some() => None,
            Waiter::Expansion => Some(Completed::Expanded { capacity_bytes: record.capacity_bytes }),
        };
        effects.extend(self.waiters.iter().filter_map(completed).map(Effect::Completed));
        let remaining = self.waiters.iter().filter(|waiter| completed(waiter).is_none()).cloned().collect();
        self.waiters = remaining;
        if self.never_retry.is_empty() {
            return;
        }
        for call in self.candidate_calls().into_iter().filter(|call| !call.rpc.expands()) {
            if self.never_retry.contains(&call.rpc) {
                self.fail_waiters(&call, Failure::NeverRetry, effects);
            }
        }
    }

    /// Fails the waiters of a call that will not be made.
    fn fail_waiters(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        for waiter in self.waiters_for(call) {
            if self.waiters.remove(&waiter) {
                effects.push(Effect::Failed { waiter, call: call.clone(), failure });
            }
        }
    }

    /// Returns the waiters that depend on the success of this call.
    pub(super) fn waiters_for(&self, call: &Call) -> Vec<Waiter> {
        let consumer_waiter = || call.consumer.clone().map(Waiter::Consumer);
        let waits = |waiter: &Waiter| self.waiters.contains(waiter);
        match call.rpc {
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume => {
                let consumers = self.waiters.iter().filter(|waiter| **waiter != Waiter::Expansion);
                consumers.cloned().collect()
            }
            // A published target stays published even if the repeated publish fails.
            Rpc::NodePublishVolume => {
                let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
                let published = target.is_some_and(|target| target.state.is_published());
                consumer_waiter().into_iter().filter(|waiter| waits(waiter) && !published).collect()
            }
            Rpc::NodeUnpublishVolume => consumer_waiter().into_iter().collect(),
            Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => {
                [Waiter::Expansion].into_iter().filter(waits).collect()
            }
            Rpc::ControllerUnpublishVolume | Rpc::NodeUnstageVolume => Vec::new(),
        }
    }
}
