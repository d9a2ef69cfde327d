//! Effects of the lifecycle state machine as actions of the node.

use std::time::Duration;

use super::entry::{Waiters, Waiting};
use super::event::Action;
use super::timers::Alarm;
use super::{Node, Slot};
use crate::driver::{MountPath, Operation};
use crate::lifecycle::{Call, Completed, Effect, Event, Failure, RejectReason, Rpc, Waiter};
use crate::name::ConsumerId;
use crate::node::change::ChangeKind;
use crate::node::desired::Published;
use crate::node::error::{ExpandError, PublishError, UnpublishError};
use crate::node::explanation::CallFailure;

impl Node {
    /// Sends an event to a volume's state machine and performs its effects. The event is ignored if the volume has
    /// no state machine yet.
    pub(super) fn feed(&mut self, slot: Slot, event: Event, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(volume) = &mut entry.machine else { return };
        let mut effects = Vec::new();
        volume.step(event, &mut effects);
        if entry.record.snapshot != *volume.snapshot() {
            entry.record.snapshot.clone_from(volume.snapshot());
        }
        // A volume that can be removed repeats [`Effect::Forget`] after each event.
        if !effects.is_empty() {
            entry.progress.removable = false;
        }
        self.update_state(slot, now);
        for effect in effects {
            self.perform(slot, effect, now);
        }
    }

    pub(super) fn update_state(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let (from, to) = (entry.state, entry.current_state());
        if from != to {
            let time_in_state = now.saturating_sub(entry.since);
            entry.state = to;
            entry.since = now;
            self.notify(slot, ChangeKind::State { from, to, time_in_state });
        }
    }

    fn perform(&mut self, slot: Slot, effect: Effect, now: Duration) {
        match effect {
            Effect::Record => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.progress.recording = true;
                    self.commits.add(slot);
                }
            }
            Effect::Call(_) => self.enqueue(slot),
            Effect::BackOff { call, attempt, .. } => {
                // The seed spreads the retries of volumes that failed together.
                let seed = self.settings.jitter_seed ^ slot.0;
                let wait = self.settings.back_off.wait(attempt, seed);
                self.timers.set(slot, Alarm::Resume(call), now.saturating_add(wait));
            }
            Effect::Completed(completed) => self.completed(slot, completed, now),
            Effect::Failed { waiter, call, failure } => self.failed(slot, &waiter, &call, failure),
            Effect::Rejected(refusal) => self.refused(slot, &refusal),
            Effect::Forget => {
                if let Some(entry) = self.volumes.get_mut(&slot) {
                    entry.progress.removable = true;
                    self.commits.add(slot);
                }
            }
        }
    }

    fn completed(&mut self, slot: Slot, completed: Completed, now: Duration) {
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.record.last_error = None;
        }
        match completed {
            Completed::Published(consumer) => {
                self.notify(slot, ChangeKind::Published(consumer.clone()));
                self.arm_timers(slot, now);
                if let Some(published) = self.published(slot, &consumer) {
                    self.answer_all(
                        slot,
                        |waiters| &mut waiters.published,
                        |waits| *waits == consumer,
                        Ok(published),
                    );
                }
            }
            Completed::Released(consumer) => {
                self.drop_consumer(slot, &consumer);
                self.answer_all(slot, |waiters| &mut waiters.unpublished, |waits| *waits == consumer, Ok(()));
            }
            Completed::Expanded { capacity_bytes } => {
                self.notify(slot, ChangeKind::Expanded(capacity_bytes));
                self.answer_all(slot, |waiters| &mut waiters.expanded, |_| true, Ok(capacity_bytes));
            }
        }
    }

    /// Returns the answer to a publish request.
    pub(super) fn published(&self, slot: Slot, consumer: &ConsumerId) -> Option<Published> {
        let entry = self.volumes.get(&slot)?;
        let holder = entry.record.consumers.get(consumer)?;
        let driver = self.drivers.get(&entry.key.driver)?;
        let node = driver.facts.as_ref().map(|facts| facts.capabilities.node).unwrap_or_default();
        let group = driver.policy.ownership_change(&entry.record.spec, &holder.spec, &node);
        Some(Published { target_path: holder.spec.target_path().clone(), group })
    }

    fn failed(&mut self, slot: Slot, waiter: &Waiter, call: &Call, failure: Failure) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let key = entry.key.clone();
        let error = match &entry.record.last_error {
            Some(error) if error.rpc == call.rpc => error.clone(),
            // The call was not made, for example because the driver does not support it.
            _ => CallFailure { rpc: call.rpc, class: failure, code: None, message: failure.to_string() },
        };
        match waiter {
            Waiter::Consumer(consumer) if call.rpc == Rpc::NodeUnpublishVolume => {
                let failed = UnpublishError::Failed { key, consumer: consumer.clone(), error };
                self.answer_all(
                    slot,
                    |waiters| &mut waiters.unpublished,
                    |waits| waits == consumer,
                    Err(failed),
                );
            }
            Waiter::Consumer(consumer) => {
                let failed = PublishError::Failed { key, consumer: consumer.clone(), error };
                self.answer_all(
                    slot,
                    |waiters| &mut waiters.published,
                    |waits| waits == consumer,
                    Err(failed),
                );
            }
            Waiter::Expansion => {
                let failed = ExpandError::Failed { key, error };
                self.answer_all(slot, |waiters| &mut waiters.expanded, |_| true, Err(failed));
            }
        }
    }

    fn refused(&mut self, slot: Slot, refusal: &RejectReason) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let key = entry.key.clone();
        match refusal {
            RejectReason::Shrink { required_bytes: asked, granted_bytes: found } => {
                let refused = ExpandError::Shrink { key, found: *found, asked: *asked };
                // Other waiters may expect a larger size, which is still pending.
                self.answer_all(slot, |waiters| &mut waiters.expanded, |waits| waits == asked, Err(refused));
            }
            RejectReason::CannotExpand => {
                let refused = ExpandError::Unsupported { driver: key.driver };
                self.answer_all(slot, |waiters| &mut waiters.expanded, |_| true, Err(refused));
            }
        }
    }

    /// Replies to all matching waiters.
    pub(super) fn answer_all<K, T: Clone + Send + 'static>(
        &mut self,
        slot: Slot,
        waiting: impl FnOnce(&mut Waiters) -> &mut Waiting<K, T>,
        fits: impl Fn(&K) -> bool,
        answer: T,
    ) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        for (_, reply) in waiting(&mut entry.waiters).extract_if(.., |(waits, _)| fits(waits)) {
            self.actions.push(Action::Answer(reply.into_answer(answer.clone())));
        }
    }

    /// Returns the operation of a call, or `None` if its consumer was removed.
    pub(super) fn operation(&self, slot: Slot, call: &Call) -> Option<Operation> {
        let entry = self.volumes.get(&slot)?;
        let staging_path = entry.staging.clone();
        let consumer = || entry.record.consumers.get(call.consumer.as_ref()?);
        let required_bytes = entry.snapshot().expansion.map_or(0, |expansion| expansion.required_bytes);
        Some(match call.rpc {
            Rpc::ControllerPublishVolume => Operation::ControllerPublish,
            Rpc::ControllerUnpublishVolume => {
                Operation::ControllerUnpublish { node_id: entry.record.node_id.clone() }
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
            Rpc::ControllerExpandVolume => Operation::ControllerExpand { required_bytes },
            Rpc::NodeExpandVolume => {
                let volume_path = entry.volume_path().unwrap_or_else(|| staging_path.clone());
                Operation::NodeExpand { required_bytes, volume_path, staging_path }
            }
        })
    }
}
