//! Jobs: when they begin, and what their ends mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Job, What};
use super::event::{Action, CallOrder, Inspect, Look, LookError, Query, Sight};
use super::findings::{self, Found, Unfit, Wanted};
use super::{Node, Slot};
use crate::driver::{CallError, CallOutcome, Operation, VolumeSpec};
use crate::excerpt::chain;
use crate::lifecycle::{Call, Event as Lifecycle, Failure, Mismatch, Outcome, Rpc, outcome_of};
use crate::node::change::ChangeKind;
use crate::node::error::{InspectError, bounded};
use crate::node::explanation::CallFailure;
use crate::store::MAX_PAYLOAD_BYTES;

impl Node {
    /// Puts a volume in its driver's line, if it has something to ask and nothing of it runs.
    pub(super) fn wait_for_turn(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let asks = entry.awaited_call().is_some() || !entry.queries.is_empty();
        if asks
            && entry.job.is_none()
            && let Some(driver) = self.drivers.get_mut(&entry.key.driver)
        {
            driver.turns.wait(slot);
        }
    }

    /// Begins every call whose turn it is, of every driver that is there.
    pub(super) fn start_calls(&mut self, now: Duration) {
        let connected: Vec<_> = self
            .drivers
            .iter()
            .filter(|(_, driver)| driver.connected && driver.turns.waiting() > 0)
            .map(|(name, _)| name.clone())
            .collect();
        for name in connected {
            while let Some(slot) = self.drivers.get_mut(&name).and_then(|driver| driver.turns.begin()) {
                if !self.start_job(slot, now)
                    && let Some(driver) = self.drivers.get_mut(&name)
                {
                    driver.turns.ended();
                }
            }
        }
    }

    /// Begins what a volume waits for. `false` if that is nothing any more.
    fn start_job(&mut self, slot: Slot, now: Duration) -> bool {
        let Some(entry) = self.volumes.get_mut(&slot).filter(|entry| entry.job.is_none()) else {
            return false;
        };
        if let Some(call) = entry.awaited_call().cloned() {
            let staging = entry.staging.as_path().to_owned();
            let consumer = call.consumer.as_ref();
            let look = match call.rpc {
                // It may have stood in line for long, and nobody else may use what is staged.
                Rpc::NodeUnstageVolume => {
                    Some(Look { path: staging, inspect: Inspect::Never, remove: Vec::new() })
                }
                // No publish call was sent, so there is nothing to undo, and what stands there is somebody else's.
                Rpc::NodeUnpublishVolume if consumer.is_some_and(|id| entry.fresh.contains(id)) => {
                    entry.verification(&call)
                }
                _ => None,
            };
            let Some(look) = look else { return self.send(slot, call, now) };
            entry.job = Some(Job { what: What::Call { call, sent: false }, since: now });
            self.actions.push(Action::Look { slot, look });
            return true;
        }
        let Some((query, reply)) = entry.queries.pop_front() else { return false };
        let Some(volume_path) = entry.volume_path() else {
            let (key, state) = (entry.key.clone(), entry.state.to_string());
            self.answer(reply, Err(InspectError::NotMounted { key, state }));
            self.wait_for_turn(slot);
            return false;
        };
        let staging_path = entry.staging.clone();
        let operation = match query {
            Query::Stats => Operation::Stats { volume_path, staging_path },
            Query::Health => Operation::Health { volume_path: Some(volume_path), staging_path },
        };
        entry.job = Some(Job { what: What::Query(reply), since: now });
        let spec = Arc::clone(&entry.record.spec);
        let order = CallOrder { slot, spec, operation, fresh: false, verify: None };
        self.actions.push(Action::Call(order));
        true
    }

    fn send(&mut self, slot: Slot, call: Call, now: Duration) -> bool {
        let operation = self.operation(slot, &call);
        let Some(entry) = self.volumes.get_mut(&slot) else { return false };
        let Some(operation) = operation else {
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Failed(Failure::Final) }, now);
            return false;
        };
        let fresh = call.rpc == Rpc::NodePublishVolume
            && call.consumer.as_ref().is_some_and(|consumer| entry.fresh.contains(consumer));
        let (spec, verify) = (Arc::clone(&entry.record.spec), entry.verification(&call));
        entry.job = Some(Job { what: What::Call { call, sent: true }, since: now });
        self.actions.push(Action::Call(CallOrder { slot, spec, operation, fresh, verify }));
        true
    }

    pub(super) fn call_ended(
        &mut self,
        slot: Slot,
        result: Result<CallOutcome, CallError>,
        seen: Option<&Result<Sight, LookError>>,
        now: Duration,
    ) {
        let Some(job) = self.take_job(slot) else { return };
        match job.what {
            What::Query(reply) => {
                let answer = result.map_err(|error| self.inspect_error(slot, &error));
                self.answer(reply, answer);
            }
            What::Call { call, .. } => {
                let sent = result.as_ref().map_or_else(CallError::was_sent, |_| true);
                if let Some(entry) = self.volumes.get_mut(&slot)
                    && let Some(id) = call.consumer.as_ref().filter(|_| sent)
                {
                    entry.fresh.remove(id);
                }
                let mut outcome = match result {
                    Ok(outcome) => self.succeeded(slot, &call, outcome),
                    Err(error) => self.call_failed(slot, &call, &error),
                };
                if outcome == Outcome::Ok && call.rpc.shows_in_mount_table() {
                    outcome = self.verify(slot, &call, seen);
                }
                self.feed(slot, Lifecycle::Finished { call, outcome }, now);
            }
            What::Inspection(_) => {}
        }
        self.wait_for_turn(slot);
    }

    fn inspect_error(&self, slot: Slot, error: &CallError) -> InspectError {
        let driver = self.volumes.get(&slot).map(|entry| entry.key.driver.clone());
        match driver {
            Some(driver) => InspectError::Failed { driver, message: bounded(&chain(error)) },
            None => InspectError::Stopped(crate::node::error::Stopped),
        }
    }

    fn succeeded(&mut self, slot: Slot, call: &Call, outcome: CallOutcome) -> Outcome {
        let Some(entry) = self.volumes.get_mut(&slot) else { return Outcome::Ok };
        let driver = self.drivers.get(&entry.key.driver);
        entry.record.last_error.take_if(|error| error.rpc == call.rpc);
        match outcome {
            CallOutcome::Attached { publish_context } => {
                entry.record.node_id = driver.and_then(|driver| driver.facts.as_ref()?.node_id.clone());
                match entry.take_publish_context(publish_context) {
                    Ok(()) => Outcome::Ok,
                    Err(reason) => {
                        let failure = CallFailure::new(call.rpc, Failure::Final, None, &reason);
                        entry.record.last_error = Some(failure);
                        Outcome::Failed(Failure::Final)
                    }
                }
            }
            CallOutcome::Expanded { capacity_bytes, node_expansion_required } => {
                Outcome::Expanded { capacity_bytes, node_expansion_required }
            }
            _ => Outcome::Ok,
        }
    }

    fn call_failed(&mut self, slot: Slot, call: &Call, error: &CallError) -> Outcome {
        let outcome = if error.was_sent() {
            outcome_of(call.rpc, error.code())
        } else {
            Outcome::Failed(Failure::NotSent)
        };
        self.note(slot, CallFailure::of(call.rpc, outcome, error));
        outcome
    }

    /// Keeps a failure, and tells of it.
    fn note(&mut self, slot: Slot, failure: CallFailure) {
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.record.last_error = Some(failure.clone());
            self.tell(slot, ChangeKind::Failed(failure));
        }
    }

    pub(super) fn looked(&mut self, slot: Slot, seen: &Result<Sight, LookError>, now: Duration) {
        if let Ok(sight) = seen {
            self.table = Arc::clone(&sight.table);
        }
        let job = self.volumes.get(&slot).and_then(|entry| entry.job.as_ref());
        if let Some(Job { what: What::Call { call, sent: false }, .. }) = job
            && call.rpc == Rpc::NodeUnstageVolume
        {
            let call = call.clone();
            return self.looked_before_unstage(slot, call, seen, now);
        }
        let Some(job) = self.take_job(slot) else { return };
        match job.what {
            What::Inspection(lost) => self.inspected(slot, lost, seen, now),
            What::Call { call, .. } => {
                let outcome = self.verify(slot, &call, Some(seen));
                self.feed(slot, Lifecycle::Finished { call, outcome }, now);
            }
            What::Query(_) => {}
        }
        self.wait_for_turn(slot);
    }

    fn looked_before_unstage(
        &mut self,
        slot: Slot,
        call: Call,
        seen: &Result<Sight, LookError>,
        now: Duration,
    ) {
        let awaited = self.volumes.get(&slot).and_then(Entry::awaited_call) == Some(&call);
        match self.may_unstage(slot, seen) {
            // The turn goes on with the call, unless its driver was replaced meanwhile.
            Ok(()) if awaited => {
                self.send(slot, call, now);
            }
            Ok(()) => {
                self.take_job(slot);
                self.wait_for_turn(slot);
            }
            Err(Unfit { failure, words }) => {
                self.take_job(slot);
                self.note(slot, CallFailure::new(call.rpc, failure, None, &words));
                self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Failed(failure) }, now);
                self.wait_for_turn(slot);
            }
        }
    }

    fn may_unstage(&self, slot: Slot, seen: &Result<Sight, LookError>) -> Result<(), Unfit> {
        let Some(entry) = self.volumes.get(&slot) else { return Ok(()) };
        let known = |path: &std::path::Path| self.is_known(path);
        // Without an answer it is not sent.
        let sight = seen.as_ref().map_err(|error| Unfit::new(Failure::NotSent, chain(error)))?;
        findings::unused(entry.staging.as_path(), entry.record.staged.as_ref(), known, &sight.table)
    }

    /// Compares what was seen with what a call should have done, and keeps it: it is on disk with the next record, which
    /// follows.
    fn verify(&mut self, slot: Slot, call: &Call, seen: Option<&Result<Sight, LookError>>) -> Outcome {
        let Some(entry) = self.volumes.get_mut(&slot) else { return Outcome::Ok };
        if let Some(Ok(sight)) = seen {
            self.table = Arc::clone(&sight.table);
        }
        let found = match entry.find(call, seen, self.settings.targets_are_mounts) {
            Ok(found) => found,
            Err(Unfit { failure, words }) => {
                // An error that counts as success, such as that there is no such volume, was noted when the call ended.
                let said = entry.record.last_error.as_ref().filter(|error| error.rpc == call.rpc);
                let code = said.and_then(|error| error.code);
                self.note(slot, CallFailure::new(call.rpc, failure, code, &words));
                return Outcome::Failed(failure);
            }
        };
        let upward = matches!(call.rpc, Rpc::NodeStageVolume | Rpc::NodePublishVolume);
        let consumer = call.consumer.as_ref();
        if let Some(consumer) = consumer.and_then(|consumer| entry.record.consumers.get_mut(consumer)) {
            (consumer.mounted, consumer.device, consumer.touched) = (found.mount, found.device, upward);
        } else if consumer.is_none() {
            (entry.record.staged, entry.record.touched) = (found.mount, upward);
        }
        if let Some(left) = found.left {
            let failure = Failure::Contradicted(Mismatch::StillThere);
            self.note(
                slot,
                CallFailure::new(call.rpc, failure, None, &format!("{left} was left at the path")),
            );
        }
        Outcome::Ok
    }

    /// Whether a path is the target or the staging path of any volume.
    fn is_known(&self, path: &std::path::Path) -> bool {
        let target = path.to_str().and_then(|text| crate::driver::MountPath::new(text).ok());
        target.is_some_and(|target| self.targets.contains_key(&target)) || self.is_staging(path)
    }

    fn is_staging(&self, path: &std::path::Path) -> bool {
        let Ok(below) = path.strip_prefix(&self.settings.root) else { return false };
        let mut parts = below.components().filter_map(|part| part.as_os_str().to_str());
        let (driver, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let slot = self.directories.get(format!("{driver}/{name}").as_bytes());
        slot.and_then(|slot| self.volumes.get(slot)).is_some_and(|entry| entry.has_path(path))
    }
}

impl Entry {
    /// Where to look after a call, and what to remove before.
    fn verification(&self, call: &Call) -> Option<Look> {
        let staging = self.staging.as_path();
        let target = || {
            let consumer = self.record.consumers.get(call.consumer.as_ref()?)?;
            Some(consumer.spec.target_path().as_path().to_owned())
        };
        let (path, remove) = match call.rpc {
            Rpc::NodeStageVolume => (staging.to_owned(), Vec::new()),
            Rpc::NodeUnstageVolume => {
                let own = [Some(staging), staging.parent()].into_iter().flatten();
                (staging.to_owned(), own.map(ToOwned::to_owned).collect())
            }
            Rpc::NodePublishVolume => (target()?, Vec::new()),
            Rpc::NodeUnpublishVolume => (target()?, vec![target()?]),
            _ => return None,
        };
        // The table has the mount of a device, and does not say that it is one.
        let device = call.rpc == Rpc::NodePublishVolume && self.record.spec.access().is_block();
        let inspect = if device { Inspect::Always } else { Inspect::Unmounted };
        Some(Look { path, inspect, remove })
    }

    /// Compares what was seen with what a call should have done.
    fn find(
        &self,
        call: &Call,
        seen: Option<&Result<Sight, LookError>>,
        targets_are_mounts: bool,
    ) -> Result<Found, Unfit> {
        let not_looked = || Unfit::new(Failure::Unchecked, "the path was not looked at");
        let (sight, staging) = (seen.ok_or_else(not_looked)?.as_ref()?, self.staging.as_path());
        let consumer = call.consumer.as_ref().and_then(|consumer| self.record.consumers.get(consumer));
        let block = self.record.spec.access().is_block();
        match (call.rpc, consumer) {
            (Rpc::NodeStageVolume, _) => findings::staged(staging, self.record.staged.as_ref(), block, sight),
            (Rpc::NodeUnstageVolume, _) => findings::gone(staging, sight),
            (Rpc::NodePublishVolume, Some(consumer)) => {
                let wanted = Wanted {
                    block,
                    read_only: self.record.spec.is_read_only() || consumer.spec.is_read_only(),
                    before: consumer.mounted.as_ref(),
                    device: consumer.device,
                    staged: self.record.staged.as_ref(),
                    mount: targets_are_mounts,
                };
                findings::published(consumer.spec.target_path().as_path(), wanted, sight)
            }
            (Rpc::NodeUnpublishVolume, Some(consumer)) => {
                findings::gone(consumer.spec.target_path().as_path(), sight)
            }
            _ => Ok(Found::default()),
        }
    }

    /// Keeps what the attach answered, if it can be kept.
    pub(super) fn take_publish_context(
        &mut self,
        publish_context: BTreeMap<String, String>,
    ) -> Result<(), String> {
        let spec = self.record.spec.to_builder().publish_context(publish_context).build();
        let before =
            std::mem::replace(&mut self.record.spec, Arc::new(spec.map_err(|error| error.to_string())?));
        self.record.payload().map(drop).map_err(|found| {
            self.record.spec = before;
            format!(
                "with its publish_context the record has {found} bytes; at most {MAX_PAYLOAD_BYTES} are kept"
            )
        })
    }

    /// The volume as it was asked for, with the context that its attach gave.
    pub(super) fn with_publish_context(&self, spec: &Arc<VolumeSpec>) -> Arc<VolumeSpec> {
        if !spec.publish_context().is_empty() || self.record.spec.publish_context().is_empty() {
            return Arc::clone(spec);
        }
        let spec = spec.to_builder().publish_context(self.record.spec.publish_context().clone()).build();
        spec.map_or_else(|_| Arc::clone(&self.record.spec), Arc::new)
    }
}
