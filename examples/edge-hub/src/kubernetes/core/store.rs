//! The objects of the API server, reduced to the needed fields, and the nodes that each object concerns.
//!
//! A pod concerns its node; a claim the nodes of the pods that name it; a volume those of the claim that it is bound to; an
//! attachment its node; a driver all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;

use super::Kind;
use crate::kubernetes::node_name::NodeName;
use edge_csi_common::kubernetes::message::{
    Attachment, Claim, Driver, Object, ObjectKey, PersistentVolume, Pod, object,
};

/// A pod on a node, with volumes that may be of CSI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct PodRecord {
    pub(in super::super) node: NodeName,
    /// The names of its generic ephemeral volumes, whose claims the pod must own.
    pub(in super::super) ephemeral: BTreeSet<String>,
    pub(in super::super) pod: Arc<Pod>,
}

/// A claim. Its requested size depends on its volume, so the message is built for each set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ClaimRecord {
    pub(in super::super) claim: Claim,
    /// The UID of the object that controls it.
    pub(in super::super) owner: Option<String>,
    /// Whether the claim waits for the node to expand its volume.
    pub(in super::super) pending: bool,
}

/// A PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct VolumeRecord {
    /// `None` if the volume has no CSI source.
    pub(in super::super) volume: Option<Arc<PersistentVolume>>,
    /// `spec.capacity`, in bytes.
    pub(in super::super) capacity: u64,
}

/// The stored part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Value {
    Pod(PodRecord),
    Claim(ClaimRecord),
    PersistentVolume(VolumeRecord),
    Attachment(NodeName, Arc<Attachment>),
    Driver(Arc<Driver>),
}

impl Value {
    /// Returns the length of the object in a message, in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Pod(record) => record.pod.encoded_len(),
            Self::Claim(record) => record.claim.encoded_len(),
            Self::PersistentVolume(record) => record.volume.as_ref().map_or(0, |volume| volume.encoded_len()),
            Self::Attachment(_, attachment) => attachment.encoded_len(),
            Self::Driver(driver) => driver.encoded_len(),
        }
    }
}

/// The nodes with a changed set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Affected {
    Nodes(BTreeSet<NodeName>),
    All,
}

impl Default for Affected {
    fn default() -> Self {
        Self::Nodes(BTreeSet::new())
    }
}

impl Affected {
    /// Adds the nodes of `other`.
    pub(super) fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Nodes(nodes), Self::Nodes(more)) => nodes.extend(more),
            (_, Self::All) => *self = Self::All,
            (Self::All, _) => {}
        }
    }
}

/// A reference of an object, by which the object is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Reference {
    Node(NodeName),
    Object(ObjectKey),
}

impl Value {
    /// Returns the references of the object.
    fn references(&self) -> Vec<Reference> {
        match self {
            Self::Pod(PodRecord { node, pod, .. }) => {
                let of_claims = pod.volumes.iter().filter(|volume| volume.inline.is_none());
                let claims = of_claims.map(|volume| Kind::Claim.key(&pod.namespace, &volume.claim));
                claims.map(Reference::Object).chain([Reference::Node(node.clone())]).collect()
            }
            Self::Claim(ClaimRecord { claim, .. }) if !claim.volume.is_empty() => {
                vec![Reference::Object(Kind::PersistentVolume.key("", &claim.volume))]
            }
            Self::Attachment(node, _) => vec![Reference::Node(node.clone())],
            Self::Claim(_) | Self::PersistentVolume(_) | Self::Driver(_) => Vec::new(),
        }
    }
}

/// The objects, and an index of their references.
#[derive(Debug, Default)]
pub(super) struct ObjectStore {
    objects: BTreeMap<ObjectKey, Value>,
    naming: BTreeMap<Reference, BTreeSet<ObjectKey>>,
}

impl ObjectStore {
    /// Sets or removes an object. No node is affected if the object is unchanged.
    pub(super) fn put(&mut self, key: &ObjectKey, value: Option<Value>) -> Affected {
        let mut affected = Affected::default();
        if self.objects.get(key) == value.as_ref() {
            return affected;
        }
        if let Some(old) = self.objects.remove(key) {
            affected.merge(self.affected_by(key, &old));
            for reference in old.references() {
                if let Some(names) = self.naming.get_mut(&reference) {
                    names.remove(key);
                    if names.is_empty() {
                        self.naming.remove(&reference);
                    }
                }
            }
        }
        if let Some(new) = value {
            affected.merge(self.affected_by(key, &new));
            for reference in new.references() {
                self.naming.entry(reference).or_default().insert(key.clone());
            }
            self.objects.insert(key.clone(), new);
        }
        affected
    }

    fn affected_by(&self, key: &ObjectKey, value: &Value) -> Affected {
        match value {
            Value::Pod(PodRecord { node, .. }) | Value::Attachment(node, _) => {
                Affected::Nodes([node.clone()].into())
            }
            Value::Claim(_) | Value::PersistentVolume(_) => Affected::Nodes(self.nodes_that_use(key)),
            Value::Driver(_) => Affected::All,
        }
    }

    /// Returns the nodes of the pods that use a claim or a volume.
    fn nodes_that_use(&self, key: &ObjectKey) -> BTreeSet<NodeName> {
        let users = self.naming(Reference::Object(key.clone()));
        let nodes = users.flat_map(|user| match self.objects.get(user) {
            Some(Value::Pod(record)) => BTreeSet::from([record.node.clone()]),
            _ => self.nodes_that_use(user),
        });
        nodes.collect()
    }

    fn naming(&self, reference: Reference) -> impl Iterator<Item = &ObjectKey> {
        self.naming.get(&reference).into_iter().flatten()
    }

    /// Returns the objects that concern a node.
    pub(super) fn set(&self, node: &NodeName) -> ObjectSet {
        let mut set = BTreeMap::new();
        let own =
            self.naming(Reference::Node(node.clone())).filter_map(|key| self.objects.get_key_value(key));
        for (key, value) in self.of_kind(Kind::Driver).chain(own) {
            let object = match value {
                Value::Driver(driver) => NodeObject::Driver(Arc::clone(driver)),
                Value::Attachment(_, attachment) => NodeObject::Attachment(Arc::clone(attachment)),
                Value::Pod(record) => {
                    self.insert_pod(record, &mut set);
                    continue;
                }
                // Claims and volumes are added with the pods that use them.
                Value::Claim(_) | Value::PersistentVolume(_) => continue,
            };
            set.insert(key.clone(), object);
        }
        set
    }

    /// Inserts a pod with its known claims and their volumes, without volumes of other kinds than CSI.
    fn insert_pod(&self, record: &PodRecord, set: &mut ObjectSet) {
        let pod = &record.pod;
        let mut other: BTreeSet<&str> = BTreeSet::new();
        for volume in pod.volumes.iter().filter(|volume| volume.inline.is_none()) {
            let key = Kind::Claim.key(&pod.namespace, &volume.claim);
            let Some(Value::Claim(found)) = self.objects.get(&key) else { continue };
            if record.ephemeral.contains(&volume.name) && found.owner.as_ref() != Some(&pod.uid) {
                continue;
            }
            let mut claim = found.claim.clone();
            let bound = Kind::PersistentVolume.key("", &claim.volume);
            if let Some(Value::PersistentVolume(VolumeRecord { volume: found_volume, capacity })) =
                self.objects.get(&bound)
            {
                let Some(csi_volume) = found_volume else {
                    other.insert(&volume.name);
                    continue;
                };
                // A volume without this claim's UID is bound to another claim.
                if csi_volume.claim_uid == claim.uid {
                    claim.expand_to = if found.pending { *capacity } else { 0 };
                    set.insert(bound, NodeObject::PersistentVolume(Arc::clone(csi_volume)));
                }
            }
            set.insert(key, NodeObject::Claim(claim));
        }
        let object = if other.is_empty() {
            Arc::clone(pod)
        } else {
            let mut fewer = Pod::clone(pod);
            fewer.volumes.retain(|volume| !other.contains(volume.name.as_str()));
            if fewer.volumes.is_empty() {
                return;
            }
            Arc::new(fewer)
        };
        set.insert(Kind::Pod.key(&pod.namespace, &pod.name), NodeObject::Pod(object));
    }

    /// Returns all objects of a kind.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&ObjectKey, &Value)> {
        self.objects.range(kind.key("", "")..).take_while(move |(key, _)| key.kind == kind as u32)
    }
}

/// The objects that concern a node.
pub(super) type ObjectSet = BTreeMap<ObjectKey, NodeObject>;

/// An object of a node's set; large ones are shared with the store, and between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum NodeObject {
    Pod(Arc<Pod>),
    Claim(Claim),
    PersistentVolume(Arc<PersistentVolume>),
    Attachment(Arc<Attachment>),
    Driver(Arc<Driver>),
}

impl NodeObject {
    /// Converts the object to a message.
    pub(super) fn into_message(self) -> Object {
        let kind = match self {
            Self::Pod(pod) => object::Kind::Pod(Arc::unwrap_or_clone(pod)),
            Self::Claim(claim) => object::Kind::Claim(claim),
            Self::PersistentVolume(volume) => object::Kind::PersistentVolume(Arc::unwrap_or_clone(volume)),
            Self::Attachment(attachment) => object::Kind::Attachment(Arc::unwrap_or_clone(attachment)),
            Self::Driver(driver) => object::Kind::Driver(Arc::unwrap_or_clone(driver)),
        };
        Object { object: Some(kind) }
    }
}
