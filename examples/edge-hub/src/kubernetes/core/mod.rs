//! What the API server has, and what of it each node is to know. Pure: events in, and who has something to hear out.
//!
//! A node is told nothing before all kinds have been listed once: what is not told is taken for deleted, and is unmounted.
//! Later lists, after a lost watch, change what they show and delete, at their end, what they did not show.

mod listing;
mod store;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::listing::Listing;
pub(super) use self::listing::Phase;
use self::store::ObjectStore;
pub(super) use self::store::{ClaimRecord, PodRecord, Told, Touched, Value, VolumeRecord};
use self::view::View;
use super::node_name::NodeName;
pub(super) use edge_csi_common::kubernetes::ObjectKind as Kind;
use edge_csi_common::kubernetes::message::{
    ObjectKey, PersistentVolume, Pod, SecretName, TokenRequest, Update, Watch,
};

/// What a watch says. An object without a value is there, and concerns no node.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A list of this kind begins.
    Began(Kind),
    /// The list was the whole of it.
    Done(Kind),
    /// An object is new or has changed, or is one of the list.
    Applied(Kind, ObjectKey, Option<Value>),
    /// An object is no more.
    Deleted(Kind, ObjectKey),
}

/// Bounds of the core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The most bytes of an update. A larger object is told to nobody.
    pub(super) part_bytes: usize,
    /// The most nodes that are remembered after they have left, so that they can resume.
    pub(super) absent_nodes: usize,
    /// The most objects of a node whose end is remembered, so that it can resume.
    pub(super) remembered_ends: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { part_bytes: 256 << 10, absent_nodes: 4096, remembered_ends: 1024 }
    }
}

/// A node that listens. A later one of the same node takes its place.
#[derive(Debug)]
pub(super) struct Subscription {
    /// Who listens.
    pub(super) node: NodeName,
    /// A number that no other subscription has.
    pub(super) generation: u64,
    told: Option<u64>,
    greeted: bool,
}

/// What there is for a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing now.
    Nothing,
    /// The parts of one change.
    Change(Vec<Update>),
    /// Another subscription of the node has taken its place.
    Replaced,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Core {
    source: u64,
    bounds: Bounds,
    store: ObjectStore,
    listings: BTreeMap<Kind, Listing>,
    synced: bool,
    views: BTreeMap<NodeName, View>,
    /// Nodes that have left, the first to leave first.
    absent: BTreeMap<u64, NodeName>,
    /// One count for revisions and generations: none is ever used twice, so a node that is forgotten and comes back cannot be
    /// mistaken.
    count: u64,
    oversized: u64,
}

impl Core {
    /// An empty one. `source` is this life of the hub, and not 0.
    pub(super) fn new(source: u64, bounds: Bounds) -> Self {
        Self {
            source,
            bounds,
            store: ObjectStore::default(),
            listings: BTreeMap::new(),
            synced: false,
            views: BTreeMap::new(),
            absent: BTreeMap::new(),
            count: 0,
            oversized: 0,
        }
    }

    /// Takes what a watch says. Answers whose set may have changed, of the nodes that listen.
    pub(super) fn on(&mut self, event: Event) -> Touched {
        let touched = match event {
            Event::Began(kind) => {
                self.listings.entry(kind).or_default().begin();
                Touched::default()
            }
            Event::Applied(kind, key, value) => {
                self.listings.entry(kind).or_default().saw(&key);
                let value = self.fitting(value);
                self.store.put(&key, value)
            }
            Event::Deleted(kind, key) => {
                self.listings.entry(kind).or_default().lost(&key);
                self.store.put(&key, None)
            }
            Event::Done(kind) => return self.listed(kind),
        };
        self.wake(touched)
    }

    fn listed(&mut self, kind: Kind) -> Touched {
        let Some(seen) = self.listings.entry(kind).or_default().end() else { return Touched::default() };
        let unseen = self.store.of_kind(kind).map(|(key, _)| key).filter(|key| !seen.contains(*key));
        let unseen: Vec<ObjectKey> = unseen.cloned().collect();
        let mut touched = Touched::default();
        for key in unseen {
            touched.merge(self.store.put(&key, None));
        }
        let wake = self.wake(touched);
        if !self.synced && Kind::ALL.into_iter().all(|kind| self.phase(kind) != Phase::Unlisted) {
            self.synced = true;
            return Touched::All;
        }
        wake
    }

    /// `None` for what no message can hold.
    fn fitting(&mut self, value: Option<Value>) -> Option<Value> {
        let too_large = value.as_ref().is_some_and(|value| value.encoded_len() > self.bounds.part_bytes);
        self.oversized += u64::from(too_large);
        value.filter(|_| !too_large)
    }

    /// Sets are made anew where they are asked for. Before all is listed nobody hears of it.
    fn wake(&mut self, mut touched: Touched) -> Touched {
        match &mut touched {
            Touched::All => self.views.values_mut().for_each(|view| view.outdated = true),
            Touched::Nodes(nodes) => nodes.retain(|node| {
                let Some(view) = self.views.get_mut(node) else { return false };
                view.outdated = true;
                view.is_present()
            }),
        }
        if self.synced { touched } else { Touched::default() }
    }

    /// A node listens from now on. What it has already is believed if it is of this life and not forgotten.
    pub(super) fn subscribe(&mut self, node: NodeName, has: Watch) -> Subscription {
        self.count += 1;
        let generation = self.count;
        let view = self.views.entry(node.clone()).or_insert_with(|| View::new(generation));
        if let Some(left) = view.enter(generation) {
            self.absent.remove(&left);
        }
        let known = has.source == self.source && view.remembers(has.revision);
        Subscription { node, generation, told: known.then_some(has.revision), greeted: false }
    }

    /// A node listens no more.
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

    /// What a subscription has not heard yet. The first answer to one comes even if nothing has changed.
    pub(super) fn next(&mut self, subscription: &mut Subscription) -> Next {
        let Some(view) = self.views.get_mut(&subscription.node) else { return Next::Replaced };
        if view.generation != subscription.generation {
            return Next::Replaced;
        }
        if !self.synced {
            return Next::Nothing;
        }
        if view.outdated {
            let set = self.store.set(&subscription.node);
            if view.refresh(set, self.count + 1, self.bounds.remembered_ends) {
                self.count += 1;
            }
        }
        if subscription.greeted && subscription.told == Some(view.revision) {
            return Next::Nothing;
        }
        let told = subscription.told.filter(|told| view.remembers(*told));
        let change = view.since(told);
        subscription.told = Some(view.revision);
        subscription.greeted = true;
        Next::Change(view::split(self.source, view.revision, told.is_none(), change, self.bounds.part_bytes))
    }

    /// Whether an object of the node names this secret for a call of the node.
    pub(super) fn names_secret(&self, node: &NodeName, secret: &SecretName) -> bool {
        let names = |one: &Option<SecretName>| one.as_ref() == Some(secret);
        self.store.set(node).values().any(|told| match told {
            Told::PersistentVolume(volume) => {
                names(&volume.node_stage_secret)
                    || names(&volume.node_publish_secret)
                    || names(&volume.node_expand_secret)
            }
            Told::Pod(pod) => {
                let inline = pod.volumes.iter().filter_map(|volume| volume.inline.as_ref());
                inline.into_iter().any(|inline| names(&inline.node_publish_secret))
            }
            _ => false,
        })
    }

    /// The pods of a node that have volumes.
    pub(super) fn pods_of(&self, node: &NodeName) -> Vec<Arc<Pod>> {
        let pods = self.store.set(node).into_values().filter_map(|told| match told {
            Told::Pod(pod) => Some(pod),
            _ => None,
        });
        pods.collect()
    }

    /// What tokens a pod of the node needs for a driver of one of its volumes: its service account, and the driver's requests.
    pub(super) fn tokens_of(
        &self,
        node: &NodeName,
        (namespace, name, uid): (&str, &str, &str),
        driver: &str,
    ) -> Option<(String, Vec<TokenRequest>)> {
        let set = self.store.set(node);
        let Some(Told::Pod(pod)) = set.get(&Kind::Pod.key(namespace, name)) else { return None };
        let uses = pod.volumes.iter().any(|volume| match &volume.inline {
            Some(inline) => inline.driver == driver,
            None => volume_of(&set, pod, &volume.claim).is_some_and(|volume| volume.driver == driver),
        });
        let Some(Told::Driver(told)) = set.get(&Kind::Driver.key("", driver)) else { return None };
        (pod.uid == uid && uses).then(|| (pod.service_account.clone(), told.token_requests.clone()))
    }

    /// Whether this claim, if it is one of the node's, waits for the node to make something of a larger volume.
    pub(super) fn claim_waits(
        &self,
        node: &NodeName,
        (namespace, name, uid): (&str, &str, &str),
    ) -> Option<bool> {
        match self.store.set(node).get(&Kind::Claim.key(namespace, name)) {
            Some(Told::Claim(claim)) if claim.uid == uid => Some(claim.expand_to > 0),
            _ => None,
        }
    }

    /// How far the list of a kind is.
    pub(super) fn phase(&self, kind: Kind) -> Phase {
        self.listings.get(&kind).map_or(Phase::Unlisted, Listing::phase)
    }

    /// Whether all kinds have been listed once.
    pub(super) const fn is_synced(&self) -> bool {
        self.synced
    }

    /// Objects that are kept of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.store.of_kind(kind).count()
    }

    /// Nodes that listen.
    pub(super) fn present(&self) -> usize {
        self.views.len() - self.absent.len()
    }

    /// Objects that were told to nobody, since no message can hold them; each time counts.
    pub(super) const fn oversized(&self) -> u64 {
        self.oversized
    }
}

fn volume_of<'a>(set: &'a BTreeMap<ObjectKey, Told>, pod: &Pod, claim: &str) -> Option<&'a PersistentVolume> {
    let Some(Told::Claim(claim)) = set.get(&Kind::Claim.key(&pod.namespace, claim)) else { return None };
    match set.get(&Kind::PersistentVolume.key("", &claim.volume)) {
        Some(Told::PersistentVolume(volume)) => Some(volume),
        _ => None,
    }
}
