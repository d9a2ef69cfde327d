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
use volume_manager::advanced::message::{
    DesiredSet, MAX_CONSUMERS, consumer_bytes, policy_bytes, volume_bytes,
};
use volume_manager::driver::{Attach, ConsumerSpec, DriverPolicy, VolumeSpec};
use volume_manager::node::DesiredVolume;
use volume_manager::{ConsumerId, VolumeKey};

pub(super) use self::entry::{Assignment, Expansion, PodVolumePlan};
use self::room::{Bytes, Room};
use self::volume::{Found, find, policy, with_mode_of};
use super::in_use::InUse;
use super::layout::KubeletDirectory;
use super::metadata::Metadata;

/// The input of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanInput<'a> {
    /// The node's objects.
    pub(super) metadata: &'a Metadata,
    /// The previous desired set.
    pub(super) before: &'a DesiredSet,
    /// The volumes that are staged or published.
    pub(super) mounted: &'a BTreeSet<VolumeKey>,
    /// The volumes that are certain to be in the Node's `status.volumesInUse`.
    pub(super) in_use: &'a InUse,
}

/// The set of volumes of the node, and the result for each volume of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// The desired set, with the revision of the previous set.
    pub(super) set: DesiredSet,
    /// The result for each volume of each pod that has not ended, ordered by pod.
    pub(super) pod_volumes: Vec<PodVolumePlan>,
    /// The requested expansions, one for each claim.
    pub(super) expansions: Vec<Expansion>,
    /// The attached volumes that are not certain to be in the Node's `status.volumesInUse` yet.
    pub(super) unmarked: BTreeSet<VolumeKey>,
    /// The consumers with missing objects that were not in the previous set.
    pub(super) unknown: Vec<ConsumerId>,
}

impl Plan {
    /// Returns all consumers of the set.
    pub(super) fn consumers(&self) -> BTreeSet<&ConsumerId> {
        let volumes = self.set.volumes.iter();
        volumes.flat_map(|volume| &volume.consumers).map(|consumer| consumer.id()).collect()
    }
}

/// A volume with its consumers, before its spec is chosen.
#[derive(Debug, Default)]
struct Candidate {
    /// The specs by PersistentVolume; more than one if several have the same handle.
    specs: BTreeMap<String, Arc<VolumeSpec>>,
    /// The spec of the previous set, if a consumer with missing objects stays.
    kept: Option<Arc<VolumeSpec>>,
    consumers: BTreeMap<ConsumerId, Arc<ConsumerSpec>>,
}

/// Whether a volume that others attach may be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attachment {
    /// The volume is not attached, or needs no attachment.
    Missing,
    /// The volume may be missing in the Node's `status.volumesInUse`, so the cluster might detach it while
    /// mounted.
    Unmarked,
    /// The volume is attached and may be mounted.
    Ready,
}

/// The maximum size of an encoded map entry in bytes, besides its key and its value.
const ENTRY_OVERHEAD: usize = 16;

/// Computes the plan.
pub(super) fn plan(input: PlanInput<'_>, directory: &KubeletDirectory) -> Plan {
    Planner::new(input, directory).plan()
}

struct Planner<'a> {
    input: PlanInput<'a>,
    directory: &'a KubeletDirectory,
    /// The specs of the previous set.
    previous_specs: BTreeMap<&'a VolumeKey, &'a Arc<VolumeSpec>>,
    /// The metadata of the attached VolumeAttachments, by attacher and volume.
    attached: BTreeMap<(&'a str, &'a str), &'a BTreeMap<String, String>>,
    /// The consumers of the previous set by id, with their volumes.
    before: BTreeMap<&'a str, (&'a DesiredVolume, &'a Arc<ConsumerSpec>)>,
    volumes: BTreeMap<VolumeKey, Candidate>,
    room: Room,
    /// The consumer of each target path.
    targets: BTreeMap<String, (VolumeKey, ConsumerId)>,
    pod_volumes: Vec<PodVolumePlan>,
    expansions: BTreeMap<(String, String), Expansion>,
    unknown: Vec<ConsumerId>,
}

impl<'a> Planner<'a> {
    fn new(input: PlanInput<'a>, directory: &'a KubeletDirectory) -> Self {
        let consumers = input.before.volumes.iter().flat_map(|volume| {
            volume.consumers.iter().map(move |consumer| (consumer.id().as_str(), (volume, consumer)))
        });
        let attachments = input.metadata.attachments().filter(|attachment| attachment.attached);
        let attached = attachments.map(|attachment| {
            ((attachment.attacher.as_str(), attachment.volume.as_str()), &attachment.metadata)
        });
        Self {
            input,
            directory,
            previous_specs: input
                .before
                .volumes
                .iter()
                .map(|volume| (volume.spec.key(), &volume.spec))
                .collect(),
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
        let (metadata, directory) = (self.input.metadata, self.directory);
        let mut requested = Vec::new();
        for pod in metadata.pods().filter(|pod| !pod.ended) {
            for volume in &pod.volumes {
                let reason = "the pod's UID and the volume's name do not form a valid consumer id".to_owned();
                self.pod_volumes.push(PodVolumePlan::new(pod, volume, Assignment::Unassigned(reason)));
                if let Ok(id) = ConsumerId::new(&format!("{}/{}", pod.uid, volume.name)) {
                    let found = find(metadata, directory, pod, volume, &id);
                    requested.push((
                        self.pod_volumes.len() - 1,
                        id,
                        found.map_err(|reason| reason.to_string()),
                    ));
                }
            }
        }
        // Existing consumers are planned before new ones, so that a bound or a used path refuses the new ones.
        requested.sort_by_key(|(_, id, found)| match found {
            Err(_) => 0,
            Ok(_) if self.before.contains_key(id.as_str()) => 1,
            // After the loss of the set, a mounted volume shows that its consumer existed.
            Ok(found) if self.input.mounted.contains(found.spec.key()) => 2,
            Ok(_) => 3,
        });
        for (at, id, found) in requested {
            let read_write_once = found.as_ref().is_ok_and(|found| found.read_write_once);
            let assignment = match found {
                Ok(found) => self.add(found, id),
                Err(reason) => self.keep(id, reason),
            };
            if let Some(planned) = self.pod_volumes.get_mut(at) {
                (planned.assignment, planned.read_write_once) = (assignment, read_write_once);
            }
        }
        let (mut volumes, mut attached, mut unmarked) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (key, candidate) in std::mem::take(&mut self.volumes) {
            let Some((spec, attachment)) = self.choose_spec(&key, &candidate) else { continue };
            match attachment {
                Attachment::Missing => {}
                Attachment::Unmarked => drop(unmarked.insert(key)),
                Attachment::Ready => drop(attached.insert(key)),
            }
            volumes.push(DesiredVolume { spec, consumers: candidate.consumers.into_values().collect() });
        }
        let used = volumes.iter().map(|volume| &volume.spec.key().driver);
        let mut policies: BTreeMap<_, _> = used.map(|driver| (driver.clone(), self.policy(driver))).collect();
        // Policies of unused drivers are added if there is room: the first pod of a driver then needs no
        // reconnect.
        for object in metadata.drivers() {
            if let Ok(name) = DriverName::new(&object.name)
                && let Entry::Vacant(vacant) = policies.entry(name)
            {
                let policy = policy(object);
                if self.room.add_policy(vacant.key(), policy_bytes(vacant.key(), &policy)) {
                    vacant.insert(policy);
                }
            }
        }
        let revision = self.input.before.revision;
        let set = DesiredSet { revision, volumes, attached, policies };
        let expansions = self.expansions.into_values().collect();
        Plan { set, pod_volumes: self.pod_volumes, expansions, unmarked, unknown: self.unknown }
    }

    /// Adds the volume of a pod to the set.
    fn add(&mut self, found: Found, id: ConsumerId) -> Assignment {
        let key = found.spec.key().clone();
        let target = found.consumer.target_path().to_string();
        match self.targets.get(&target) {
            // The pod has one volume under two names, with one path.
            Some((other, consumer)) if *other == key => {
                return Assignment::Assigned { key, consumer: consumer.clone(), missing: None };
            }
            Some((other, _)) => {
                return Assignment::Unassigned(format!(
                    "{other} has the same path in this pod; rename one of the volumes"
                ));
            }
            None => {}
        }
        if self.volumes.get(&key).is_some_and(|candidate| candidate.consumers.len() >= MAX_CONSUMERS) {
            return Assignment::Unassigned(format!(
                "{key} has {MAX_CONSUMERS} pods on this node, which is the maximum; move pods to other nodes"
            ));
        }
        let bytes = self.bytes(&found.spec, &found.consumer, self.attachment_of(&key, &found.name));
        if !self.is_existing(&id, &key)
            && let Err(full) = self.room.check_new(&key, bytes)
        {
            return Assignment::Unassigned(full.to_string());
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
        Assignment::Assigned { key, consumer: id, missing: None }
    }

    /// Keeps the volume that a pod has in the previous set, if any.
    fn keep(&mut self, id: ConsumerId, reason: String) -> Assignment {
        let Some((volume, consumer)) = self.before.get(id.as_str()) else {
            self.unknown.push(id);
            return Assignment::Unassigned(reason);
        };
        let key = volume.spec.key().clone();
        self.room.add(&key, self.bytes(&volume.spec, consumer, None));
        let candidate = self.volumes.entry(key.clone()).or_default();
        candidate.kept.get_or_insert_with(|| Arc::clone(&volume.spec));
        candidate.consumers.insert(id.clone(), Arc::clone(consumer));
        self.targets.insert(consumer.target_path().to_string(), (key.clone(), id.clone()));
        Assignment::Assigned { key, consumer: id, missing: Some(reason) }
    }

    /// Chooses the spec of a volume, and returns whether the volume may be mounted.
    fn choose_spec(&self, key: &VolumeKey, candidate: &Candidate) -> Option<(Arc<VolumeSpec>, Attachment)> {
        let before = self.previous_specs.get(key).copied();
        // If several PersistentVolumes have one handle, the spec of the previous set stays.
        let is_as_before = |spec: &&Arc<VolumeSpec>| {
            before.is_some_and(|before| {
                before.volume_context() == spec.volume_context() && before.access() == spec.access()
            })
        };
        let found = candidate.specs.values().find(is_as_before).or_else(|| candidate.specs.values().next());
        let Some(spec) = found else {
            let kept = candidate.kept.clone()?;
            let attached = self.input.before.is_attached(&kept);
            return Some((kept, if attached { Attachment::Ready } else { Attachment::Missing }));
        };
        let mounted = self.input.mounted.contains(key);
        // The access mode of existing consumers cannot change.
        let in_use =
            before.filter(|_| mounted || candidate.consumers.keys().any(|id| self.is_existing(id, key)));
        let mut builder = in_use.map_or_else(|| spec.to_builder(), |before| with_mode_of(spec, before));
        let attach = before.filter(|_| mounted).map_or_else(|| spec.attach(), |before| before.attach());
        builder = builder.attach(attach);
        // A volume that is staged for one group is not staged again for another.
        let group = match before {
            Some(before) => before.fs_group(),
            None => candidate.consumers.values().next().and_then(|consumer| consumer.own_fs_group()),
        };
        if let Some(group) = group.filter(|_| !spec.access().is_block()) {
            builder = builder.fs_group(group);
        }
        let mut attached = Attachment::Missing;
        if attach == Attach::Awaited {
            let was_attached = before.filter(|before| self.input.before.is_attached(before));
            match self.attachment(key, candidate) {
                Some(context) if mounted || was_attached.is_some() || self.input.in_use.has(key) => {
                    builder = builder.publish_context(context.clone());
                    attached = Attachment::Ready;
                }
                Some(_) => attached = Attachment::Unmarked,
                // A mounted volume stays mounted until its pods end, whatever its attachment.
                None if mounted => {
                    if let Some(before) = was_attached {
                        builder = builder.publish_context(before.publish_context().clone());
                        attached = Attachment::Ready;
                    }
                }
                None => {}
            }
        }
        // If the attachment makes the spec exceed a bound, the previous spec stays.
        let spec =
            builder.build().map_or_else(|_| before.map_or_else(|| Arc::clone(spec), Arc::clone), Arc::new);
        Some((spec, attached))
    }

    /// Whether the previous set has this consumer of the volume.
    fn is_existing(&self, id: &ConsumerId, key: &VolumeKey) -> bool {
        self.before.get(id.as_str()).is_some_and(|(volume, _)| volume.spec.key() == key)
    }

    /// Returns the metadata of a volume's attachment, if it is attached.
    fn attachment(&self, key: &VolumeKey, candidate: &Candidate) -> Option<&'a BTreeMap<String, String>> {
        let mut names = candidate.specs.keys();
        names.find_map(|name| self.attachment_of(key, name))
    }

    /// Returns the metadata of a PersistentVolume's attachment, if it is attached.
    fn attachment_of(&self, key: &VolumeKey, name: &str) -> Option<&'a BTreeMap<String, String>> {
        self.attached.get(&(key.driver.as_str(), name)).copied()
    }

    /// Returns the sizes that a consumer adds to the set, including its volume's present or future attachment.
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
            let context: usize = entries.map(|(name, value)| name.len() + value.len() + ENTRY_OVERHEAD).sum();
            let before = self.previous_specs.get(key).map_or(0, |before| volume_bytes(before));
            before.max(volume_bytes(spec) + context)
        };
        let policy = policy_bytes(&key.driver, &self.policy(&key.driver));
        Bytes { consumer: consumer_bytes(consumer), volume, policy }
    }

    /// Returns the policy of a driver. A driver without a CSIDriver keeps the policy of the previous set.
    fn policy(&self, driver: &DriverName) -> DriverPolicy {
        match self.input.metadata.driver(driver.as_str()) {
            Some(object) => policy(object),
            None => self.input.before.policy(driver),
        }
    }
}
