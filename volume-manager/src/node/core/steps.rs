//! From the machine of one volume to actions.

use std::time::Duration;

use super::entry::{Life, Running, What, Wish};
use super::event::{Action, Answer, Inspect, LookOrder};
use super::timers::Alarm;
use super::{Node, Slot};
use crate::driver::{CapacityRange, MountPath, Operation, OwnershipChange};
use crate::lifecycle::{self, Call, Check, Effect, Event, Reached, Refusal, Rpc, Waiter};
use crate::name::ConsumerId;
use crate::node::change::ChangeKind;
use crate::node::desired::{GroupChange, Published};
use crate::node::error::{ExpandError, PublishError, UnpublishError};
use crate::node::explanation::{ErrorClass, LastError};

impl Node {
    /// Hands an event to a volume's machine, and does what it says. A volume that has no machine yet takes none.
    pub(super) fn feed(&mut self, slot: Slot, event: Event, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Life::Awake(volume) = &mut entry.life else { return };
        let (then, effects) = lifecycle::step(volume, event);
        **volume = then;
        // A volume that is over says so each time that it settles.
        if !effects.is_empty() {
            entry.forgotten = false;
        }
        self.note_state(slot, now);
        for effect in effects {
            self.perform(slot, effect, now);
        }
    }

    pub(super) fn note_state(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let (from, to) = (entry.state, entry.current_state());
        if from != to {
            let dwelt = now.saturating_sub(entry.since);
            entry.state = to;
            entry.since = now;
            self.tell(slot, ChangeKind::State { from, to, dwelt });
        }
    }

    fn perform(&mut self, slot: Slot, effect: Effect, now: Duration) {
        match effect {
            Effect::Record => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.recording = true;
                    self.commits.add(slot);
                }
            }
            Effect::Call(call) => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.wanted_call = Some(call);
                    self.wait_for_turn(slot, now);
                }
            }
            Effect::Check(check) => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.wanted_look = Some(check);
                    self.start_look(slot, now);
                }
            }
            Effect::BackOff { call, attempt, .. } => {
                // Volumes that fail together are not tried again together.
                let seed = self.settings.jitter_seed ^ slot.0;
                let wait = self.settings.back_off.wait(attempt, seed);
                self.timers.set(slot, Alarm::Resume(call), now.saturating_add(wait));
            }
            Effect::Reached(reached) => self.reached(slot, reached, now),
            Effect::Failed { waiter, call, failure } => self.failed(slot, &waiter, &call, failure),
            Effect::Refused(refusal) => self.refused(slot, &refusal),
            Effect::Forget => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.forgotten = true;
                    self.commits.add(slot);
                }
            }
        }
    }

    /// Begins the look that a volume waits for, if nothing of it runs.
    pub(super) fn start_look(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot).filter(|entry| entry.running.is_none()) else { return };
        let Some(check) = entry.wanted_look.take() else { return };
        let staging = entry.staging.as_path();
        let target = |call: &Call| {
            let consumer = entry.consumers.get(call.consumer.as_ref()?)?;
            Some(consumer.spec.target_path().as_path().to_owned())
        };
        let unmounted = Inspect::Unmounted;
        // The table has the mount of a device, and does not say that it is one.
        let published = if entry.spec.access().is_block() { Inspect::Always } else { unmounted };
        let (path, inspect, remove) = match &check {
            Check::Unused => (staging.to_owned(), Inspect::Never, Vec::new()),
            Check::After(call) => match call.rpc {
                Rpc::NodeUnstageVolume => {
                    let own = staging.parent().map(ToOwned::to_owned);
                    (staging.to_owned(), unmounted, [staging.to_owned()].into_iter().chain(own).collect())
                }
                Rpc::NodeUnpublishVolume => match target(call) {
                    Some(path) => (path.clone(), unmounted, vec![path]),
                    None => return,
                },
                Rpc::NodePublishVolume => match target(call) {
                    Some(path) => (path, published, Vec::new()),
                    None => return,
                },
                _ => (staging.to_owned(), unmounted, Vec::new()),
            },
        };
        let ticket = self.ticket(slot, None);
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.running = Some(Running { ticket, what: What::Look(check), since: now });
            self.actions.push(Action::Look(LookOrder { ticket, path, inspect, remove }));
        }
    }

    fn reached(&mut self, slot: Slot, reached: Reached, now: Duration) {
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.last_error = None;
        }
        match reached {
            Reached::Published(consumer) => {
                self.tell(slot, ChangeKind::Published(consumer.clone()));
                self.keep_watch(slot, now);
                if let Some(published) = self.published(slot, &consumer) {
                    let wish = Wish::Publish(consumer);
                    self.answer_wish(slot, &wish, || Answer::Published(Ok(published.clone())));
                }
            }
            Reached::Released(consumer) => {
                self.drop_consumer(slot, &consumer);
                self.answer_wish(slot, &Wish::Unpublish(consumer), || Answer::Unpublished(Ok(())));
            }
            Reached::Expanded { capacity_bytes } => {
                self.tell(slot, ChangeKind::Expanded(capacity_bytes));
                self.answer_if(slot, is_expansion, || Answer::Expanded(Ok(capacity_bytes)));
            }
        }
    }

    /// What a consumer that has the volume is told.
    pub(super) fn published(&self, slot: Slot, consumer: &ConsumerId) -> Option<Published> {
        let entry = self.volumes.get(&slot)?;
        let holder = entry.consumers.get(consumer)?;
        let driver = self.drivers.get(&entry.key.driver)?;
        let node = driver.facts.as_ref().map(|facts| facts.capabilities.node).unwrap_or_default();
        let group = match driver.policy.ownership_change(&entry.spec, &holder.spec, &node) {
            OwnershipChange::Nobody => GroupChange::NotWanted,
            OwnershipChange::Driver { group } => GroupChange::ByDriver { group },
            OwnershipChange::Caller { group } => GroupChange::LeftToCaller { group },
        };
        Some(Published { target_path: holder.spec.target_path().clone(), group })
    }

    fn failed(&mut self, slot: Slot, waiter: &Waiter, call: &Call, failure: lifecycle::Failure) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let key = entry.key.clone();
        let error = match &entry.last_error {
            Some(error) if error.rpc == call.rpc => error.clone(),
            // It was not even tried, such as a call that this driver does not have.
            _ => LastError {
                rpc: call.rpc,
                class: class_of(failure),
                code: None,
                message: failure.to_string(),
            },
        };
        match waiter {
            Waiter::Consumer(consumer) if call.rpc == Rpc::NodeUnpublishVolume => {
                let wish = Wish::Unpublish(consumer.clone());
                self.answer_wish(slot, &wish, || {
                    let (key, consumer, error) = (key.clone(), consumer.clone(), error.clone());
                    Answer::Unpublished(Err(UnpublishError::Failed { key, consumer, error }))
                });
            }
            Waiter::Consumer(consumer) => {
                let wish = Wish::Publish(consumer.clone());
                self.answer_wish(slot, &wish, || {
                    let (key, consumer, error) = (key.clone(), consumer.clone(), error.clone());
                    Answer::Published(Err(PublishError::Failed { key, consumer, error }))
                });
            }
            Waiter::Expansion => {
                self.answer_if(slot, is_expansion, || {
                    let (key, error) = (key.clone(), error.clone());
                    Answer::Expanded(Err(ExpandError::Failed { key, error }))
                });
            }
        }
    }

    fn refused(&mut self, slot: Slot, refusal: &Refusal) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let key = entry.key.clone();
        match refusal {
            Refusal::TooManyConsumers { consumer, most } => {
                let limit = usize::from(*most);
                self.answer_wish(slot, &Wish::Publish(consumer.clone()), || {
                    Answer::Published(Err(PublishError::TooManyConsumers { key: key.clone(), limit }))
                });
            }
            Refusal::Shrink { required_bytes, granted_bytes } => {
                let (asked, found) = (*required_bytes, *granted_bytes);
                // Others may wait for a larger size, which is still to come.
                self.answer_wish(slot, &Wish::Expand(asked), || {
                    Answer::Expanded(Err(ExpandError::Shrink { key: key.clone(), found, asked }))
                });
            }
            _ => self.answer_if(slot, is_expansion, || {
                Answer::Expanded(Err(ExpandError::Unsupported { driver: key.driver.clone() }))
            }),
        }
    }

    /// Answers everybody who waits for this.
    pub(super) fn answer_wish(&mut self, slot: Slot, wish: &Wish, answer: impl Fn() -> Answer) {
        self.answer_if(slot, |waits| waits == wish, answer);
    }

    fn answer_if(&mut self, slot: Slot, fits: impl Fn(&Wish) -> bool, answer: impl Fn() -> Answer) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        for (request, _) in entry.waiters.extract_if(.., |(_, waits)| fits(waits)) {
            self.actions.push(Action::Answer { request, answer: answer() });
        }
    }

    /// The call as its driver is asked for it. `None` if what it is about is gone.
    pub(super) fn operation(&self, slot: Slot, call: &Call) -> Option<Operation> {
        let entry = self.volumes.get(&slot)?;
        let staging_path = entry.staging.clone();
        let consumer = || entry.consumers.get(call.consumer.as_ref()?);
        let size = || CapacityRange::new(entry.snapshot().expansion?.required_bytes, None).ok();
        Some(match call.rpc {
            Rpc::ControllerPublishVolume => Operation::ControllerPublish,
            Rpc::ControllerUnpublishVolume => {
                Operation::ControllerUnpublish { node_id: entry.node_id.clone() }
            }
            Rpc::NodeStageVolume => Operation::NodeStage { staging_path },
            Rpc::NodeUnstageVolume => Operation::NodeUnstage { staging_path },
            Rpc::NodePublishVolume => {
                Operation::NodePublish { consumer: std::sync::Arc::clone(&consumer()?.spec), staging_path }
            }
            Rpc::NodeUnpublishVolume => {
                let target_path: MountPath = consumer()?.spec.target_path().clone();
                Operation::NodeUnpublish { target_path }
            }
            Rpc::ControllerExpandVolume => Operation::ControllerExpand { size: size()? },
            Rpc::NodeExpandVolume => {
                let volume_path = entry.volume_path().unwrap_or_else(|| staging_path.clone());
                Operation::NodeExpand { size: size()?, volume_path, staging_path }
            }
        })
    }
}

fn is_expansion(wish: &Wish) -> bool {
    matches!(wish, Wish::Expand(_))
}

/// The class of a failure as people are told it.
pub(super) fn class_of(failure: lifecycle::Failure) -> ErrorClass {
    use lifecycle::Failure;
    match failure {
        Failure::NeverRetry => ErrorClass::NeverRetry,
        Failure::Uncertain => ErrorClass::Uncertain,
        Failure::Contradicted(_) | Failure::Unchecked => ErrorClass::Contradicted,
        Failure::InUse | Failure::Abandoned => ErrorClass::Prevented,
        _ => ErrorClass::Final,
    }
}
