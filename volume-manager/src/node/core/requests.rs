//! What is asked for: whether it can be, and what it changes.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::commits::Promise;
use super::entry::{Entry, Life, MAX_QUERIES, Query, Wish, untouched};
use super::event::{Action, Answer, Ask};
use super::{Node, RequestId, Slot};
use crate::driver::{ConsumerConflict, ConsumerSpec, VolumeSpec};
use crate::lifecycle::{Event as Lifecycle, Policy, Target, TargetState, VolumeState};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::change::ChangeKind;
use crate::node::desired::{DesiredVolume, Reconciled};
use crate::node::error::{
    AttachError, ExpandError, InspectError, PublishError, ReconcileError, UnpublishError,
};
use crate::node::record::{RecordedConsumer, record_key};
use crate::node::settings::MAX_VOLUMES;
use crate::node::staging::directory_name;
use crate::store::MAX_PAYLOAD_BYTES;

impl Node {
    pub(super) fn ask(&mut self, request: RequestId, ask: Ask, now: Duration) {
        match ask {
            Ask::Publish { spec, consumer } => {
                if let Err(error) = self.want(&spec, &consumer, Some(request), now) {
                    self.answer(request, Answer::Published(Err(error)));
                }
            }
            Ask::Unpublish { key, consumer } => self.unpublish(request, &key, &consumer, now),
            Ask::Expand { key, required_bytes } => self.expand(request, &key, required_bytes, now),
            Ask::Attached { key, publish_context } => {
                self.attached(request, &key, publish_context, now);
            }
            Ask::Detached { key } => {
                self.detached(request, &key, now);
            }
            Ask::Reconcile(desired) => self.reconcile(request, &desired, now),
            Ask::Stats(key) => self.query(request, key, Query::Stats, now),
            Ask::Health(key) => self.query(request, key, Query::Health, now),
        }
    }

    /// Forgets who waits; what is asked for stays.
    pub(super) fn abandon(&mut self, requests: &HashSet<RequestId>) {
        for entry in self.volumes.values_mut() {
            entry.waiters.retain(|(waits, _)| !requests.contains(waits));
            entry.queries.retain(|(waits, _)| !requests.contains(waits));
        }
        self.commits.abandon(requests);
    }

    /// Notes that a consumer wants a volume, and who is to be told when it has it. Answers whether it is wanted anew.
    fn want(
        &mut self,
        spec: &Arc<VolumeSpec>,
        consumer: &Arc<ConsumerSpec>,
        request: Option<RequestId>,
        now: Duration,
    ) -> Result<(Slot, bool), PublishError> {
        if let Some(trouble) = self.commits.trouble() {
            return Err(trouble.into());
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
                self.may_have(slot, spec, consumer)?;
                slot
            }
            None => self.admit(spec, now)?,
        };
        let id = consumer.id().clone();
        let Some(entry) = self.volumes.get_mut(&slot) else { return Ok((slot, false)) };
        if entry.is_idle() && difference(&entry.spec, spec).is_some() {
            // Nothing was done with the old description, and it is the new one's life that begins.
            entry.life = Life::Dormant { snapshot: untouched(), boot: self.boot };
            entry.spec = Arc::clone(spec);
        }
        let new = !entry.is_wanted_by(&id);
        let described = entry.with_publish_context(spec);
        let changed = entry.spec != described;
        let before = std::mem::replace(&mut entry.spec, described);
        // One that leaves and for which nothing was done comes anew.
        if entry.leaving.remove(&id) {
            entry.consumers.remove(&id);
        }
        if let MapEntry::Vacant(vacant) = entry.consumers.entry(id.clone()) {
            vacant.insert(RecordedConsumer {
                spec: Arc::clone(consumer),
                mounted: None,
                device: None,
                touched: false,
            });
            self.targets.insert(consumer.target_path().clone(), (slot, id.clone()));
        }
        if new || changed {
            if let Life::Dormant { snapshot, .. } = &mut entry.life {
                let absent = Target { wanted: true, state: TargetState::Absent };
                snapshot.targets.entry(id.clone()).or_insert(absent).wanted = true;
                entry.forgotten = false;
            }
            let found = entry.record(self.boot).encode().len();
            if found > MAX_ASKED_BYTES {
                entry.spec = before;
                if new {
                    self.take_back(slot, &id);
                }
                let reason =
                    format!("its record would have {found} bytes, and at most {MAX_ASKED_BYTES} are taken");
                return Err(PublishError::Invalid { key: spec.key().clone(), reason });
            }
            self.note_asked(slot);
        }
        if new {
            self.answer_wish(slot, &Wish::Unpublish(id.clone()), || {
                let (key, consumer) = (spec.key().clone(), id.clone());
                Answer::Unpublished(Err(UnpublishError::Wanted { key, consumer }))
            });
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return Ok((slot, new)) };
        entry.waiters.extend(request.map(|request| (request, Wish::Publish(id.clone()))));
        let dormant = matches!(entry.life, Life::Dormant { .. });
        if dormant && self.drivers.get(&spec.key().driver).is_some_and(|driver| driver.connected) {
            self.wake(slot, now);
        } else if new || request.is_some() {
            self.attach_if_told(slot, now);
            // Asked again, the machine tells again.
            self.feed(slot, Lifecycle::Want(id), now);
        }
        Ok((slot, new))
    }

    fn take_back(&mut self, slot: Slot, id: &ConsumerId) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        // It had it before, and it is the machine's to let it go.
        if entry.target(id).is_some_and(|target| target.state != TargetState::Absent) {
            if let Life::Dormant { snapshot, .. } = &mut entry.life
                && let Some(target) = snapshot.targets.get_mut(id)
            {
                target.wanted = false;
            }
            return;
        }
        if let Some(consumer) = entry.consumers.remove(id) {
            self.targets.remove(consumer.spec.target_path());
        }
        if let Life::Dormant { snapshot, .. } = &mut entry.life {
            snapshot.targets.remove(id);
        }
        self.forget_if_untouched(slot);
    }

    /// Whether a consumer may have a volume that is known.
    fn may_have(&self, slot: Slot, spec: &VolumeSpec, consumer: &ConsumerSpec) -> Result<(), PublishError> {
        let Some(entry) = self.volumes.get(&slot) else { return Ok(()) };
        let key = entry.key.clone();
        if let Some(field) = difference(&entry.spec, spec)
            && !entry.is_idle()
        {
            return Err(PublishError::SpecDiffers { key, field });
        }
        spec.conflicts(entry.holders(), consumer).map_err(|conflict| match conflict {
            ConsumerConflict::Exclusive { holder, .. } => {
                PublishError::Exclusive { key: key.clone(), holder }
            }
            ConsumerConflict::Target { target_path, holder } => {
                let target = target_path.as_path().to_owned();
                PublishError::TargetTaken { target, key: key.clone(), holder }
            }
            ConsumerConflict::Changed { field, .. } => {
                let consumer = consumer.id().clone();
                PublishError::ConsumerDiffers { key: key.clone(), consumer, field }
            }
            ConsumerConflict::Moved { .. } => {
                let consumer = consumer.id().clone();
                PublishError::ConsumerDiffers { key: key.clone(), consumer, field: "target_path" }
            }
        })?;
        let known = |id| entry.consumers.contains_key(id) && !entry.leaving.contains(id);
        if known(consumer.id()) {
            return Ok(());
        }
        let limit = usize::from(Policy::default().max_consumers);
        if entry.holders().count() >= limit {
            return Err(PublishError::TooManyConsumers { key, limit });
        }
        Ok(())
    }

    /// Takes in a volume that is not known yet.
    fn admit(&mut self, spec: &Arc<VolumeSpec>, now: Duration) -> Result<Slot, PublishError> {
        let key = spec.key();
        if self.volumes.len() >= MAX_VOLUMES {
            return Err(PublishError::TooManyVolumes { limit: MAX_VOLUMES });
        }
        if let Some(driver) = self.drivers.get(&key.driver)
            && let Some(facts) = driver.facts.as_ref().filter(|_| driver.connected)
        {
            if driver.policy.admits(spec).is_err() {
                let mode = if spec.is_ephemeral() { "Ephemeral" } else { "Persistent" };
                return Err(PublishError::LifecycleMode { driver: key.driver.clone(), mode });
            }
            let found = u64::try_from(driver.volumes.len()).unwrap_or(u64::MAX);
            if let Some(limit) = facts.max_volumes.filter(|limit| *limit > 0 && found >= *limit) {
                return Err(PublishError::AttachLimit { driver: key.driver.clone(), found, limit });
            }
        }
        let invalid = |reason: String| PublishError::Invalid { key: key.clone(), reason };
        let mut turn = 0;
        let (directory, record_key) = loop {
            let directory = directory_name(key, turn);
            let record_key = record_key(key, &directory).map_err(|error| invalid(error.to_string()))?;
            if let Some(reason) = self.quarantined_names.get(record_key.name()) {
                return Err(PublishError::Quarantined { key: key.clone(), reason: reason.clone() });
            }
            if !self.directories.contains_key(record_key.name()) {
                break (directory, record_key);
            }
            turn += 1;
        };
        let staging = self.staging_of(key, &directory).map_err(|error| invalid(error.to_string()))?;
        let slot = self.new_slot();
        let life = Life::Dormant { snapshot: untouched(), boot: self.boot };
        let mut entry = Entry::new(key.clone(), Arc::clone(spec), directory, record_key, staging, life);
        entry.since = now;
        self.insert(slot, entry);
        Ok(slot)
    }

    fn unpublish(&mut self, request: RequestId, key: &VolumeKey, id: &ConsumerId, now: Duration) {
        let Some(slot) = self.by_key.get(key).copied() else {
            let answer = match self.quarantine_of(key) {
                Some(reason) => Err(UnpublishError::Quarantined { key: key.clone(), reason }),
                None => Ok(()),
            };
            return self.answer(request, Answer::Unpublished(answer));
        };
        if let Some(trouble) = self.commits.trouble() {
            return self.answer(request, Answer::Unpublished(Err(trouble.into())));
        }
        if self.volumes.get(&slot).is_none_or(|entry| !entry.consumers.contains_key(id)) {
            return self.answer(request, Answer::Unpublished(Ok(())));
        }
        if let Some(entry) = self.volumes.get_mut(&slot) {
            entry.waiters.push((request, Wish::Unpublish(id.clone())));
        }
        self.release(slot, id, now);
    }

    /// Notes that a consumer does not want a volume any more.
    fn release(&mut self, slot: Slot, id: &ConsumerId, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let key = entry.key.clone();
        if entry.is_wanted_by(id) {
            self.note_asked(slot);
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if let Life::Dormant { snapshot, .. } = &mut entry.life
            && let Some(target) = snapshot.targets.get_mut(id)
        {
            target.wanted = false;
            // Nothing was ever done for it, so there is nothing to undo.
            if target.state == TargetState::Absent {
                snapshot.targets.remove(id);
                entry.leaving.insert(id.clone());
                // Its target is free for another at once.
                if let Some(consumer) = entry.consumers.get(id) {
                    self.targets.remove(consumer.spec.target_path());
                }
                self.note_asked(slot);
                self.forget_if_untouched(slot);
            }
        }
        self.answer_wish(slot, &Wish::Publish(id.clone()), || {
            Answer::Published(Err(PublishError::Released { key: key.clone(), consumer: id.clone() }))
        });
        // The machine does not know one that leaves, and would say that it is gone before that is on disk.
        if self.volumes.get(&slot).is_some_and(|entry| !entry.leaving.contains(id)) {
            self.feed(slot, Lifecycle::Release(id.clone()), now);
        }
    }

    /// Forgets a consumer at whose target nothing is any more, but perhaps an empty place.
    pub(super) fn drop_consumer(&mut self, slot: Slot, id: &ConsumerId) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(gone) = entry.consumers.remove(id) else { return };
        entry.fresh.remove(id);
        let target = gone.spec.target_path();
        if self.targets.get(target).is_some_and(|(of, holder)| *of == slot && holder == id) {
            self.targets.remove(target);
        }
        if gone.touched {
            let place = gone.spec.target_path().as_path().to_owned();
            self.actions.push(Action::Clear(vec![place]));
        }
        self.tell(slot, ChangeKind::Unpublished(id.clone()));
    }

    /// A volume that nothing was done with, and that nobody wants, leaves no record.
    fn forget_if_untouched(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Life::Dormant { snapshot, .. } = &entry.life else { return };
        if snapshot.targets.is_empty() && entry.state == VolumeState::Created && snapshot.expansion.is_none()
        {
            entry.forgotten = true;
            self.commits.add(slot);
        }
    }

    fn expand(&mut self, request: RequestId, key: &VolumeKey, required_bytes: u64, now: Duration) {
        let refuse = |error| Answer::Expanded(Err(error));
        let Some(slot) = self.by_key.get(key).copied() else {
            return self.answer(request, refuse(ExpandError::Unknown { key: key.clone() }));
        };
        if let Some(trouble) = self.commits.trouble() {
            return self.answer(request, refuse(trouble.into()));
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if matches!(entry.life, Life::Dormant { .. }) {
            return self.answer(request, refuse(ExpandError::NoDriver { driver: key.driver.clone() }));
        }
        if required_bytes == 0 || i64::try_from(required_bytes).is_err() {
            return self.answer(request, refuse(ExpandError::Size { found: required_bytes }));
        }
        entry.waiters.push((request, Wish::Expand(required_bytes)));
        self.note_asked(slot);
        self.feed(slot, Lifecycle::Expand { required_bytes }, now);
    }

    fn attached(
        &mut self,
        request: RequestId,
        key: &VolumeKey,
        publish_context: BTreeMap<String, String>,
        now: Duration,
    ) {
        let Some(slot) = self.by_key.get(key).copied() else {
            return self.answer(request, Answer::Noted(Ok(false)));
        };
        if let Some(trouble) = self.commits.trouble() {
            return self.answer(request, Answer::Noted(Err(trouble.into())));
        }
        let boot = self.boot;
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if let Err(reason) = entry.take_publish_context(publish_context, boot) {
            let key = key.clone();
            return self.answer(request, Answer::Noted(Err(AttachError::Invalid { key, reason })));
        }
        if let Life::Dormant { snapshot, .. } = &mut entry.life {
            snapshot.attached = true;
        }
        self.note_asked(slot);
        self.answer_when_durable(request, [slot], Promise::Noted);
        self.feed(slot, Lifecycle::Attached, now);
    }

    fn detached(&mut self, request: RequestId, key: &VolumeKey, now: Duration) {
        let Some(slot) = self.by_key.get(key).copied() else {
            return self.answer(request, Answer::Noted(Ok(false)));
        };
        if let Some(trouble) = self.commits.trouble() {
            return self.answer(request, Answer::Noted(Err(trouble.into())));
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let none: [(String, String); 0] = [];
        if let Ok(spec) = entry.spec.to_builder().publish_context(none).build() {
            entry.spec = Arc::new(spec);
        }
        if let Life::Dormant { snapshot, .. } = &mut entry.life {
            snapshot.attached = false;
        }
        self.note_asked(slot);
        self.answer_when_durable(request, [slot], Promise::Noted);
        self.feed(slot, Lifecycle::Detached, now);
    }

    fn reconcile(&mut self, request: RequestId, desired: &[DesiredVolume], now: Duration) {
        if let Some(trouble) = self.commits.trouble() {
            return self.answer(request, Answer::Reconciled(Err(trouble.into())));
        }
        let mut wanted: BTreeMap<&VolumeKey, &DesiredVolume> = BTreeMap::new();
        for volume in desired {
            if wanted.insert(volume.spec.key(), volume).is_some() {
                let key = volume.spec.key().clone();
                return self.answer(request, Answer::Reconciled(Err(ReconcileError::Twice { key })));
            }
        }
        let mut reconciled = Reconciled::default();
        let mut touched = Vec::new();
        // What is not wanted any more goes first, so that its target is free for what is.
        let mut releases = Vec::new();
        for (key, slot) in &self.by_key {
            let Some(entry) = self.volumes.get(slot) else { continue };
            let stays = |id: &ConsumerId| {
                let volume = wanted.get(key);
                volume.is_some_and(|volume| volume.consumers.iter().any(|consumer| consumer.id() == id))
            };
            for id in entry.consumers.keys() {
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
                match self.want(&volume.spec, consumer, None, now) {
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
        self.answer_when_durable(request, touched, Promise::Reconciled(reconciled));
    }

    fn query(&mut self, request: RequestId, key: VolumeKey, query: Query, now: Duration) {
        let refuse = |error| Answer::Inspected(Err(error));
        let Some(slot) = self.by_key.get(&key).copied() else {
            return self.answer(request, refuse(InspectError::Unknown { key }));
        };
        let driver = key.driver.clone();
        let facts = self.drivers.get(&driver).filter(|driver| driver.connected);
        let Some(facts) = facts.and_then(|driver| driver.facts.as_ref()) else {
            return self.answer(request, refuse(InspectError::NoDriver { driver }));
        };
        let node = facts.capabilities.node;
        let (has, capability) = match query {
            Query::Stats => (node.volume_stats, "GET_VOLUME_STATS"),
            Query::Health => (node.volume_health, "GET_VOLUME_HEALTH"),
        };
        if !has {
            return self.answer(request, refuse(InspectError::Unsupported { driver, capability }));
        }
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if entry.volume_path().is_none() {
            let state = entry.state.to_string();
            return self.answer(request, refuse(InspectError::NotMounted { key, state }));
        }
        if entry.queries.len() >= MAX_QUERIES {
            return self.answer(request, refuse(InspectError::Busy { key }));
        }
        entry.queries.push_back((request, query));
        self.wait_for_turn(slot, now);
    }

    /// Why the record of a volume cannot be used.
    pub(super) fn quarantine_of(&self, key: &VolumeKey) -> Option<String> {
        let name = record_key(key, &directory_name(key, 0)).ok()?;
        self.quarantined_names.get(name.name()).cloned()
    }
}

impl Entry {
    pub(super) fn new(
        key: VolumeKey,
        spec: Arc<VolumeSpec>,
        directory: String,
        record_key: crate::store::RecordKey,
        staging: crate::driver::MountPath,
        life: Life,
    ) -> Self {
        Self {
            key,
            spec,
            directory,
            record_key,
            staging,
            consumers: BTreeMap::new(),
            life,
            staged: None,
            touched: false,
            node_id: None,
            last_error: None,
            refused: None,
            running: None,
            wanted_call: None,
            wanted_look: None,
            queries: std::collections::VecDeque::new(),
            waiters: Vec::new(),
            state: VolumeState::Created,
            since: Duration::ZERO,
            version: 0,
            durable: 0,
            recording: false,
            leaving: BTreeSet::new(),
            fresh: BTreeSet::new(),
            unused_at: None,
            left_out: false,
            losses: 0,
            inspections: 0,
            heal_at: Duration::ZERO,
            forgotten: false,
            checked: 0,
        }
    }
}

/// The most bytes of a record when something is asked for: what a driver answers and what is seen mounted comes on top.
const MAX_ASKED_BYTES: usize = MAX_PAYLOAD_BYTES - 96 * 1024;

/// The first field in which two descriptions of a volume would make a driver do different things.
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
