//! The objects of the API server, and the part of them that each node needs. Pure: events in, updates for nodes out.
//!
//! A node gets no update before every kind has been listed once: a node unmounts the volumes of objects that it does not get.
//! A later list, after a lost watch, updates the objects that it contains and, when it ends, deletes all others. A node that
//! comes from another hub gets no update before the objects here are as new as those that it has.

mod listing;
mod store;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) use self::listing::Phase;
use self::listing::{Listing, Needed};
pub(super) use self::store::{Affected, ClaimRecord, NodeObject, PodRecord, Value, VolumeRecord};
use self::store::{ObjectSet, ObjectStore};
use self::view::View;
use super::node_name::NodeName;
pub(super) use edge_csi_common::kubernetes::ObjectKind as Kind;
use edge_csi_common::kubernetes::message::{
    Driver, ObjectKey, PersistentVolume, Pod, SecretName, TokenRequest, Update, Watch,
};

/// An event of a watch. An object without a value exists, and concerns no node.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A list of this kind begins.
    ListStarted(Kind),
    /// The list of this kind is complete.
    ListFinished(Kind),
    /// An object is new or has changed, or is one of the list.
    Applied(Kind, ObjectKey, Option<Value>),
    /// An object was deleted.
    Deleted(Kind, ObjectKey),
    /// The `resourceVersion` of the object or deletion of this kind that came last.
    Version(Kind, u64),
    /// The `resourceVersion` of the API server before the next list of this kind.
    ServerVersion(Kind, u64),
}

impl Event {
    const fn kind(&self) -> Kind {
        match self {
            Self::ListStarted(kind)
            | Self::ListFinished(kind)
            | Self::Applied(kind, ..)
            | Self::Deleted(kind, _)
            | Self::Version(kind, _)
            | Self::ServerVersion(kind, _) => *kind,
        }
    }
}

/// Bounds of the core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The size in bytes beyond which no further object is added to an update.
    pub(super) part_bytes: usize,
    /// The maximum size of an object in bytes. A larger one is not sent to any node.
    pub(super) object_bytes: usize,
    /// The maximum number of remembered disconnected nodes, which can resume.
    pub(super) absent_nodes: usize,
    /// The maximum number of remembered removals of a node, which let it resume.
    pub(super) remembered_removals: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        // etcd refuses requests of more than 1.5 MiB unless it is configured otherwise.
        Self { part_bytes: 256 << 10, object_bytes: 2 << 20, absent_nodes: 4096, remembered_removals: 1024 }
    }
}

/// The subscription of a connected node. A later subscription of the node replaces it.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) node: NodeName,
    /// A number that no other subscription has.
    pub(super) generation: u64,
    sent: Option<u64>,
    answered: bool,
    /// What the node needs of the kinds whose objects may be older here than at the node.
    needed: BTreeMap<Kind, Needed>,
}

/// The next item of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// No change until the next notification.
    Nothing,
    /// The objects are older than those of the node, until the next notification. Lists of these kinds have to start, unless the
    /// watches catch up soon.
    Behind(BTreeSet<Kind>),
    /// The parts of one change.
    Change(Vec<Update>),
    /// Another subscription of the node has replaced this one.
    Replaced,
}

/// The objects, the view of each node, and the subscriptions.
#[derive(Debug)]
pub(super) struct Core {
    source: u64,
    bounds: Bounds,
    store: ObjectStore,
    listings: BTreeMap<Kind, Listing>,
    synced: bool,
    views: BTreeMap<NodeName, View>,
    /// The nodes with newer objects than these kinds have here.
    waiting: BTreeMap<Kind, BTreeSet<NodeName>>,
    /// The disconnected nodes, in the order of disconnection.
    absent: BTreeMap<u64, NodeName>,
    /// The counter of revisions and generations. No value is used twice, so a node that returns after its view was dropped cannot
    /// resume a wrong revision.
    count: u64,
    oversized: u64,
}

impl Core {
    /// Creates an empty core. `source` identifies this instance of the hub, and is not 0.
    pub(super) fn new(source: u64, bounds: Bounds) -> Self {
        Self {
            source,
            bounds,
            store: ObjectStore::default(),
            listings: BTreeMap::new(),
            synced: false,
            views: BTreeMap::new(),
            waiting: BTreeMap::new(),
            absent: BTreeMap::new(),
            count: 0,
            oversized: 0,
        }
    }

    /// Applies an event of a watch. Returns the connected nodes with a changed set, and those that wait for newer objects of the
    /// kind.
    pub(super) fn on(&mut self, event: Event) -> Affected {
        let waiting = self.waiting.remove(&event.kind());
        let mut affected = self.apply(event);
        affected.merge(Affected::Nodes(waiting.unwrap_or_default()));
        affected
    }

    fn apply(&mut self, event: Event) -> Affected {
        let affected = match event {
            Event::ListStarted(kind) => {
                self.listings.entry(kind).or_default().begin();
                Affected::default()
            }
            Event::Applied(kind, key, value) => {
                self.listings.entry(kind).or_default().seen(&key);
                let value = self.within_bounds(value);
                self.store.put(&key, value)
            }
            Event::Deleted(kind, key) => {
                self.listings.entry(kind).or_default().removed(&key);
                self.store.put(&key, None)
            }
            Event::Version(kind, version) => {
                self.listings.entry(kind).or_default().changed(version);
                Affected::default()
            }
            Event::ServerVersion(kind, version) => {
                self.listings.entry(kind).or_default().server_at(version);
                Affected::default()
            }
            Event::ListFinished(kind) => return self.listed(kind),
        };
        self.mark_outdated(affected)
    }

    fn listed(&mut self, kind: Kind) -> Affected {
        let Some(seen) = self.listings.entry(kind).or_default().end() else { return Affected::default() };
        let unseen = self.store.of_kind(kind).map(|(key, _)| key).filter(|key| !seen.contains(*key));
        let unseen: Vec<ObjectKey> = unseen.cloned().collect();
        let mut affected = Affected::default();
        for key in unseen {
            affected.merge(self.store.put(&key, None));
        }
        let affected = self.mark_outdated(affected);
        if !self.synced && Kind::ALL.into_iter().all(|kind| self.phase(kind) != Phase::Unlisted) {
            self.synced = true;
            return Affected::All;
        }
        affected
    }

    /// Returns `None` for a value that is too large. Only the pods with this object then miss it.
    fn within_bounds(&mut self, value: Option<Value>) -> Option<Value> {
        let too_large = value.as_ref().is_some_and(|value| value.encoded_len() > self.bounds.object_bytes);
        self.oversized += u64::from(too_large);
        value.filter(|_| !too_large)
    }

    /// Marks views as outdated; they are rebuilt on demand. Returns no nodes before every kind has been listed.
    fn mark_outdated(&mut self, mut affected: Affected) -> Affected {
        match &mut affected {
            Affected::All => self.views.values_mut().for_each(|view| view.outdated = true),
            Affected::Nodes(nodes) => nodes.retain(|node| {
                let Some(view) = self.views.get_mut(node) else { return false };
                view.outdated = true;
                view.is_present()
            }),
        }
        if self.synced { affected } else { Affected::default() }
    }

    /// Returns a number that is higher than those of all subscriptions before.
    pub(super) const fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Subscribes a node. Its revision is accepted if it is of this instance and still remembered.
    pub(super) fn subscribe(&mut self, node: NodeName, has: &Watch) -> Subscription {
        let generation = self.next_number();
        let view = self.views.entry(node.clone()).or_insert_with(|| View::new(generation));
        if let Some(left) = view.enter(generation) {
            self.absent.remove(&left);
        }
        let known = has.source == self.source && view.remembers(has.revision);
        let needed = Kind::ALL.into_iter().filter_map(|kind| {
            let version = *has.versions.get(&(kind as u32))?;
            Some((kind, self.listings.entry(kind).or_default().needed(version)))
        });
        let needed = needed.collect();
        Subscription { node, generation, sent: known.then_some(has.revision), answered: false, needed }
    }

    /// Ends a subscription, unless a later one has replaced it.
    pub(super) fn unsubscribe(&mut self, subscription: &Subscription) {
        let Some(view) = self.views.get_mut(&subscription.node) else { return };
        if view.generation != subscription.generation {
            return;
        }
        self.count += 1;
        view.leave(self.count);
        self.absent.insert(self.count, subscription.node.clone());
        if self.absent.len() > self.bounds.absent_nodes
            && let Some((_, node)) = self.absent.pop_first()
        {
            self.views.remove(&node);
        }
    }

    /// Returns the change that a subscription has not received yet. The first change is returned even if it is
    /// empty.
    pub(super) fn next(&mut self, subscription: &mut Subscription) -> Next {
        let Some(view) = self.views.get_mut(&subscription.node) else { return Next::Replaced };
        if view.generation != subscription.generation {
            return Next::Replaced;
        }
        if !self.synced {
            return Next::Nothing;
        }
        let listings = &self.listings;
        let behind = |kind: Kind, needed: Needed| {
            listings.get(&kind).is_some_and(|listing| !listing.satisfies(needed))
        };
        subscription.needed.retain(|kind, needed| behind(*kind, *needed));
        if !subscription.needed.is_empty() {
            for kind in subscription.needed.keys() {
                self.waiting.entry(*kind).or_default().insert(subscription.node.clone());
            }
            let comes = |(kind, needed): (&Kind, &Needed)| {
                let comes = listings.get(kind).is_some_and(|listing| listing.will_satisfy(*needed));
                (!comes).then_some(*kind)
            };
            return Next::Behind(subscription.needed.iter().filter_map(comes).collect());
        }
        if view.outdated {
            let set = self.store.set(&subscription.node);
            if view.refresh(set, self.count + 1, self.bounds.remembered_removals) {
                self.count += 1;
            }
        }
        if subscription.answered && subscription.sent == Some(view.revision) {
            return Next::Nothing;
        }
        let sent = subscription.sent.filter(|sent| view.remembers(*sent));
        let change = view.since(sent);
        subscription.sent = Some(view.revision);
        subscription.answered = true;
        let mut parts =
            view::split(self.source, view.revision, sent.is_none(), change, self.bounds.part_bytes);
        if let Some(last) = parts.last_mut() {
            let versions = self.listings.iter().map(|(kind, listing)| (*kind as u32, listing.version()));
            last.versions = versions.filter(|(_, version)| *version > 0).collect();
        }
        Next::Change(parts)
    }

    /// Returns true if an object of the node names this secret for an RPC of the Node service.
    pub(super) fn names_secret(&self, node: &NodeName, secret: &SecretName) -> bool {
        let names = |one: &Option<SecretName>| one.as_ref() == Some(secret);
        self.store.set(node).values().any(|object| match object {
            NodeObject::PersistentVolume(volume) => {
                names(&volume.node_stage_secret)
                    || names(&volume.node_publish_secret)
                    || names(&volume.node_expand_secret)
            }
            NodeObject::Pod(pod) => {
                let inline = pod.volumes.iter().filter_map(|volume| volume.inline.as_ref());
                inline.into_iter().any(|inline| names(&inline.node_publish_secret))
            }
            _ => false,
        })
    }

    /// Returns the pods of a node that have volumes.
    pub(super) fn pods_of(&self, node: &NodeName) -> Vec<Arc<Pod>> {
        let pods = self.store.set(node).into_values().filter_map(|object| match object {
            NodeObject::Pod(pod) => Some(pod),
            _ => None,
        });
        pods.collect()
    }

    /// Returns the `CSIDriver` of a driver.
    pub(super) fn driver(&self, name: &str) -> Option<Arc<Driver>> {
        let key = Kind::Driver.key("", name);
        self.store.of_kind(Kind::Driver).find_map(|(found, value)| match value {
            Value::Driver(driver) if *found == key => Some(Arc::clone(driver)),
            _ => None,
        })
    }

    /// Returns the service account of a pod on the node, and the token requests of a driver of one of its volumes.
    pub(super) fn token_requests(
        &self,
        node: &NodeName,
        (namespace, name, uid): (&str, &str, &str),
        driver: &str,
    ) -> Option<(String, Vec<TokenRequest>)> {
        let set = self.store.set(node);
        let Some(NodeObject::Pod(pod)) = set.get(&Kind::Pod.key(namespace, name)) else { return None };
        let uses = pod.volumes.iter().any(|volume| match &volume.inline {
            Some(inline) => inline.driver == driver,
            None => volume_of(&set, pod, &volume.claim).is_some_and(|volume| volume.driver == driver),
        });
        let Some(NodeObject::Driver(found)) = set.get(&Kind::Driver.key("", driver)) else { return None };
        (pod.uid == uid && uses).then(|| (pod.service_account.clone(), found.token_requests.clone()))
    }

    /// Returns whether a claim waits for the node to expand its volume; `None` if the claim is not used on the
    /// node.
    pub(super) fn claim_waits(
        &self,
        node: &NodeName,
        (namespace, name, uid): (&str, &str, &str),
    ) -> Option<bool> {
        match self.store.set(node).get(&Kind::Claim.key(namespace, name)) {
            Some(NodeObject::Claim(claim)) if claim.uid == uid => Some(claim.expand_to > 0),
            _ => None,
        }
    }

    /// Returns the progress of the lists of a kind.
    pub(super) fn phase(&self, kind: Kind) -> Phase {
        self.listings.get(&kind).map_or(Phase::Unlisted, Listing::phase)
    }

    /// Whether all kinds have been listed once.
    pub(super) const fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns the number of stored objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.store.of_kind(kind).count()
    }

    /// Returns the number of connected nodes.
    pub(super) fn present(&self) -> usize {
        self.views.len() - self.absent.len()
    }

    /// The number of objects that were too large; each event counts.
    pub(super) const fn oversized(&self) -> u64 {
        self.oversized
    }
}

fn volume_of<'a>(set: &'a ObjectSet, pod: &Pod, claim: &str) -> Option<&'a PersistentVolume> {
    let Some(NodeObject::Claim(claim)) = set.get(&Kind::Claim.key(&pod.namespace, claim)) else {
        return None;
    };
    match set.get(&Kind::PersistentVolume.key("", &claim.volume)) {
        Some(NodeObject::PersistentVolume(volume)) => Some(volume),
        _ => None,
    }
}
