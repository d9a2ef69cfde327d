//! Requests: validation and their effect on volumes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;
use std::time::Duration;

use super::drivers::lifecycle_mode_error;
use super::entry::{Entry, MAX_QUERIES, add_waiter};
use super::event::{Action, Query, Request};
use super::reply::Reply;
use super::{DriverEntry, Node, Slot};
use crate::driver::{CallOutcome, ConsumerSpec, VolumeSpec};
use crate::lifecycle::{Event as Lifecycle, Snapshot, Target, TargetState, VolumeState};
use crate::message::{MAX_CONSUMERS, MAX_VOLUMES};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::change::ChangeKind;
use crate::node::desired::{DesiredVolume, Published, Reconciled};
use crate::node::error::{
    AttachError, ExpandError, InspectError, PublishError, ReconcileError, UnpublishError,
};
use crate::node::record::{Record, RecordedConsumer, record_key};
use crate::node::staging::directory_name;
use crate::store::MAX_PAYLOAD_BYTES;

impl Node {
    pub(super) fn request(&mut self, request: Request, now: Duration) {
        match request {
            Request::Publish { spec, consumer, reply } => {
                let mut reply = Some(reply);
                let taken = self.add_consumer(&spec, &consumer, &mut reply, now);
                if let (Err(error), Some(reply)) = (taken, reply) {
                    self.answer(reply, Err(error));
                }
            }
            Request::Unpublish { key, consumer, reply } => self.unpublish(&key, &consumer, reply, now),
            Request::Expand { key, required_bytes, reply } => match self.check_expand(&key, required_bytes) {
                Ok(slot) => self.expand(slot, required_bytes, reply, now),
                Err(error) => self.answer(reply, Err(error)),
            },
            Request::Attach { key, publish_context, reply } => {
                self.attach(&key, publish_context, reply, now);
            }
            Request::Reconcile { desired, reply } => self.reconcile(&desired, reply, now),
            Request::Inspect { key, query, reply } => self.query(&key, query, reply),
        }
    }

    /// Adds a consumer to a volume and registers its reply. Returns whether the consumer is new.
    fn add_consumer(
        &mut self,
        spec: &Arc<VolumeSpec>,
        consumer: &Arc<ConsumerSpec>,
        reply: &mut Option<Reply<Result<Published, PublishError>>>,
        now: Duration,
    ) -> Result<(Slot, bool), PublishError> {
        if let Some(error) = self.commits.unavailable() {
            return Err(error.into());
        }
        let slot = self.by_key.get(spec.key()).copied();
        if let Some((slot, holder)) = self.targets.get(consumer.target_path())
            && let Some(holding) = self.volumes.get(slot)
            && (holding.key != *spec.key() || holder != consumer.id())
        {
            let target = consumer.target_path().as_path().to_owned();
            return Err(PublishError::TargetTaken {
                target,
                key: holding.key.clone(),
                holder: holder.clone(),
            });
        }
        let slot = match slot {
            Some(slot) => {
                self.check_consumer(slot, spec, consumer)?;
                slot
            }
            None => self.admit(spec, now)?,
        };
        let id = consumer.id().clone();
        let Some(entry) = self.volumes.get_mut(&slot) else { return Ok((slot, false)) };
        if entry.is_unused() && difference(&entry.record.spec, spec).is_some() {
            // No call was made for the old spec, so the volume starts over with the new one.
            entry.machine = None;
            (entry.record.snapshot, entry.record.boot) = (Snapshot::default(), self.boot);
            entry.record.spec = Arc::clone(spec);
        }
        let new = !entry.is_wanted_by(&id);
        let new_spec = entry.with_publish_context(spec);
        let changed = entry.record.spec != new_spec;
        let before = std::mem::replace(&mut entry.record.spec, new_spec);
        // A consumer whose release is not recorded yet is added again.
        if entry.progress.unrecorded_releases.remove(&id) {
            entry.record.consumers.remove(&id);
        }
        if let MapEntry::Vacant(vacant) = entry.record.consumers.entry(id.clone()) {
            vacant.insert(RecordedConsumer {
                spec: Arc::clone(consumer),
                mounted: None,
                device: None,
                touched: false,
            });
            self.targets.insert(consumer.target_path().clone(), (slot, id.clone()));
        }
        if new || changed {
            if let Some(snapshot) = entry.inactive_snapshot() {
                let absent = Target { wanted: true, state: TargetState::Absent };
                snapshot.targets.entry(id.clone()).or_insert(absent).wanted = true;
                entry.progress.removable = false;
            }
            let found = entry.record.encode().len();
            if found > MAX_REQUESTED_BYTES {
                entry.record.spec = before;
                if new {
                    self.revert_consumer(slot, &id);
                }
                let reason = format!(
                    "its record would have {found} bytes; at most {MAX_REQUESTED_BYTES} are accepted"
                );
                return Err(PublishError::Invalid { key: spec.key().clone(), reason });
            }
            self.mark_dirty(slot);
        }
        if new {
            let wanted = UnpublishError::Wanted { key: spec.key().clone(), consumer: id.clone() };
            self.answer_all(slot, |waiters| &mut waiters.unpublished, |waits| *waits == id, Err(wanted));
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return Ok((slot, new)) };
        let asked = reply.is_some();
        if let Some(reply) = reply.take() {
            add_waiter(&mut entry.waiters.published, id.clone(), reply);
        }
        let dormant = entry.machine.is_none();
        if dormant && self.drivers.get(&spec.key().driver).is_some_and(DriverEntry::is_connected) {
            self.activate(slot, now);
        } else if new || asked {
            self.attach_if_known(slot, now);
            // The state machine notifies again after a repeated request.
            self.feed(slot, Lifecycle::Want(id), now);
        }
        Ok((slot, new))
    }

    fn revert_consumer(&mut self, slot: Slot, id: &ConsumerId) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        // The consumer was published before, and the state machine releases it.
        if entry.target(id).is_some_and(|target| target.state != TargetState::Absent) {
            if let Some(snapshot) = entry.inactive_snapshot()
                && let Some(target) = snapshot.targets.get_mut(id)
            {
                target.wanted = false;
            }
            return;
        }
        if let Some(consumer) = entry.record.consumers.remove(id) {
            self.targets.remove(consumer.spec.target_path());
        }
        if let Some(snapshot) = entry.inactive_snapshot() {
            snapshot.targets.remove(id);
        }
        self.remove_if_untouched(slot);
    }

    /// Checks whether a consumer may be added to a known volume.
    fn check_consumer(
        &self,
        slot: Slot,
        spec: &VolumeSpec,
        consumer: &ConsumerSpec,
    ) -> Result<(), PublishError> {
        let Some(entry) = self.volumes.get(&slot) else { return Ok(()) };
        let key = entry.key.clone();
        if let Some(field) = difference(&entry.record.spec, spec)
            && !entry.is_unused()
        {
            return Err(PublishError::SpecDiffers { key, field });
        }
        for holder in entry.active_consumers() {
            if holder.id() != consumer.id() && spec.is_exclusive() {
                return Err(PublishError::Exclusive { key, holder: holder.id().clone() });
            }
            if holder.id() == consumer.id()
                && let Some(field) = holder.difference(consumer)
            {
                return Err(PublishError::ConsumerDiffers { key, consumer: consumer.id().clone(), field });
            }
        }
        let known =
            |id| entry.record.consumers.contains_key(id) && !entry.progress.unrecorded_releases.contains(id);
        if known(consumer.id()) {
            return Ok(());
        }
        if entry.active_consumers().count() >= MAX_CONSUMERS {
            return Err(PublishError::TooManyConsumers { key, limit: MAX_CONSUMERS });
        }
        Ok(())
    }

    /// Adds a new volume.
    fn admit(&mut self, spec: &Arc<VolumeSpec>, now: Duration) -> Result<Slot, PublishError> {
        let key = spec.key();
        if self.volumes.len() >= MAX_VOLUMES {
            return Err(PublishError::TooManyVolumes { limit: MAX_VOLUMES });
        }
        if let Some(driver) = self.drivers.get(&key.driver)
            && let Some(facts) = driver.facts.as_ref().filter(|_| driver.is_connected())
        {
            if !driver.policy.admits(spec) {
                return Err(lifecycle_mode_error(spec));
            }
            let found = u64::try_from(driver.volumes.len()).unwrap_or(u64::MAX);
            if let Some(limit) = facts.max_volumes.filter(|limit| *limit > 0 && found >= *limit) {
                return Err(PublishError::AttachLimit { driver: key.driver.clone(), found, limit });
            }
        }
        let invalid = |reason: String| PublishError::Invalid { key: key.clone(), reason };
        let mut suffix = 0;
        let (directory, record_key) = loop {
            let directory = directory_name(key, suffix);
            let record_key = record_key(key, &directory).map_err(|error| invalid(error.to_string()))?;
            if let Some(reason) = self.quarantined_names.get(record_key.name()) {
                return Err(PublishError::Quarantined { key: key.clone(), reason: reason.clone() });
            }
            if !self.directories.contains_key(record_key.name()) {
                break (directory, record_key);
            }
            suffix += 1;
        };
        let staging = self.staging_of(key, &directory).map_err(|error| invalid(error.to_string()))?;
        let slot = self.new_slot();
        let record = Record::new(Arc::clone(spec), directory, self.boot);
        let mut entry = Entry::new(key.clone(), record_key, staging, record);
        entry.since = now;
        self.insert(slot, entry);
        Ok(slot)
    }

    fn unpublish(
        &mut self,
        key: &VolumeKey,
        id: &ConsumerId,
        reply: Reply<Result<(), UnpublishError>>,
        now: Duration,
    ) {
        let Some(slot) = self.by_key.get(key).copied() else {
            let quarantined = self.quarantine_of(key);
            let quarantined =
                quarantined.map(|reason| UnpublishError::Quarantined { key: key.clone(), reason });
            return self.answer(reply, quarantined.map_or(Ok(()), Err));
        };
        if let Some(error) = self.commits.unavailable() {
            return self.answer(reply, Err(error.into()));
        }
        let entry = self.volumes.get_mut(&slot);
        let Some(entry) = entry.filter(|entry| entry.record.consumers.contains_key(id)) else {
            return self.answer(reply, Ok(()));
        };
        add_waiter(&mut entry.waiters.unpublished, id.clone(), reply);
        self.release(slot, id, now);
    }

    /// Releases a consumer.
    fn release(&mut self, slot: Slot, id: &ConsumerId, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let key = entry.key.clone();
        if entry.is_wanted_by(id) {
            self.mark_dirty(slot);
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if let Some(snapshot) = entry.inactive_snapshot()
            && let Some(target) = snapshot.targets.get_mut(id)
        {
            target.wanted = false;
            // No call was made for the consumer, so there is nothing to undo.
            if target.state == TargetState::Absent {
                snapshot.targets.remove(id);
                entry.progress.unrecorded_releases.insert(id.clone());
                // The target is immediately available to other consumers.
                if let Some(consumer) = entry.record.consumers.get(id) {
                    self.targets.remove(consumer.spec.target_path());
                }
                self.mark_dirty(slot);
                self.remove_if_untouched(slot);
            }
        }
        let released = PublishError::Released { key, consumer: id.clone() };
        self.answer_all(slot, |waiters| &mut waiters.published, |waits| waits == id, Err(released));
        // The state machine does not know this consumer, and would report the release before it is on disk.
        if self.volumes.get(&slot).is_some_and(|entry| !entry.progress.unrecorded_releases.contains(id)) {
            self.feed(slot, Lifecycle::Release(id.clone()), now);
        }
    }

    /// Removes a consumer whose target is unmounted. An empty directory may remain.
    pub(super) fn drop_consumer(&mut self, slot: Slot, id: &ConsumerId) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(removed) = entry.record.consumers.remove(id) else { return };
        entry.first_publish.remove(id);
        let target = removed.spec.target_path();
        if self.targets.get(target).is_some_and(|(of, holder)| *of == slot && holder == id) {
            self.targets.remove(target);
        }
        if removed.touched {
            let path = removed.spec.target_path().as_path().to_owned();
            self.actions.push(Action::RemoveEmpty(vec![path]));
        }
        self.notify(slot, ChangeKind::Unpublished(id.clone()));
    }

    /// Removes the record of a volume without consumers for which no call was made.
    fn remove_if_untouched(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let is_created = entry.state == VolumeState::Created;
        let Some(snapshot) = entry.inactive_snapshot() else { return };
        if snapshot.targets.is_empty() && is_created && snapshot.expansion.is_none() {
            entry.progress.removable = true;
            self.commits.add(slot);
        }
    }

    fn check_expand(&self, key: &VolumeKey, required_bytes: u64) -> Result<Slot, ExpandError> {
        let unknown = || ExpandError::Unknown { key: key.clone() };
        let slot = self.by_key.get(key).copied().ok_or_else(unknown)?;
        if let Some(error) = self.commits.unavailable() {
            return Err(error.into());
        }
        let entry = self.volumes.get(&slot).ok_or_else(unknown)?;
        if entry.machine.is_none() {
            return Err(ExpandError::NoDriver { driver: key.driver.clone() });
        }
        if required_bytes == 0 || i64::try_from(required_bytes).is_err() {
            return Err(ExpandError::Size { found: required_bytes });
        }
        Ok(slot)
    }

    fn expand(
        &mut self,
        slot: Slot,
        required_bytes: u64,
        reply: Reply<Result<u64, ExpandError>>,
        now: Duration,
    ) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        add_waiter(&mut entry.waiters.expanded, required_bytes, reply);
        self.mark_dirty(slot);
        self.feed(slot, Lifecycle::Expand { required_bytes }, now);
    }

    /// Records an external attach or, without a context, an external detach.
    fn attach(
        &mut self,
        key: &VolumeKey,
        publish_context: Option<BTreeMap<String, String>>,
        reply: Reply<Result<bool, AttachError>>,
        now: Duration,
    ) {
        let Some(slot) = self.by_key.get(key).copied() else { return self.answer(reply, Ok(false)) };
        if let Some(error) = self.commits.unavailable() {
            return self.answer(reply, Err(error.into()));
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let is_attached = publish_context.is_some();
        let taken = entry.take_publish_context(publish_context.unwrap_or_default());
        if let Err(reason) = taken.or_else(|reason| if is_attached { Err(reason) } else { Ok(()) }) {
            return self.answer(reply, Err(AttachError::Invalid { key: key.clone(), reason }));
        }
        if let Some(snapshot) = entry.inactive_snapshot() {
            snapshot.attached = is_attached;
        }
        self.mark_dirty(slot);
        self.answer_when_durable(
            [slot],
            reply.map(|durable: Result<(), _>| durable.map(|()| true).map_err(AttachError::from)),
        );
        self.feed(slot, if is_attached { Lifecycle::Attached } else { Lifecycle::Detached }, now);
    }

    fn reconcile(
        &mut self,
        desired: &[DesiredVolume],
        reply: Reply<Result<Reconciled, ReconcileError>>,
        now: Duration,
    ) {
        if let Some(error) = self.commits.unavailable() {
            return self.answer(reply, Err(error.into()));
        }
        let mut wanted: BTreeMap<&VolumeKey, &DesiredVolume> = BTreeMap::new();
        for volume in desired {
            if wanted.insert(volume.spec.key(), volume).is_some() {
                let key = volume.spec.key().clone();
                return self.answer(reply, Err(ReconcileError::Twice { key }));
            }
        }
        let mut reconciled = Reconciled::default();
        let mut touched = Vec::new();
        // Consumers are released before others are added, so that the targets are available.
        let mut releases = Vec::new();
        for (key, slot) in &self.by_key {
            let Some(entry) = self.volumes.get(slot) else { continue };
            let stays = |id: &ConsumerId| {
                let volume = wanted.get(key);
                volume.is_some_and(|volume| volume.consumers.iter().any(|consumer| consumer.id() == id))
            };
            for id in entry.record.consumers.keys() {
                if entry.is_wanted_by(id) && !stays(id) {
                    releases.push((*slot, id.clone()));
                }
            }
        }
        for (slot, id) in releases {
            self.release(slot, &id, now);
            reconciled.released += 1;
            touched.push(slot);
        }
        for volume in wanted.values() {
            for consumer in &volume.consumers {
                match self.add_consumer(&volume.spec, consumer, &mut None, now) {
                    Ok((slot, new)) => {
                        reconciled.wanted += usize::from(new);
                        touched.push(slot);
                    }
                    Err(error) => {
                        let key = volume.spec.key().clone();
                        reconciled.refused.push((key, consumer.id().clone(), error));
                    }
                }
            }
        }
        let reply = reply.map(|durable: Result<(), _>| durable.map(|()| reconciled).map_err(Into::into));
        self.answer_when_durable(touched, reply);
    }

    fn query(&mut self, key: &VolumeKey, query: Query, reply: Reply<Result<CallOutcome, InspectError>>) {
        let asked = self.check_query(key, query);
        let entry = asked.and_then(|slot| {
            let entry = self.volumes.get_mut(&slot).map(|entry| (slot, entry));
            entry.ok_or_else(|| InspectError::Unknown { key: key.clone() })
        });
        match entry {
            Ok((slot, entry)) => {
                entry.queries.push_back((query, reply));
                self.enqueue(slot);
            }
            Err(error) => self.answer(reply, Err(error)),
        }
    }

    fn check_query(&mut self, key: &VolumeKey, query: Query) -> Result<Slot, InspectError> {
        let unknown = || InspectError::Unknown { key: key.clone() };
        let slot = self.by_key.get(key).copied().ok_or_else(unknown)?;
        let driver = key.driver.clone();
        let facts = self.drivers.get(&driver).filter(|driver| driver.is_connected());
        let Some(facts) = facts.and_then(|driver| driver.facts.as_ref()) else {
            return Err(InspectError::NoDriver { driver });
        };
        let node = facts.capabilities.node;
        let (has, capability) = match query {
            Query::Stats => (node.volume_stats, "GET_VOLUME_STATS"),
            Query::Health => (node.volume_health, "GET_VOLUME_HEALTH"),
        };
        if !has {
            return Err(InspectError::Unsupported { driver, capability });
        }
        let entry = self.volumes.get_mut(&slot).ok_or_else(unknown)?;
        if entry.volume_path().is_none() {
            return Err(InspectError::NotMounted { key: key.clone(), state: entry.state.to_string() });
        }
        entry.queries.retain(|(_, reply)| !reply.is_closed());
        if entry.queries.len() >= MAX_QUERIES {
            return Err(InspectError::Busy { key: key.clone() });
        }
        Ok(slot)
    }

    /// Returns the reason why the record of a volume is quarantined, if it is.
    pub(super) fn quarantine_of(&self, key: &VolumeKey) -> Option<String> {
        let name = record_key(key, &directory_name(key, 0)).ok()?;
        self.quarantined_names.get(name.name()).cloned()
    }
}

/// The maximum size of a record in bytes when a request is accepted. The rest is reserved for driver responses and
/// observed mounts.
const MAX_REQUESTED_BYTES: usize = MAX_PAYLOAD_BYTES - 96 * 1024;

/// Returns the first field in which two specs of a volume differ for a driver.
fn difference(known: &VolumeSpec, asked: &VolumeSpec) -> Option<&'static str> {
    [
        ("access", known.access() == asked.access()),
        ("access mode", known.mode() == asked.mode()),
        ("read_only", known.is_read_only() == asked.is_read_only()),
        ("lifecycle mode", known.is_ephemeral() == asked.is_ephemeral()),
        ("attach", known.attach() == asked.attach()),
        ("volume_context", known.volume_context() == asked.volume_context()),
        ("fs_group", known.fs_group() == asked.fs_group()),
        ("selinux_label", known.selinux_label() == asked.selinux_label()),
    ]
    .into_iter()
    .find(|(_, same)| !same)
    .map(|(field, _)| field)
}
