//! What the API server has, in the fewest fields, and which nodes an object concerns.
//!
//! A pod concerns its node; a claim the nodes of the pods that name it; a volume those of the claim that it is bound to; an
//! attachment its node; a driver all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;

use super::Kind;
use super::set::Told;
use crate::hub::kubernetes::node_name::NodeName;
use crate::kubernetes::message::{Attachment, Claim, Driver, ObjectKey, PersistentVolume, Pod};

/// A pod on a node, with volumes that may be of CSI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct PodRecord {
    pub(in super::super) node: NodeName,
    /// Which of its volumes are generic ephemeral ones: their claims must be the pod's own.
    pub(in super::super) ephemeral: BTreeSet<String>,
    pub(in super::super) pod: Arc<Pod>,
}

/// A claim. What it shall grow to depends on its volume, so the message is made when it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ClaimRecord {
    pub(in super::super) claim: Claim,
    /// The UID of the object that controls it.
    pub(in super::super) owner: Option<String>,
    /// The node is to make something of a larger volume.
    pub(in super::super) pending: bool,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct VolumeRecord {
    /// `None` if it is not of CSI.
    pub(in super::super) volume: Option<Arc<PersistentVolume>>,
    /// `spec.capacity`, in bytes.
    pub(in super::super) capacity: u64,
}

/// What is kept of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Value {
    Pod(PodRecord),
    Claim(ClaimRecord),
    PersistentVolume(VolumeRecord),
    Attachment(NodeName, Arc<Attachment>),
    Driver(Arc<Driver>),
}

impl Value {
    /// Bytes in a message.
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

/// Whose set may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Touched {
    Nodes(BTreeSet<NodeName>),
    All,
}

impl Default for Touched {
    fn default() -> Self {
        Self::Nodes(BTreeSet::new())
    }
}

impl Touched {
    /// Both.
    pub(super) fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Nodes(nodes), Self::Nodes(more)) => nodes.extend(more),
            (_, Self::All) => *self = Self::All,
            (Self::All, _) => {}
        }
    }
}

/// Namespace and name.
type Name = (String, String);

/// From one thing to many.
#[derive(Debug)]
struct Index<K, V>(BTreeMap<K, BTreeSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Ord> Index<K, V> {
    fn add(&mut self, key: K, value: V) {
        self.0.entry(key).or_default().insert(value);
    }

    fn remove(&mut self, key: &K, value: &V) {
        if let Some(values) = self.0.get_mut(key) {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    fn of<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a V> + use<'a, K, V> {
        self.0.get(key).into_iter().flatten()
    }
}

/// Objects and indexes.
#[derive(Debug, Default)]
pub(super) struct Store {
    pods: BTreeMap<Name, PodRecord>,
    claims: BTreeMap<Name, ClaimRecord>,
    volumes: BTreeMap<String, VolumeRecord>,
    attachments: BTreeMap<String, (NodeName, Arc<Attachment>)>,
    drivers: BTreeMap<String, Arc<Driver>>,
    pods_of_node: Index<NodeName, Name>,
    attachments_of_node: Index<NodeName, String>,
    pods_of_claim: Index<Name, Name>,
    claims_of_volume: Index<String, Name>,
}

impl Store {
    /// Sets an object, or removes it. Nobody is touched if it is as it was.
    pub(super) fn put(&mut self, kind: Kind, key: &ObjectKey, value: Option<Value>) -> Touched {
        let name = (key.namespace.clone(), key.name.clone());
        match (kind, value) {
            (Kind::Pod, Some(Value::Pod(record))) => self.put_pod(name, Some(record)),
            (Kind::Pod, _) => self.put_pod(name, None),
            (Kind::Claim, Some(Value::Claim(record))) => self.put_claim(name, Some(record)),
            (Kind::Claim, _) => self.put_claim(name, None),
            (Kind::PersistentVolume, Some(Value::PersistentVolume(record))) => {
                self.put_volume(name.1, Some(record))
            }
            (Kind::PersistentVolume, _) => self.put_volume(name.1, None),
            (Kind::Attachment, Some(Value::Attachment(node, attachment))) => {
                self.put_attachment(name.1, Some((node, attachment)))
            }
            (Kind::Attachment, _) => self.put_attachment(name.1, None),
            (Kind::Driver, Some(Value::Driver(driver))) => self.put_driver(name.1, Some(driver)),
            (Kind::Driver, _) => self.put_driver(name.1, None),
        }
    }

    fn put_pod(&mut self, name: Name, record: Option<PodRecord>) -> Touched {
        let mut nodes = BTreeSet::new();
        if self.pods.get(&name) == record.as_ref() {
            return Touched::Nodes(nodes);
        }
        if let Some(old) = self.pods.remove(&name) {
            self.pods_of_node.remove(&old.node, &name);
            for claim in claims_of(&old.pod) {
                self.pods_of_claim.remove(&claim, &name);
            }
            nodes.insert(old.node);
        }
        if let Some(new) = record {
            self.pods_of_node.add(new.node.clone(), name.clone());
            for claim in claims_of(&new.pod) {
                self.pods_of_claim.add(claim, name.clone());
            }
            nodes.insert(new.node.clone());
            self.pods.insert(name, new);
        }
        Touched::Nodes(nodes)
    }

    fn put_claim(&mut self, name: Name, record: Option<ClaimRecord>) -> Touched {
        if self.claims.get(&name) == record.as_ref() {
            return Touched::default();
        }
        if let Some(old) = self.claims.remove(&name) {
            self.claims_of_volume.remove(&old.claim.volume, &name);
        }
        let touched = Touched::Nodes(self.nodes_of_claim(&name).collect());
        if let Some(new) = record {
            if !new.claim.volume.is_empty() {
                self.claims_of_volume.add(new.claim.volume.clone(), name.clone());
            }
            self.claims.insert(name, new);
        }
        touched
    }

    fn put_volume(&mut self, name: String, record: Option<VolumeRecord>) -> Touched {
        if self.volumes.get(&name) == record.as_ref() {
            return Touched::default();
        }
        let claims = self.claims_of_volume.of(&name);
        let nodes = claims.flat_map(|claim| self.nodes_of_claim(claim)).collect();
        match record {
            Some(record) => self.volumes.insert(name, record),
            None => self.volumes.remove(&name),
        };
        Touched::Nodes(nodes)
    }

    fn put_attachment(&mut self, name: String, record: Option<(NodeName, Arc<Attachment>)>) -> Touched {
        let mut nodes = BTreeSet::new();
        if self.attachments.get(&name) == record.as_ref() {
            return Touched::Nodes(nodes);
        }
        if let Some((node, _)) = self.attachments.remove(&name) {
            self.attachments_of_node.remove(&node, &name);
            nodes.insert(node);
        }
        if let Some((node, attachment)) = record {
            self.attachments_of_node.add(node.clone(), name.clone());
            nodes.insert(node.clone());
            self.attachments.insert(name, (node, attachment));
        }
        Touched::Nodes(nodes)
    }

    fn put_driver(&mut self, name: String, driver: Option<Arc<Driver>>) -> Touched {
        if self.drivers.get(&name) == driver.as_ref() {
            return Touched::default();
        }
        match driver {
            Some(driver) => self.drivers.insert(name, driver),
            None => self.drivers.remove(&name),
        };
        Touched::All
    }

    fn nodes_of_claim(&self, claim: &Name) -> impl Iterator<Item = NodeName> + '_ {
        let pods = self.pods_of_claim.of(claim);
        pods.filter_map(|pod| self.pods.get(pod)).map(|record| record.node.clone())
    }

    /// All that concerns a node.
    pub(super) fn set(&self, node: &NodeName) -> BTreeMap<ObjectKey, Told> {
        let mut set = BTreeMap::new();
        for (name, driver) in &self.drivers {
            set.insert(Kind::Driver.key("", name), Told::Driver(Arc::clone(driver)));
        }
        for name in self.attachments_of_node.of(node) {
            if let Some((_, attachment)) = self.attachments.get(name) {
                set.insert(Kind::Attachment.key("", name), Told::Attachment(Arc::clone(attachment)));
            }
        }
        for name in self.pods_of_node.of(node) {
            if let Some(record) = self.pods.get(name) {
                self.tell_pod(record, &mut set);
            }
        }
        set
    }

    /// A pod with its claims and their volumes, as far as they are there; without volumes that are not of CSI.
    fn tell_pod(&self, record: &PodRecord, set: &mut BTreeMap<ObjectKey, Told>) {
        let pod = &record.pod;
        let mut other: BTreeSet<&str> = BTreeSet::new();
        for volume in pod.volumes.iter().filter(|volume| volume.inline.is_none()) {
            let Some(found) = self.claims.get(&(pod.namespace.clone(), volume.claim.clone())) else {
                continue;
            };
            if record.ephemeral.contains(&volume.name) && found.owner.as_ref() != Some(&pod.uid) {
                continue;
            }
            let mut claim = found.claim.clone();
            let bound = self.volumes.get(&claim.volume);
            match bound {
                Some(VolumeRecord { volume: None, .. }) => {
                    other.insert(&volume.name);
                    continue;
                }
                // A volume that does not know the claim is another's.
                Some(VolumeRecord { volume: Some(of_csi), capacity }) if of_csi.claim_uid == claim.uid => {
                    claim.expand_to = if found.pending { *capacity } else { 0 };
                    set.insert(
                        Kind::PersistentVolume.key("", &of_csi.name),
                        Told::PersistentVolume(Arc::clone(of_csi)),
                    );
                }
                _ => {}
            }
            set.insert(Kind::Claim.key(&claim.namespace, &claim.name), Told::Claim(claim));
        }
        let told = if other.is_empty() {
            Arc::clone(pod)
        } else {
            let mut fewer = Pod::clone(pod);
            fewer.volumes.retain(|volume| !other.contains(volume.name.as_str()));
            if fewer.volumes.is_empty() {
                return;
            }
            Arc::new(fewer)
        };
        set.insert(Kind::Pod.key(&pod.namespace, &pod.name), Told::Pod(told));
    }

    /// The keys of all objects of a kind.
    pub(super) fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        let named = |name: &String| kind.key("", name);
        let spaced = |(namespace, name): &Name| kind.key(namespace, name);
        match kind {
            Kind::Pod => self.pods.keys().map(spaced).collect(),
            Kind::Claim => self.claims.keys().map(spaced).collect(),
            Kind::PersistentVolume => self.volumes.keys().map(named).collect(),
            Kind::Attachment => self.attachments.keys().map(named).collect(),
            Kind::Driver => self.drivers.keys().map(named).collect(),
        }
    }

    /// How many objects of a kind there are.
    pub(super) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pod => self.pods.len(),
            Kind::Claim => self.claims.len(),
            Kind::PersistentVolume => self.volumes.len(),
            Kind::Attachment => self.attachments.len(),
            Kind::Driver => self.drivers.len(),
        }
    }
}

fn claims_of(pod: &Pod) -> impl Iterator<Item = Name> + '_ {
    let claims = pod.volumes.iter().filter(|volume| volume.inline.is_none());
    claims.map(|volume| (pod.namespace.clone(), volume.claim.clone()))
}
