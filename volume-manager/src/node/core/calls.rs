//! The jobs of volumes: calls, queries and inspections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Job, JobKind};
use super::event::{Action, CallOrder, CheckResult, Inspect, PathCheck, Query};
use super::mount_checks::{self, CheckFailure, Expected, Verified};
use super::{Node, Slot};
use crate::driver::{CallError, CallOutcome, Operation, VolumeSpec};
use crate::excerpt::chain;
use crate::lifecycle::{Call, Event as Lifecycle, Failure, Mismatch, Outcome, Rpc, outcome_of};
use crate::node::change::ChangeKind;
use crate::node::error::{InspectError, bounded};
use crate::node::explanation::CallFailure;
use crate::store::MAX_PAYLOAD_BYTES;

impl Node {
    /// Queues a volume for a call slot if a call or query is pending and no job is running.
    pub(super) fn enqueue(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let is_due = entry.awaited_call().is_some() || !entry.queries.is_empty();
        if is_due
            && entry.job.is_none()
            && let Some(driver) = self.drivers.get_mut(&entry.key.driver)
        {
            driver.queue.push(slot);
        }
    }

    /// Starts queued calls of all connected drivers while call slots are free.
    pub(super) fn start_calls(&mut self, now: Duration) {
        let connected: Vec<_> = self
            .drivers
            .iter()
            .filter(|(_, driver)| driver.is_connected() && driver.queue.waiting() > 0)
            .map(|(name, _)| name.clone())
            .collect();
        for name in connected {
            while let Some(slot) = self.drivers.get_mut(&name).and_then(|driver| driver.queue.take_next()) {
                if !self.start_job(slot, now)
                    && let Some(driver) = self.drivers.get_mut(&name)
                {
                    driver.queue.release_slot();
                }
            }
        }
    }

    /// Starts the pending call or query of a volume. Returns `false` if nothing is pending.
    fn start_job(&mut self, slot: Slot, now: Duration) -> bool {
        let Some(entry) = self.volumes.get_mut(&slot).filter(|entry| entry.job.is_none()) else {
            return false;
        };
        if let Some(call) = entry.awaited_call().cloned() {
            let staging = entry.staging.as_path().to_owned();
            let consumer = call.consumer.as_ref();
            let check = match call.rpc {
                // The call may have been queued for a long time, and no foreign mount may use the staging path.
                Rpc::NodeUnstageVolume => {
                    Some(PathCheck { path: staging, inspect: Inspect::Never, remove: Vec::new() })
                }
                // No publish call was sent, so there is nothing to undo, and anything at the target is foreign.
                Rpc::NodeUnpublishVolume if consumer.is_some_and(|id| entry.first_publish.contains(id)) => {
                    entry.verification(&call)
                }
                _ => None,
            };
            let Some(check) = check else { return self.send(slot, call, now) };
            entry.job = Some(Job { kind: JobKind::Call { call, sent: false }, since: now });
            self.actions.push(Action::Check { slot, check });
            return true;
        }
        let Some((query, reply)) = entry.queries.pop_front() else { return false };
        let Some(volume_path) = entry.volume_path() else {
            let (key, state) = (entry.key.clone(), entry.state.to_string());
            self.answer(reply, Err(InspectError::NotMounted { key, state }));
            self.enqueue(slot);
            return false;
        };
        let staging_path = entry.staging.clone();
        let operation = match query {
            Query::Stats => Operation::Stats { volume_path, staging_path },
            Query::Health => Operation::Health { volume_path: Some(volume_path), staging_path },
        };
        entry.job = Some(Job { kind: JobKind::Query(reply), since: now });
        let spec = Arc::clone(&entry.record.spec);
        let order = CallOrder { slot, spec, operation, first_publish: false, verify: None };
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
        let first_publish = call.rpc == Rpc::NodePublishVolume
            && call.consumer.as_ref().is_some_and(|consumer| entry.first_publish.contains(consumer));
        let (spec, verify) = (Arc::clone(&entry.record.spec), entry.verification(&call));
        entry.job = Some(Job { kind: JobKind::Call { call, sent: true }, since: now });
        self.actions.push(Action::Call(CallOrder { slot, spec, operation, first_publish, verify }));
        true
    }

    pub(super) fn call_ended(
        &mut self,
        slot: Slot,
        result: Result<CallOutcome, CallError>,
        observed: Option<&CheckResult>,
        now: Duration,
    ) {
        let Some(job) = self.take_job(slot) else { return };
        match job.kind {
            JobKind::Query(reply) => {
                let answer = result.map_err(|error| self.inspect_error(slot, &error));
                self.answer(reply, answer);
            }
            JobKind::Call { call, .. } => {
                let sent = result.as_ref().map_or_else(CallError::was_sent, |_| true);
                if let Some(entry) = self.volumes.get_mut(&slot)
                    && let Some(id) = call.consumer.as_ref().filter(|_| sent)
                {
                    entry.first_publish.remove(id);
                }
                let mut outcome = match result {
                    Ok(outcome) => self.succeeded(slot, &call, outcome),
                    Err(error) => self.call_failed(slot, &call, &error),
                };
                if outcome == Outcome::Ok && call.rpc.shows_in_mount_table() {
                    outcome = self.verify(slot, &call, true, observed);
                }
                self.feed(slot, Lifecycle::Finished { call, outcome }, now);
            }
            JobKind::Inspection(_) => {}
        }
        self.enqueue(slot);
    }

    fn inspect_error(&self, slot: Slot, error: &CallError) -> InspectError {
        let driver = self.volumes.get(&slot).map(|entry| entry.key.driver.clone());
        match driver {
            Some(driver) => InspectError::Failed { driver, message: bounded(&chain(error)) },
            None => InspectError::Closed(crate::node::error::Closed),
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
        self.record_failure(slot, CallFailure::of(call.rpc, outcome, error));
        outcome
    }

    /// Records a failure and notifies watchers.
    fn record_failure(&mut self, slot: Slot, failure: CallFailure) {
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.record.last_error = Some(failure.clone());
            self.notify(slot, ChangeKind::Failed(failure));
        }
    }

    pub(super) fn checked(&mut self, slot: Slot, observed: &CheckResult, now: Duration) {
        if let Ok(observation) = observed {
            self.table = Arc::clone(&observation.table);
        }
        let job = self.volumes.get(&slot).and_then(|entry| entry.job.as_ref());
        if let Some(Job { kind: JobKind::Call { call, sent: false }, .. }) = job
            && call.rpc == Rpc::NodeUnstageVolume
        {
            let call = call.clone();
            return self.checked_before_unstage(slot, call, observed, now);
        }
        let Some(job) = self.take_job(slot) else { return };
        match job.kind {
            JobKind::Inspection(lost) => self.inspected(slot, lost, observed, now),
            JobKind::Call { call, sent } => {
                let outcome = self.verify(slot, &call, sent, Some(observed));
                self.feed(slot, Lifecycle::Finished { call, outcome }, now);
            }
            JobKind::Query(_) => {}
        }
        self.enqueue(slot);
    }

    fn checked_before_unstage(&mut self, slot: Slot, call: Call, observed: &CheckResult, now: Duration) {
        let awaited = self.volumes.get(&slot).and_then(Entry::awaited_call) == Some(&call);
        match self.may_unstage(slot, observed) {
            // The call keeps its slot, unless its driver was replaced meanwhile.
            Ok(()) if awaited => {
                self.send(slot, call, now);
            }
            Ok(()) => {
                self.take_job(slot);
                self.enqueue(slot);
            }
            Err(CheckFailure { failure, description }) => {
                self.take_job(slot);
                self.record_failure(slot, CallFailure::new(call.rpc, failure, None, &description));
                self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Failed(failure) }, now);
                self.enqueue(slot);
            }
        }
    }

    fn may_unstage(&self, slot: Slot, observed: &CheckResult) -> Result<(), CheckFailure> {
        let Some(entry) = self.volumes.get(&slot) else { return Ok(()) };
        let known = |path: &std::path::Path| self.is_known_path(path);
        // The call is not sent without an observation.
        let observation =
            observed.as_ref().map_err(|error| CheckFailure::new(Failure::NotSent, chain(error)))?;
        mount_checks::verify_not_in_use(
            entry.staging.as_path(),
            entry.record.staged.as_ref(),
            known,
            &observation.table,
        )
    }

    /// Compares the observation with the expected result of a call, and stores it in the record that is written next. A call that
    /// was not sent has no answer to contradict, although its failure has the same consequences.
    fn verify(&mut self, slot: Slot, call: &Call, sent: bool, observed: Option<&CheckResult>) -> Outcome {
        let Some(entry) = self.volumes.get_mut(&slot) else { return Outcome::Ok };
        if let Some(Ok(observation)) = observed {
            self.table = Arc::clone(&observation.table);
        }
        let found = match entry.check_result(call, observed, self.settings.require_mounted_targets) {
            Ok(found) => found,
            Err(CheckFailure { failure, description }) => {
                // An error that counts as success, such as NOT_FOUND, was recorded when the call ended.
                let recorded = entry.record.last_error.as_ref().filter(|error| error.rpc == call.rpc);
                let code = recorded.and_then(|error| error.code);
                let recorded = if sent {
                    CallFailure::new(call.rpc, failure, code, &description)
                } else {
                    let hint = match failure {
                        Failure::Contradicted(_) => ", and no call in this boot has published it; unmount it",
                        _ => "",
                    };
                    CallFailure::new(call.rpc, Failure::NotSent, None, &format!("{description}{hint}"))
                };
                self.record_failure(slot, recorded);
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
        if let Some(leftover) = found.leftover {
            let failure = Failure::Contradicted(Mismatch::StillThere);
            self.record_failure(
                slot,
                CallFailure::new(call.rpc, failure, None, &format!("{leftover} was left behind at the path")),
            );
        }
        Outcome::Ok
    }

    /// Returns whether a path is the target or the staging path of any volume.
    fn is_known_path(&self, path: &std::path::Path) -> bool {
        let target = path.to_str().and_then(|text| crate::driver::MountPath::new(text).ok());
        target.is_some_and(|target| self.targets.contains_key(&target)) || self.is_staging_path(path)
    }

    fn is_staging_path(&self, path: &std::path::Path) -> bool {
        let Ok(below) = path.strip_prefix(&self.settings.root) else { return false };
        let mut parts = below.components().filter_map(|part| part.as_os_str().to_str());
        let (driver, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let slot = self.directories.get(format!("{driver}/{name}").as_bytes());
        slot.and_then(|slot| self.volumes.get(slot)).is_some_and(|entry| entry.is_staging_path(path))
    }
}

impl Entry {
    /// Returns the check after a call: the path to inspect, and the directories to remove before the inspection.
    fn verification(&self, call: &Call) -> Option<PathCheck> {
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
        // The mount table lists the bind mount of a device, but not that it is a device.
        let device = call.rpc == Rpc::NodePublishVolume && self.record.spec.access().is_block();
        let inspect = if device { Inspect::Always } else { Inspect::Unmounted };
        Some(PathCheck { path, inspect, remove })
    }

    /// Compares the observation with the expected result of a call.
    fn check_result(
        &self,
        call: &Call,
        observed: Option<&CheckResult>,
        require_mounted_targets: bool,
    ) -> Result<Verified, CheckFailure> {
        let not_checked = || CheckFailure::new(Failure::Unchecked, "the path was not checked");
        let (observation, staging) = (observed.ok_or_else(not_checked)?.as_ref()?, self.staging.as_path());
        let consumer = call.consumer.as_ref().and_then(|consumer| self.record.consumers.get(consumer));
        let block = self.record.spec.access().is_block();
        match (call.rpc, consumer) {
            (Rpc::NodeStageVolume, _) => {
                mount_checks::verify_staged(staging, self.record.staged.as_ref(), block, observation)
            }
            (Rpc::NodeUnstageVolume, _) => mount_checks::verify_unmounted(staging, observation),
            (Rpc::NodePublishVolume, Some(consumer)) => {
                let wanted = Expected {
                    block,
                    read_only: self.record.spec.is_read_only() || consumer.spec.is_read_only(),
                    before: consumer.mounted.as_ref(),
                    device: consumer.device,
                    staged: self.record.staged.as_ref(),
                    must_be_mount: require_mounted_targets,
                };
                mount_checks::verify_published(consumer.spec.target_path().as_path(), wanted, observation)
            }
            (Rpc::NodeUnpublishVolume, Some(consumer)) => {
                mount_checks::verify_unmounted(consumer.spec.target_path().as_path(), observation)
            }
            _ => Ok(Verified::default()),
        }
    }

    /// Stores the publish context of an attach, if it fits into the record.
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
                "with publish_context the record has {found} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"
            )
        })
    }

    /// Returns the requested volume with the publish context of its attach.
    pub(super) fn with_publish_context(&self, spec: &Arc<VolumeSpec>) -> Arc<VolumeSpec> {
        if !spec.publish_context().is_empty() || self.record.spec.publish_context().is_empty() {
            return Arc::clone(spec);
        }
        let spec = spec.to_builder().publish_context(self.record.spec.publish_context().clone()).build();
        spec.map_or_else(|_| Arc::clone(&self.record.spec), Arc::new)
    }
}
