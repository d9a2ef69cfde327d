//! Computes the volumes that the pods of the node need, from the node's objects. No I/O, no clock.
//!
//! A missing object removes nothing: a pod volume with a missing claim, volume or driver keeps its mounts. Only
//! a pod that has ended, or was removed, releases its volumes.

mod entry;
mod room;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use csi_proto::DriverName;
use volume_manager::driver::{Attach, ConsumerSpec, DriverPolicy, VolumeSpec};
use volume_manager::message::{DesiredSet, MAX_CONSUMERS, consumer_bytes, policy_bytes, volume_bytes};
use volume_manager::node::DesiredVolume;
use volume_manager::{ConsumerId, VolumeKey};

pub(super) use self::entry::{Expansion, Place, PodVolumePlan};
use self::room::{Bytes, Room};
use self::volume::{Found, find, policy, with_mode_of};
use super::in_use::InUse;
use super::layout::KubeletDirectory;
use super::metadata::Metadata;

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// The node's objects.
    pub(super) metadata: &'a Metadata,
    /// The set that is wanted so far.
    pub(super) before: &'a DesiredSet,
    /// The volumes that are staged or published.
    pub(super) mounted: &'a BTreeSet<VolumeKey>,
    /// The volumes that the cluster knows to be in use.
    pub(super) in_use: &'a InUse,
}

/// The set of volumes of the node, and the result for each volume of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// The volumes, under the number of the set before.
    pub(super) set: DesiredSet,
    /// Each volume of a pod that has not ended, in order.
    pub(super) pod_volumes: Vec<PodVolumePlan>,
    /// The volumes that are to be larger, each once.
    pub(super) expansions: Vec<Expansion>,
    /// Volumes that are attached, and wait until the cluster knows that they are in use.
    pub(super) unmarked: BTreeSet<VolumeKey>,
    /// Consumers that cannot be found now and were not in the set before.
    pub(super) unknown: Vec<ConsumerId>,
}

impl Plan {
    /// All consumers of the set.
    pub(super) fn consumers(&self) -> BTreeSet<&ConsumerId> {
        let volumes = self.set.volumes.iter();
        volumes.flat_map(|volume| &volume.consumers).map(|consumer| consumer.id()).collect()
    }
}

/// One volume, as the pods have it together.
#[derive(Debug, Default)]
struct Candidate {
    /// Descriptions by PersistentVolume; more than one if several have the same handle.
    specs: BTreeMap<String, Arc<VolumeSpec>>,
    /// The spec of the previous set, if a consumer with missing objects stays.
    kept: Option<Arc<VolumeSpec>>,
    consumers: BTreeMap<ConsumerId, Arc<ConsumerSpec>>,
}

/// Whether a volume that others attach may be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attachment {
    /// It is not attached, or is not attached at all.
    Missing,
    /// The cluster does not know yet that it is in use, and might detach it under the mount.
    Unmarked,
    Made,
}

/// The most bytes of an entry of a map besides its key and its value.
const ENTRY: usize = 16;

/// Makes the plan.
pub(super) fn plan(known: Known<'_>, directory: &KubeletDirectory) -> Plan {
    Planner::new(known, directory).plan()
}

struct Planner<'a> {
    known: Known<'a>,
    directory: &'a KubeletDirectory,
    /// The descriptions of the set before.
    described: BTreeMap<&'a VolumeKey, &'a Arc<VolumeSpec>>,
    /// What the attachments say that are attached, by attacher and volume.
    attached: BTreeMap<(&'a str, &'a str), &'a BTreeMap<String, String>>,
    /// Each consumer of the set before, with its volume.
    before: BTreeMap<&'a str, (&'a DesiredVolume, &'a Arc<ConsumerSpec>)>,
    volumes: BTreeMap<VolumeKey, Candidate>,
    room: Room,
    /// The consumer of each path.
    targets: BTreeMap<String, (VolumeKey, ConsumerId)>,
    pod_volumes: Vec<PodVolumePlan>,
    expansions: BTreeMap<(String, String), Expansion>,
    unknown: Vec<ConsumerId>,
}

impl<'a> Planner<'a> {
    fn new(known: Known<'a>, directory: &'a KubeletDirectory) -> Self {
        let consumers = known.before.volumes.iter().flat_map(|volume| {
            volume.consumers.iter().map(move |consumer| (consumer.id().as_str(), (volume, consumer)))
        });
        let attachments = known.metadata.attachments().filter(|attachment| attachment.attached);
        let attached = attachments.map(|attachment| {
            ((attachment.attacher.as_str(), attachment.volume.as_str()), &attachment.metadata)
        });
        Self {
            known,
            directory,
            described: known.before.volumes.iter().map(|volume| (volume.spec.key(), &volume.spec)).collect(),
            attached: attached.collect(),
            before: consumers.collect(),
            volumes: BTreeMap::new(),
            room: Room::default(),
            targets: BTreeMap::new(),
            pod_volumes: Vec::new(),
            expansions: BTreeMap::new(),
            unknown: Vec::new(),
        }
    }

    fn plan(mut self) -> Plan {
        let (metadata, directory) = (self.known.metadata, self.directory);
        let mut asked = Vec::new();
        for pod in metadata.pods().filter(|pod| !pod.ended) {
            for volume in &pod.volumes {
                let place = Place::Nowhere("its pod's UID and its name are not a consumer id".to_owned());
                self.pod_volumes.push(PodVolumePlan::new(pod, volume, place));
                if let Ok(id) = ConsumerId::new(&format!("{}/{}", pod.uid, volume.name)) {
                    let found = find(metadata, directory, pod, volume, &id);
                    asked.push((self.pod_volumes.len() - 1, id, found.map_err(|reason| reason.to_string())));
                }
            }
        }
        // Consumers with a volume are planned before new ones, so that a bound or a used path refuses the new ones.
        asked.sort_by_key(|(_, id, found)| match found {
            Err(_) => 0,
            Ok(_) if self.before.contains_key(id.as_str()) => 1,
            // Where the set was lost, it was in that.
            Ok(found) if self.known.mounted.contains(found.spec.key()) => 2,
            Ok(_) => 3,
        });
        for (at, id, found) in asked {
            let once = found.as_ref().is_ok_and(|found| found.read_write_once);
            let place = match found {
                Ok(found) => self.add(found, id),
                Err(reason) => self.keep(id, reason),
            };
            if let Some(planned) = self.pod_volumes.get_mut(at) {
                (planned.place, planned.read_write_once) = (place, once);
            }
        }
        let (mut volumes, mut attached, mut unmarked) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (key, candidate) in std::mem::take(&mut self.volumes) {
            let Some((spec, attachment)) = self.described(&key, &candidate) else { continue };
            match attachment {
                Attachment::Missing => {}
                Attachment::Unmarked => drop(unmarked.insert(key)),
                Attachment::Made => drop(attached.insert(key)),
            }
            volumes.push(DesiredVolume { spec, consumers: candidate.consumers.into_values().collect() });
        }
        let used = volumes.iter().map(|volume| &volume.spec.key().driver);
        let mut policies: BTreeMap<_, _> = used.map(|driver| (driver.clone(), self.policy(driver))).collect();
        // With the others that there is room for: a driver need not be connected to anew for its first pod.
        for object in metadata.drivers() {
            if let Ok(name) = DriverName::new(&object.name)
                && let Entry::Vacant(vacant) = policies.entry(name)
            {
                let policy = policy(object);
                if self.room.takes_policy(vacant.key(), policy_bytes(vacant.key(), &policy)) {
                    vacant.insert(policy);
                }
            }
        }
        let revision = self.known.before.revision;
        let set = DesiredSet { revision, volumes, attached, policies };
        let expansions = self.expansions.into_values().collect();
        Plan { set, pod_volumes: self.pod_volumes, expansions, unmarked, unknown: self.unknown }
    }

    /// Gives a pod a volume that was found.
    fn add(&mut self, found: Found, id: ConsumerId) -> Place {
        let key = found.spec.key().clone();
        let target = found.consumer.target_path().to_string();
        match self.targets.get(&target) {
            // The pod has one volume under two names, at one place.
            Some((of, holder)) if *of == key => {
                return Place::At { key, consumer: holder.clone(), unsure: None };
            }
            Some((of, _)) => {
                return Place::Nowhere(format!("{of} has the same place in this pod: rename one of them"));
            }
            None => {}
        }
        if self.volumes.get(&key).is_some_and(|candidate| candidate.consumers.len() >= MAX_CONSUMERS) {
            return Place::Nowhere(format!("{key} has {MAX_CONSUMERS} pods on this node, which is the most"));
        }
        let bytes = self.bytes(&found.spec, &found.consumer, self.attached_as(&key, &found.name));
        if !self.had(&id, &key)
            && let Err(full) = self.room.for_one_more(&key, bytes)
        {
            return Place::Nowhere(full.to_string());
        }
        self.room.add(&key, bytes);
        let candidate = self.volumes.entry(key.clone()).or_default();
        candidate.specs.entry(found.name).or_insert(found.spec);
        candidate.consumers.insert(id.clone(), Arc::new(found.consumer));
        self.targets.insert(target, (key.clone(), id.clone()));
        if let Some(expansion) = found.expansion {
            let claim = (expansion.namespace.clone(), expansion.name.clone());
            self.expansions.entry(claim).or_insert(expansion);
        }
        Place::At { key, consumer: id, unsure: None }
    }

    /// Leaves a pod what it has, if it has something.
    fn keep(&mut self, id: ConsumerId, reason: String) -> Place {
        let Some((volume, consumer)) = self.before.get(id.as_str()) else {
            self.unknown.push(id);
            return Place::Nowhere(reason);
        };
        let key = volume.spec.key().clone();
        self.room.add(&key, self.bytes(&volume.spec, consumer, None));
        let candidate = self.volumes.entry(key.clone()).or_default();
        candidate.kept.get_or_insert_with(|| Arc::clone(&volume.spec));
        candidate.consumers.insert(id.clone(), Arc::clone(consumer));
        self.targets.insert(consumer.target_path().to_string(), (key.clone(), id.clone()));
        Place::At { key, consumer: id, unsure: Some(reason) }
    }

    /// The one description of a volume, and whether it is attached.
    fn described(&self, key: &VolumeKey, candidate: &Candidate) -> Option<(Arc<VolumeSpec>, Attachment)> {
        let before = self.described.get(key).copied();
        // Where several PersistentVolumes have one handle, the one that was taken first stays.
        let is_as_before = |spec: &&Arc<VolumeSpec>| {
            before.is_some_and(|before| {
                before.volume_context() == spec.volume_context() && before.access() == spec.access()
            })
        };
        let found = candidate.specs.values().find(is_as_before).or_else(|| candidate.specs.values().next());
        let Some(spec) = found else {
            let kept = candidate.kept.clone()?;
            let attached = self.known.before.is_attached(&kept);
            return Some((kept, if attached { Attachment::Made } else { Attachment::Missing }));
        };
        let mounted = self.known.mounted.contains(key);
        // Existing consumers keep their access mode, and could not change it.
        let asked = before.filter(|_| mounted || candidate.consumers.keys().any(|id| self.had(id, key)));
        let mut builder = asked.map_or_else(|| spec.to_builder(), |before| with_mode_of(spec, before));
        let attach = before.filter(|_| mounted).map_or_else(|| spec.attach(), |before| before.attach());
        builder = builder.attach(attach);
        // Staged for one group, it is not staged anew for another.
        let group = match before {
            Some(before) => before.fs_group(),
            None => candidate.consumers.values().next().and_then(|consumer| consumer.own_fs_group()),
        };
        if let Some(group) = group.filter(|_| !spec.access().is_block()) {
            builder = builder.fs_group(group);
        }
        let mut attached = Attachment::Missing;
        if attach == Attach::Awaited {
            let was_attached = before.filter(|before| self.known.before.is_attached(before));
            match self.attachment(key, candidate) {
                Some(context) if mounted || was_attached.is_some() || self.known.in_use.has(key) => {
                    builder = builder.publish_context(context.clone());
                    attached = Attachment::Made;
                }
                Some(_) => attached = Attachment::Unmarked,
                // A mounted volume is unmounted with its pods, whatever its attachment.
                None if mounted => {
                    if let Some(before) = was_attached {
                        builder = builder.publish_context(before.publish_context().clone());
                        attached = Attachment::Made;
                    }
                }
                None => {}
            }
        }
        // What breaks a bound only together with its attachment stays as it was described before.
        let spec =
            builder.build().map_or_else(|_| before.map_or_else(|| Arc::clone(spec), Arc::clone), Arc::new);
        Some((spec, attached))
    }

    /// Whether the set before has the volume for this consumer.
    fn had(&self, id: &ConsumerId, key: &VolumeKey) -> bool {
        self.before.get(id.as_str()).is_some_and(|(volume, _)| volume.spec.key() == key)
    }

    /// What the attachment of a volume says, if it is attached.
    fn attachment(&self, key: &VolumeKey, candidate: &Candidate) -> Option<&'a BTreeMap<String, String>> {
        let mut names = candidate.specs.keys();
        names.find_map(|name| self.attached_as(key, name))
    }

    /// The same of a volume under one name.
    fn attached_as(&self, key: &VolumeKey, name: &str) -> Option<&'a BTreeMap<String, String>> {
        self.attached.get(&(key.driver.as_str(), name)).copied()
    }

    /// What a consumer adds to the set, together with what its volume has or will have of an attachment.
    fn bytes(
        &self,
        spec: &VolumeSpec,
        consumer: &ConsumerSpec,
        attachment: Option<&BTreeMap<String, String>>,
    ) -> Bytes {
        let key = spec.key();
        let volume = if self.room.has(key) {
            0
        } else {
            let entries = attachment.into_iter().flatten();
            let context: usize = entries.map(|(name, value)| name.len() + value.len() + ENTRY).sum();
            let before = self.described.get(key).map_or(0, |before| volume_bytes(before));
            before.max(volume_bytes(spec) + context)
        };
        let policy = policy_bytes(&key.driver, &self.policy(&key.driver));
        Bytes { consumer: consumer_bytes(consumer), volume, policy }
    }

    /// What is known of a driver. One without an object has the policy that it had while its volumes are in use.
    fn policy(&self, driver: &DriverName) -> DriverPolicy {
        match self.known.metadata.driver(driver.as_str()) {
            Some(object) => policy(object),
            None => self.known.before.policy(driver),
        }
    }
}
