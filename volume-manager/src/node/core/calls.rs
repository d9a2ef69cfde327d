//! Calls and looks: when they begin, and what their ends mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Query, Running, What};
use super::event::{Action, Answer, CallOrder, Inspect, LookOrder, Sight};
use super::findings::{self, Found, Wanted};
use super::{Node, Slot, Ticket};
use crate::driver::{CallError, CallOutcome, Operation, VolumeSpec};
use crate::excerpt::chain;
use crate::lifecycle::{Call, Check, Event as Lifecycle, Finding, Outcome, Rpc, outcome_of};
use crate::node::change::ChangeKind;
use crate::node::error::{InspectError, bounded};
use crate::node::explanation::{ErrorClass, LastError};
use crate::store::{BootId, MAX_PAYLOAD_BYTES};

impl Node {
    /// Puts a volume in its driver's line, if it has something to ask and nothing of it runs.
    ///
    /// A look that waits is begun before all else: it ends a call that was made, and takes no turn.
    pub(super) fn wait_for_turn(&mut self, slot: Slot, now: Duration) {
        self.start_look(slot, now);
        let Some(entry) = self.volumes.get(&slot) else { return };
        let asks = entry.wanted_call.is_some() || !entry.queries.is_empty();
        if asks
            && entry.running.is_none()
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
                if !self.start_call(slot, now)
                    && let Some(driver) = self.drivers.get_mut(&name)
                {
                    driver.turns.ended();
                }
            }
        }
    }

    /// Begins what a volume waits for. `false` if that is nothing any more.
    fn start_call(&mut self, slot: Slot, now: Duration) -> bool {
        let Some(entry) = self.volumes.get_mut(&slot) else { return false };
        if entry.running.is_some() {
            return false;
        }
        let (what, operation) = if let Some(call) = entry.wanted_call.take() {
            let consumer = call.consumer.as_ref();
            // No publish call was sent, so there is nothing to undo, and what stands there is somebody else's.
            if call.rpc == Rpc::NodeUnpublishVolume && consumer.is_some_and(|id| entry.fresh.contains(id)) {
                self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Ok }, now);
                return false;
            }
            // It may have stood in line for long since somebody looked.
            if call.rpc == Rpc::NodeUnstageVolume && entry.unused_at != Some(now) {
                self.recheck(slot, call, now);
                return true;
            }
            let Some(operation) = self.operation(slot, &call) else {
                self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Final }, now);
                return false;
            };
            (What::Call(call), operation)
        } else if let Some((request, query)) = entry.queries.pop_front() {
            let Some(volume_path) = entry.volume_path() else {
                let (key, state) = (entry.key.clone(), entry.state.to_string());
                self.answer(request, Answer::Inspected(Err(InspectError::NotMounted { key, state })));
                self.wait_for_turn(slot, now);
                return false;
            };
            let staging_path = entry.staging.clone();
            let operation = match query {
                Query::Stats => Operation::Stats { volume_path, staging_path },
                Query::Health => Operation::Health { volume_path: Some(volume_path), staging_path },
            };
            (What::Query(request), operation)
        } else {
            return false;
        };
        let Some(driver) = self.volumes.get(&slot).map(|entry| entry.key.driver.clone()) else {
            return false;
        };
        let Some(policy) = self.drivers.get(&driver).map(|driver| Arc::clone(&driver.policy)) else {
            return false;
        };
        let ticket = self.ticket(slot, Some(driver));
        let Some(entry) = self.volumes.get_mut(&slot) else { return false };
        let fresh = match &operation {
            Operation::NodePublish { consumer, .. } => entry.fresh.contains(consumer.id()),
            _ => false,
        };
        entry.running = Some(Running { ticket, what, since: now });
        let spec = Arc::clone(&entry.spec);
        self.actions.push(Action::Call(CallOrder { ticket, spec, operation, policy, fresh }));
        true
    }

    /// Looks once more whether somebody else uses what is staged. It holds the turn of the call meanwhile.
    fn recheck(&mut self, slot: Slot, call: Call, now: Duration) {
        let Some(driver) = self.volumes.get(&slot).map(|entry| entry.key.driver.clone()) else { return };
        let ticket = self.ticket(slot, Some(driver));
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.running = Some(Running { ticket, what: What::Recheck(call), since: now });
            let path = entry.staging.as_path().to_owned();
            let order = LookOrder { ticket, path, inspect: Inspect::Never, remove: Vec::new() };
            self.actions.push(Action::Look(order));
        }
    }

    fn rechecked(&mut self, slot: Slot, call: Call, sight: &Sight, now: Duration) {
        let found = self.find(slot, &Check::Unused, sight);
        self.note(slot, &Check::Unused, &found);
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if found.finding == Finding::Agrees {
            entry.unused_at = Some(now);
            entry.wanted_call = Some(call);
            if let Some(driver) = self.drivers.get_mut(&entry.key.driver) {
                driver.turns.go_first(slot);
            }
        } else {
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::NotSent }, now);
        }
    }

    pub(super) fn call_ended(
        &mut self,
        ticket: Ticket,
        result: Result<CallOutcome, CallError>,
        now: Duration,
    ) {
        let Some((slot, running)) = self.take_running(ticket) else { return };
        match running.what {
            What::Query(request) => {
                let answer = result.map_err(|error| self.inspect_error(slot, &error));
                self.answer(request, Answer::Inspected(answer));
            }
            What::Call(call) => {
                let sent = result.as_ref().map_or_else(CallError::was_sent, |_| true);
                if let Some(entry) = self.volumes.get_mut(&slot)
                    && let Some(id) = call.consumer.as_ref().filter(|_| sent)
                {
                    entry.fresh.remove(id);
                }
                let outcome = match result {
                    Ok(outcome) => self.succeeded(slot, &call, outcome),
                    Err(error) => self.call_failed(slot, &call, &error),
                };
                self.feed(slot, Lifecycle::Finished { call, outcome }, now);
            }
            What::Look(_) | What::Recheck(_) | What::Inspection(_) => {}
        }
        self.wait_for_turn(slot, now);
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
        entry.last_error.take_if(|error| error.rpc == call.rpc);
        match outcome {
            CallOutcome::Attached { publish_context } => {
                entry.node_id = driver.and_then(|driver| driver.facts.as_ref()?.node_id.clone());
                match entry.take_publish_context(publish_context, self.boot) {
                    Ok(()) => Outcome::Ok,
                    Err(reason) => {
                        entry.fail(call, ErrorClass::Final, None, &reason);
                        Outcome::Final
                    }
                }
            }
            CallOutcome::ControllerExpanded { capacity_bytes, node_expansion_required } => {
                Outcome::Expanded { capacity_bytes, node_expansion_required }
            }
            CallOutcome::NodeExpanded { capacity_bytes } => Outcome::Expanded {
                capacity_bytes: capacity_bytes.unwrap_or_default(),
                node_expansion_required: false,
            },
            _ => Outcome::Ok,
        }
    }

    fn call_failed(&mut self, slot: Slot, call: &Call, error: &CallError) -> Outcome {
        let Some(entry) = self.volumes.get_mut(&slot) else { return Outcome::Uncertain };
        let outcome = match error {
            error if !error.was_sent() => Outcome::NotSent,
            error => outcome_of(call.rpc, error.code()),
        };
        let class = match outcome {
            Outcome::NotSent => ErrorClass::Prevented,
            Outcome::Final | Outcome::Infeasible | Outcome::Gone => ErrorClass::Final,
            Outcome::NeverRetry => ErrorClass::NeverRetry,
            _ => ErrorClass::Uncertain,
        };
        let text = match error {
            CallError::Status { message, .. } => message.clone(),
            error => chain(error),
        };
        entry.fail(call, class, error.code(), &text);
        self.tell_error(slot);
        outcome
    }

    pub(super) fn call_prevented(&mut self, ticket: Ticket, reason: &str, now: Duration) {
        let Some((slot, running)) = self.take_running(ticket) else { return };
        if let What::Call(call) = running.what {
            if let Some(entry) = self.volumes.get_mut(&slot) {
                entry.fail(&call, ErrorClass::Prevented, None, reason);
                self.tell_error(slot);
            }
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::NotSent }, now);
        }
        self.wait_for_turn(slot, now);
    }

    fn tell_error(&mut self, slot: Slot) {
        let error = self.volumes.get(&slot).and_then(|entry| entry.last_error.clone());
        if let Some(error) = error {
            self.tell(slot, ChangeKind::Failed(error));
        }
    }

    pub(super) fn looked(&mut self, ticket: Ticket, sight: &Sight, now: Duration) {
        if let Ok(table) = &sight.table {
            self.table = Arc::clone(table);
        }
        let Some((slot, running)) = self.take_running(ticket) else { return };
        match running.what {
            What::Look(check) => {
                let found = self.find(slot, &check, sight);
                if let Some(entry) = self.volumes.get_mut(&slot).filter(|_| check == Check::Unused) {
                    entry.unused_at = Some(now);
                }
                self.note(slot, &check, &found);
                self.feed(slot, Lifecycle::Checked { check, finding: found.finding }, now);
            }
            What::Recheck(call) => self.rechecked(slot, call, sight, now),
            What::Inspection(consumer) => self.inspected(slot, consumer, sight, now),
            What::Call(_) | What::Query(_) => {}
        }
        self.wait_for_turn(slot, now);
    }

    /// Compares what was seen with what should be.
    fn find(&self, slot: Slot, check: &Check, sight: &Sight) -> Found {
        let nothing = Found { finding: Finding::Agrees, words: None, mount: None, device: None };
        let Some(entry) = self.volumes.get(&slot) else { return nothing };
        let staging = entry.staging.as_path();
        let call = match check {
            Check::Unused => {
                let known = |path: &std::path::Path| self.is_known(path);
                return findings::unused(staging, entry.staged.as_ref(), known, sight);
            }
            Check::After(call) => call,
        };
        let consumer = call.consumer.as_ref().and_then(|consumer| entry.consumers.get(consumer));
        let block = entry.spec.access().is_block();
        match (call.rpc, consumer) {
            (Rpc::NodeStageVolume, _) => findings::staged(staging, entry.staged.as_ref(), block, sight),
            (Rpc::NodeUnstageVolume, _) => findings::gone(staging, sight),
            (Rpc::NodePublishVolume, Some(consumer)) => {
                let wanted = Wanted {
                    block,
                    read_only: entry.spec.is_read_only() || consumer.spec.is_read_only(),
                    before: consumer.mounted.as_ref(),
                    device: consumer.device,
                    staged: entry.staged.as_ref(),
                    mount: self.settings.targets_are_mounts,
                };
                findings::published(consumer.spec.target_path().as_path(), wanted, sight)
            }
            (Rpc::NodeUnpublishVolume, Some(consumer)) => {
                findings::gone(consumer.spec.target_path().as_path(), sight)
            }
            _ => nothing,
        }
    }

    /// Keeps what was found: it is on disk with the next record, which follows.
    fn note(&mut self, slot: Slot, check: &Check, found: &Found) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let (call, class) = match check {
            Check::Unused => (Call::of_volume(Rpc::NodeUnstageVolume), ErrorClass::Prevented),
            Check::After(call) => (call.clone(), ErrorClass::Contradicted),
        };
        if found.finding != Finding::Agrees {
            let words = found.words.as_deref().unwrap_or("the mount table says otherwise");
            // An error that counts as success, such as that there is no such volume, was noted when the call ended.
            let said = entry
                .last_error
                .as_ref()
                .filter(|error| error.rpc == call.rpc && class == ErrorClass::Contradicted);
            let code = said.and_then(|error| error.code);
            entry.fail(&call, class, code, words);
            return self.tell_error(slot);
        }
        if let Some(words) = &found.words {
            entry.fail(&call, class, None, words);
            self.tell_error(slot);
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let mount = found.mount.clone();
        match (check, call.rpc) {
            (Check::After(_), Rpc::NodeStageVolume | Rpc::NodeUnstageVolume) => {
                entry.staged = mount;
                entry.touched = call.rpc == Rpc::NodeStageVolume;
            }
            (Check::After(_), Rpc::NodePublishVolume | Rpc::NodeUnpublishVolume) => {
                let consumer = call.consumer.as_ref();
                if let Some(consumer) = consumer.and_then(|consumer| entry.consumers.get_mut(consumer)) {
                    consumer.mounted = mount;
                    consumer.device = found.device;
                    consumer.touched = call.rpc == Rpc::NodePublishVolume;
                }
            }
            _ => {}
        }
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
    pub(super) fn fail(&mut self, call: &Call, class: ErrorClass, code: Option<i32>, message: &str) {
        let message = bounded(message);
        self.last_error = Some(LastError { rpc: call.rpc, class, code, message });
    }

    /// Keeps what the attach answered, if it can be kept.
    pub(super) fn take_publish_context(
        &mut self,
        publish_context: BTreeMap<String, String>,
        boot: BootId,
    ) -> Result<(), String> {
        let spec = self.spec.to_builder().publish_context(publish_context).build();
        let before = std::mem::replace(&mut self.spec, Arc::new(spec.map_err(|error| error.to_string())?));
        self.record(boot).payload().map(drop).map_err(|found| {
            self.spec = before;
            format!(
                "with its publish_context the record has {found} bytes; at most {MAX_PAYLOAD_BYTES} are kept"
            )
        })
    }

    /// The volume as it was asked for, with the context that its attach gave.
    pub(super) fn with_publish_context(&self, spec: &Arc<VolumeSpec>) -> Arc<VolumeSpec> {
        if !spec.publish_context().is_empty() || self.spec.publish_context().is_empty() {
            return Arc::clone(spec);
        }
        let spec = spec.to_builder().publish_context(self.spec.publish_context().clone()).build();
        spec.map_or_else(|_| Arc::clone(&self.spec), Arc::new)
    }
}
