//! The transition function.

use crate::ConsumerId;

use super::call::{Call, Part};
use super::event::{Effect, Event, Lost, Reached, Waiter};
use super::outcome::Failure;
use super::snapshot::{Base, Snapshot, Target, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Attach, DriverCapabilities, InFlight, Journal, Volume};

impl Volume {
    /// The one transition: takes what happened, and adds what to do to `effects`.
    ///
    /// An event that does not fit, such as the end of a call that is not under way, changes nothing.
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
            Event::Lost(lost) => self.lost(lost),
            Event::NewGeneration(capabilities) => self.new_generation(capabilities),
            Event::Reconnected(capabilities) => self.reconnected(capabilities),
            Event::Rebooted => self.rebooted(),
            Event::Resume(call) => self.resume(&call),
            Event::Proceed if self.journal == Journal::Failed => self.journal = Journal::Behind,
            Event::Proceed => {}
        }
        self.settle(&before, effects);
    }

    fn want(&mut self, consumer: ConsumerId) {
        let absent = Target { wanted: true, state: TargetState::Absent };
        self.record.targets.entry(consumer.clone()).or_insert(absent).wanted = true;
        self.released.remove(&consumer);
        self.waiting.insert(Waiter::Consumer(consumer));
    }

    fn release(&mut self, consumer: ConsumerId, effects: &mut Vec<Effect>) {
        self.waiting.remove(&Waiter::Consumer(consumer.clone()));
        if let Some(target) = self.record.targets.get_mut(&consumer) {
            target.wanted = false;
            let call = Call::of_target(Rpc::NodeUnpublishVolume, consumer.clone());
            if target.state != TargetState::Absent && self.never.contains(&call.rpc) {
                let (waiter, failure) = (Waiter::Consumer(consumer), Failure::NeverRetry);
                effects.push(Effect::Failed { waiter, call, failure });
            }
        } else if !self.released.contains(&consumer) {
            effects.push(Effect::Reached(Reached::Released(consumer)));
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
            self.fit_base();
        }
    }

    fn detached(&mut self) {
        if self.attach == Attach::Awaited {
            self.record.attached = false;
            self.keeps_going_down();
            self.record.base = match self.record.base {
                Base::VolReady | Base::NodeStage if !self.record.attached_here => Base::NodeUnstage,
                base => base,
            };
            self.fit_base();
        }
    }

    /// What was about to be taken down is not what it was any more, so it has to be, sent or not.
    fn keeps_going_down(&mut self) {
        self.unsent.take_if(|unsent| unsent.call.rpc.direction() == Direction::Down);
    }

    fn recorded(&mut self, durable: bool) {
        if let Journal::Writing { behind } = self.journal {
            self.journal = match (durable, behind) {
                (true, false) => Journal::Clean,
                (true, true) => Journal::Behind,
                (false, _) => Journal::Failed,
            };
        }
    }

    /// What was mounted is taken down in the legal order, so that the driver drops what it holds, and is then built up
    /// again for those who want it.
    fn lost(&mut self, lost: Lost) {
        self.keeps_going_down();
        match lost {
            Lost::Staging if self.record.base == Base::VolReady => {
                self.record.base = Base::NodeUnstage;
                let wanted = self.record.targets.iter().filter(|(_, target)| target.wanted);
                self.waiting.extend(wanted.map(|(consumer, _)| Waiter::Consumer(consumer.clone())));
            }
            Lost::Staging => {}
            Lost::Target(consumer) => {
                if let Some(target) = self.record.targets.get_mut(&consumer)
                    && matches!(target.state, TargetState::Published | TargetState::Republish)
                {
                    target.state = TargetState::NodeUnpublish;
                    if target.wanted {
                        self.waiting.insert(Waiter::Consumer(consumer));
                    }
                }
            }
        }
    }

    fn reconnected(&mut self, capabilities: DriverCapabilities) {
        self.capabilities = capabilities;
        self.fit_base();
        self.never.clear();
    }

    fn new_generation(&mut self, capabilities: DriverCapabilities) {
        self.reconnected(capabilities);
        self.suspects.clear();
        self.troubles.clear();
        if let Some(running) = &mut self.in_flight {
            running.orphaned = true;
        }
    }

    /// The mounts are gone. For those who want the volume it is as if they had never been; for those who do not, the
    /// spec still demands one unpublish that succeeds for each target, and one unstage, before a detach.
    ///
    /// It is recorded even if nothing changes, so that the caller's record says which boot it is of before a call is made:
    /// else the next process would take this boot's mounts for gone as well.
    fn rebooted(&mut self) {
        if matches!(self.journal, Journal::Clean) {
            self.journal = Journal::Behind;
        }
        (self.in_flight, self.unsent) = (None, None);
        self.suspects.clear();
        self.troubles.clear();
        for (consumer, target) in &mut self.record.targets {
            if target.wanted {
                target.state = TargetState::Absent;
                self.waiting.insert(Waiter::Consumer(consumer.clone()));
            } else if target.state != TargetState::Absent {
                target.state = TargetState::NodeUnpublish;
            }
        }
        if matches!(self.record.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady) {
            self.record.base = if self.is_wanted() { self.unstaged() } else { Base::NodeUnstage };
        }
    }

    fn resume(&mut self, call: &Call) {
        if let Some(trouble) = self.troubles.get_mut(&call.part())
            && trouble.call == *call
        {
            trouble.waits = false;
        }
    }

    /// Decides what comes next, and sends what the disk has the intent of.
    fn settle(&mut self, before: &Snapshot, effects: &mut Vec<Effect>) {
        // While a record is being written nothing new is intended: what is decided then may be obsolete when it is done.
        let decides = self.in_flight.is_none() && matches!(self.journal, Journal::Clean | Journal::Behind);
        if decides {
            // What was intended and not sent is decided again, so that nothing is undone that was never done.
            self.take_back();
        }
        self.sweep();
        self.sweep_expansion(effects);
        let mut suspects = std::mem::take(&mut self.suspects);
        suspects.retain(|call| self.is_repeatable(call));
        self.suspects = suspects;
        let next = if decides { self.next() } else { None };
        if let Some(call) = &next {
            self.intend(call);
        }
        if self.record != *before {
            self.journal = match self.journal {
                Journal::Clean | Journal::Behind => Journal::Behind,
                Journal::Writing { .. } => Journal::Writing { behind: true },
                Journal::Failed => Journal::Failed,
            };
        }
        match self.journal {
            Journal::Clean => {}
            Journal::Behind => {
                self.journal = Journal::Writing { behind: false };
                return effects.push(Effect::Record);
            }
            Journal::Writing { .. } | Journal::Failed => return,
        }
        self.tell(effects);
        match next {
            Some(call) => {
                let required_bytes = self.record.expansion.map_or(0, |expansion| expansion.required_bytes);
                self.in_flight = Some(InFlight { call: call.clone(), orphaned: false, required_bytes });
                effects.push(Effect::Call(call));
            }
            None if self.in_flight.is_none() && self.is_over() => effects.push(Effect::Forget),
            None => {}
        }
    }

    /// Drops the consumers that are done with the volume.
    fn sweep(&mut self) {
        let (released, troubles) = (&mut self.released, &mut self.troubles);
        self.record.targets.retain(|consumer, target| {
            let stays = target.wanted || target.state != TargetState::Absent;
            if !stays {
                troubles.remove(&Part::Target(consumer.clone()));
                released.insert(consumer.clone());
            }
            stays
        });
    }

    fn is_over(&self) -> bool {
        self.record.targets.is_empty()
            && self.record.base == self.floor()
            && !self.record.attached_here
            && self.record.expansion.is_none()
    }

    /// Tells those who wait what is reached and on disk, and what this driver may not be asked for.
    fn tell(&mut self, effects: &mut Vec<Effect>) {
        let released = std::mem::take(&mut self.released);
        effects.extend(released.into_iter().map(|consumer| Effect::Reached(Reached::Released(consumer))));
        let record = &self.record;
        let goes_down = self.is_going_down();
        // A published target that has to go down first, such as under a lost staging, is not what was asked for.
        let reached = |waiter: &Waiter| match waiter {
            Waiter::Consumer(consumer) => record
                .targets
                .get(consumer)
                .filter(|target| target.wanted && target.state.is_published() && !goes_down)
                .map(|_| Reached::Published(consumer.clone())),
            Waiter::Expansion if record.expansion.is_some() => None,
            Waiter::Expansion => Some(Reached::Expanded { capacity_bytes: record.capacity_bytes }),
        };
        effects.extend(self.waiting.iter().filter_map(reached).map(Effect::Reached));
        let still = self.waiting.iter().filter(|waiter| reached(waiter).is_none()).cloned().collect();
        self.waiting = still;
        if self.never.is_empty() {
            return;
        }
        for call in self.wishes().into_iter().filter(|call| !call.rpc.expands()) {
            if self.never.contains(&call.rpc) {
                self.give_up_waiting(&call, Failure::NeverRetry, effects);
            }
        }
    }

    /// Tells those who wait for a call that it will not be made.
    fn give_up_waiting(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        for waiter in self.waiting_for(call) {
            if self.waiting.remove(&waiter) {
                effects.push(Effect::Failed { waiter, call: call.clone(), failure });
            }
        }
    }

    /// Those who cannot be answered well before this call succeeds.
    pub(super) fn waiting_for(&self, call: &Call) -> Vec<Waiter> {
        let of_consumer = || call.consumer.clone().map(Waiter::Consumer);
        let waits = |waiter: &Waiter| self.waiting.contains(waiter);
        match call.rpc {
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume => {
                let consumers = self.waiting.iter().filter(|waiter| **waiter != Waiter::Expansion);
                consumers.cloned().collect()
            }
            // Whoever is published stays so whether the repeated publish fails or not.
            Rpc::NodePublishVolume => {
                let target = call.consumer.as_ref().and_then(|consumer| self.record.targets.get(consumer));
                let published = target.is_some_and(|target| target.state.is_published());
                of_consumer().into_iter().filter(|waiter| waits(waiter) && !published).collect()
            }
            Rpc::NodeUnpublishVolume => of_consumer().into_iter().collect(),
            Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => {
                [Waiter::Expansion].into_iter().filter(waits).collect()
            }
            Rpc::ControllerUnpublishVolume | Rpc::NodeUnstageVolume => Vec::new(),
        }
    }
}
