//! The transition function.

use crate::ConsumerId;

use super::call::{Call, Part};
use super::event::{Effect, Event, Lost, Reached, Refusal, Waiter};
use super::ladder::{Attach, DriverCapabilities};
use super::outcome::Failure;
use super::plan::Next;
use super::snapshot::{Base, Half, Target, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Activity, Journal, Volume};

/// The one transition: takes a volume and what happened, answers the volume as it then is and what to do.
///
/// An event that does not fit, such as the end of a call that is not under way, changes nothing.
#[must_use]
pub fn step(volume: &Volume, event: Event) -> (Volume, Vec<Effect>) {
    let (mut then, mut effects) = (volume.clone(), Vec::new());
    match event {
        Event::Want(consumer) => then.want(consumer, &mut effects),
        Event::Release(consumer) => then.release(consumer, &mut effects),
        Event::Expand { required_bytes } => then.expand(required_bytes, &mut effects),
        Event::Republish(consumer) => then.republish(consumer),
        Event::Attached => then.attached(),
        Event::Detached => then.detached(),
        Event::Recorded(durable) => then.recorded(durable),
        Event::Finished { call, outcome } => then.finished(&call, outcome, &mut effects),
        Event::Checked { check, finding } => then.checked(&check, finding, &mut effects),
        Event::Lost(lost) => then.lost(lost),
        Event::NewGeneration(capabilities) => then.new_generation(capabilities),
        Event::Reconnected(capabilities) => then.reconnected(capabilities),
        Event::Rebooted => then.rebooted(),
        Event::Resume(call) => then.resume(&call),
        Event::Proceed if then.journal == Journal::Failed => then.journal = Journal::Behind,
        Event::Proceed => {}
    }
    then.settle(volume, &mut effects);
    (then, effects)
}

impl Volume {
    fn want(&mut self, consumer: ConsumerId, effects: &mut Vec<Effect>) {
        let most = self.policy.max_consumers;
        if let Some(target) = self.record.targets.get_mut(&consumer) {
            target.wanted = true;
        } else if self.record.targets.len() >= usize::from(most) {
            return effects.push(Effect::Refused(Refusal::TooManyConsumers { consumer, most }));
        } else {
            let target = Target { wanted: true, state: TargetState::Absent };
            self.record.targets.insert(consumer.clone(), target);
        }
        self.released.remove(&consumer);
        self.waiting.insert(consumer);
    }

    fn release(&mut self, consumer: ConsumerId, effects: &mut Vec<Effect>) {
        self.waiting.remove(&consumer);
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
                self.waiting.extend(wanted.map(|(consumer, _)| consumer.clone()));
            }
            Lost::Staging => {}
            Lost::Target(consumer) => {
                if let Some(target) = self.record.targets.get_mut(&consumer)
                    && matches!(target.state, TargetState::Published | TargetState::Republish)
                {
                    target.state = TargetState::NodeUnpublish;
                    if target.wanted {
                        self.waiting.insert(consumer);
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
        (self.suspect, self.growing) = (None, false);
        self.troubles.clear();
        if let Activity::Call { orphaned, .. } = &mut self.activity {
            *orphaned = true;
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
        self.activity = Activity::Nothing;
        (self.suspect, self.growing, self.unsent) = (None, false, None);
        self.troubles.clear();
        for (consumer, target) in &mut self.record.targets {
            if target.wanted {
                target.state = TargetState::Absent;
                self.waiting.insert(consumer.clone());
            } else if target.state != TargetState::Absent {
                target.state = TargetState::NodeUnpublish;
            }
        }
        if matches!(self.record.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady) {
            self.record.base = if self.is_wanted() { self.ladder().unstaged() } else { Base::NodeUnstage };
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
    fn settle(&mut self, before: &Self, effects: &mut Vec<Effect>) {
        // While a record is being written nothing new is intended: what is decided then may be obsolete when it is done.
        let decides =
            self.activity == Activity::Nothing && matches!(self.journal, Journal::Clean | Journal::Behind);
        if decides {
            // What was intended and not sent is decided again, so that nothing is undone that was never done.
            self.take_back();
        }
        self.sweep();
        self.sweep_expansion(effects);
        self.suspect = self.suspect.take().filter(|call| self.is_repeatable(call));
        self.growing &= self.record.expansion.is_some_and(|expansion| expansion.half == Half::Controller);
        let next = if decides { self.next() } else { None };
        match &next {
            Some(Next::Call(call)) => {
                self.unused &= call.rpc == Rpc::NodeUnstageVolume;
                self.intend(call);
            }
            Some(Next::Check(_)) | None if decides => self.unused = false,
            Some(Next::Check(_)) | None => {}
        }
        if self.record != before.record {
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
            Some(Next::Call(call)) => {
                self.unused = false;
                self.activity = Activity::Call { call: call.clone(), orphaned: false, outgrown: false };
                effects.push(Effect::Call(call));
            }
            Some(Next::Check(check)) => {
                self.activity = Activity::Check(check.clone());
                effects.push(Effect::Check(check));
            }
            None if self.activity == Activity::Nothing && self.is_over() => effects.push(Effect::Forget),
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
            && self.record.base == self.ladder().floor()
            && !self.record.attached_here
            && self.record.expansion.is_none()
    }

    /// Tells those who wait what is reached and on disk, and what this driver may not be asked for.
    fn tell(&mut self, effects: &mut Vec<Effect>) {
        let released = std::mem::take(&mut self.released);
        effects.extend(released.into_iter().map(|consumer| Effect::Reached(Reached::Released(consumer))));
        let targets = &self.record.targets;
        let reached = |consumer: &ConsumerId| {
            targets.get(consumer).is_some_and(|target| target.wanted && target.state.is_published())
        };
        // A published target that has to go down first, such as under a lost staging, is not what was asked for.
        if !self.is_going_down() {
            let published: Vec<_> =
                self.waiting.iter().filter(|consumer| reached(consumer)).cloned().collect();
            for consumer in published {
                self.waiting.remove(&consumer);
                effects.push(Effect::Reached(Reached::Published(consumer)));
            }
        }
        if self.expanded && self.record.expansion.is_none() {
            self.expanded = false;
            effects.push(Effect::Reached(Reached::Expanded { capacity_bytes: self.record.capacity_bytes }));
        }
        if self.never.is_empty() {
            return;
        }
        for call in self.wishes() {
            if self.never.contains(&call.rpc) {
                self.give_up_waiting(&call, Failure::NeverRetry, effects);
            }
        }
    }

    /// Tells those who wait for a call that it will not be made.
    pub(super) fn give_up_waiting(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        for consumer in self.waiting_for(call) {
            if !self.waiting.remove(&consumer) {
                continue;
            }
            let waiter = Waiter::Consumer(consumer);
            effects.push(Effect::Failed { waiter, call: call.clone(), failure });
        }
    }

    /// The consumers that cannot be published, or released, before this call succeeds.
    pub(super) fn waiting_for(&self, call: &Call) -> Vec<ConsumerId> {
        let targets = &self.record.targets;
        match call.rpc {
            Rpc::ControllerPublishVolume | Rpc::NodeStageVolume => self.waiting.iter().cloned().collect(),
            // Whoever is published stays so whether the repeated publish fails or not.
            Rpc::NodePublishVolume => {
                let published = |consumer: &ConsumerId| {
                    targets.get(consumer).is_some_and(|target| target.state.is_published())
                };
                let waits = |consumer: &&ConsumerId| self.waiting.contains(*consumer) && !published(consumer);
                call.consumer.iter().filter(|consumer| waits(consumer)).cloned().collect()
            }
            Rpc::NodeUnpublishVolume => call.consumer.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }
}
