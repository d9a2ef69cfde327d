//! What is known of a driver's nodes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::known::{Facts, Known};
use crate::call::NodeId;
use crate::fault::Fault;
use crate::operation::Digest;
use crate::outcome::{Origin, Outcome};
use crate::route::{Candidate, Presence, Refusal};

/// Most nodes of a route that finds its nodes by itself.
pub(super) const MAX_NODES: usize = 10_000;

/// The nodes, each with what is known of it.
#[derive(Debug)]
pub(super) struct Nodes {
    table: Mutex<Table>,
    /// Whether nodes that are told of belong to the route too, and not only those that it was given.
    discovers: bool,
    /// A node is online that was not.
    online: Notify,
}

#[derive(Debug)]
struct Table {
    nodes: BTreeMap<NodeId, Known>,
    /// Somebody tells which nodes come and go.
    told: bool,
    /// It was said that there are too many.
    full: bool,
}

impl Nodes {
    /// These nodes, with what each has said before; if it discovers nodes, those too that have said something before.
    pub(super) fn new(
        nodes: impl IntoIterator<Item = NodeId>,
        discovers: bool,
        before: impl IntoIterator<Item = (NodeId, Bytes)>,
    ) -> Self {
        let named = nodes.into_iter().map(|node| (node, Known::new(None, true)));
        let mut nodes: BTreeMap<_, _> = named.collect();
        for (node, description) in before {
            let Ok(facts) = Facts::decode(description) else { continue };
            match nodes.get_mut(&node) {
                Some(known) => known.facts = Some(Arc::new(facts)),
                None if discovers => drop(nodes.insert(node, Known::new(Some(facts), false))),
                None => {}
            }
        }
        let table = Mutex::new(Table { nodes, told: false, full: false });
        Self { table, discovers, online: Notify::new() }
    }

    /// Takes in that a node is there. Says whether it belongs to the route.
    pub(super) fn arrived(&self, node: &NodeId) -> bool {
        let mut table = self.lock();
        let table = &mut *table;
        let full = table.nodes.len() >= MAX_NODES;
        let known = match table.nodes.entry(node.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !self.discovers => return false,
            Entry::Vacant(_) if full => {
                if !std::mem::replace(&mut table.full, true) {
                    tracing::error!(%node, max = MAX_NODES, "too many nodes for one route; this one and further ones are left out");
                }
                return false;
            }
            Entry::Vacant(vacant) => vacant.insert(Known::new(None, false)),
        };
        (known.seen, known.due, known.misses) = (true, Instant::now(), 0);
        if matches!(known.presence, Presence::Offline | Presence::WithoutDriver) {
            known.set(node, Presence::Unknown);
        }
        true
    }

    /// Takes in that a node is away.
    pub(super) fn left(&self, node: &NodeId) {
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(node) else { return };
        known.seen = false;
        known.set(node, Presence::Offline);
        if !known.is_of_driver() {
            table.nodes.remove(node);
        }
    }

    /// Takes in that all nodes that are there were told of.
    pub(super) fn current(&self) {
        let (mut table, now) = (self.lock(), Instant::now());
        table.told = true;
        for (node, known) in &mut table.nodes {
            if !known.seen && known.presence == Presence::Unknown {
                known.set(node, Presence::Offline);
                // Those that are there come first.
                known.rest(true, now);
            }
        }
    }

    /// Takes a node out, with what it has said. Says whether the route was given it.
    pub(super) fn remove(&self, node: &NodeId) -> bool {
        self.lock().nodes.remove(node).is_some_and(|known| known.named)
    }

    /// Takes in a node again that the route was given.
    pub(super) fn add(&self, node: &NodeId) {
        self.lock().nodes.entry(node.clone()).or_insert_with(|| Known::new(None, true));
    }

    /// Whether a node is connected, as far as is known; `None` if the node is not known.
    pub(super) fn is_connected(&self, node: &NodeId) -> Option<bool> {
        let table = self.lock();
        table.nodes.get(node).map(|known| known.seen || known.presence == Presence::Online)
    }

    /// Up to so many nodes of which something is to be asked now, and when something is to be asked of another one. Each of them has
    /// to be [rested](Self::rested) once that is done.
    pub(super) fn take_due(&self, most: usize, now: Instant) -> (Vec<NodeId>, Option<Instant>) {
        let (mut due, mut later) = (Vec::new(), None);
        for (node, known) in self.lock().nodes.iter_mut().filter(|(_, known)| !known.visited) {
            let next = known.due;
            if next <= now && due.len() < most {
                known.visited = true;
                due.push(node.clone());
            } else {
                later = Some(later.map_or(next, |later: Instant| later.min(next)));
            }
        }
        (due, later)
    }

    /// Whether a node is to be asked what it is, and from then on waits for its next turn.
    pub(super) fn begin_facts(&self, node: &NodeId, now: Instant) -> bool {
        let mut table = self.lock();
        let told = table.told;
        let Some(known) = table.nodes.get_mut(node).filter(|known| known.due <= now) else { return false };
        known.rest(told, now);
        true
    }

    /// A node was asked what it is and did not say it.
    pub(super) fn missed(&self, node: &NodeId) {
        if let Some(known) = self.lock().nodes.get_mut(node) {
            known.misses = known.misses.saturating_add(1);
        }
    }

    /// Nothing is asked of a node any more. `asked`: it was asked what it is.
    pub(super) fn rested(&self, node: &NodeId, asked: bool) {
        let mut table = self.lock();
        let (told, now) = (table.told, Instant::now());
        if let Some(known) = table.nodes.get_mut(node) {
            known.visited = false;
            // It may have been told to be there meanwhile.
            if asked && known.due > now {
                known.rest(told, now);
            }
        }
    }

    /// Asks again those of which it is not known whether they are there.
    pub(super) fn refresh(&self) {
        let mut table = self.lock();
        let (told, now) = (table.told, Instant::now());
        for known in table.nodes.values_mut() {
            if !told || matches!(known.presence, Presence::Unknown | Presence::WithoutDriver) {
                known.due = now;
            }
        }
    }

    /// All nodes of the driver, by name.
    pub(super) fn names(&self) -> Vec<NodeId> {
        self.of_driver(|_| true)
    }

    fn of_driver(&self, wanted: impl Fn(&Known) -> bool) -> Vec<NodeId> {
        let table = self.lock();
        let found = table.nodes.iter().filter(|(_, known)| known.is_of_driver() && wanted(known));
        found.map(|(node, _)| node.clone()).collect()
    }

    /// The node, if there is only one and there will be no other.
    pub(super) fn only(&self) -> Option<NodeId> {
        let table = self.lock();
        if table.nodes.len() == 1 && !self.discovers { table.nodes.keys().next().cloned() } else { None }
    }

    /// The nodes whose driver can be reached, and then the others.
    pub(super) fn online_first(&self) -> Vec<NodeId> {
        let mut nodes = self.online();
        nodes.extend(self.of_driver(|known| known.presence != Presence::Online));
        nodes
    }

    /// The nodes whose driver can be reached.
    pub(super) fn online(&self) -> Vec<NodeId> {
        self.of_driver(|known| known.presence == Presence::Online)
    }

    /// The nodes within a topology that may have room: all but those that are known to be away.
    pub(super) fn not_away(&self, topology: &csi::Topology) -> Vec<NodeId> {
        let inside = |known: &Known| {
            let place = known.facts.as_ref().map(|facts| &facts.topology);
            topology.segments.is_empty() || place.is_some_and(|place| place.is_within(topology))
        };
        self.of_driver(|known| {
            matches!(known.presence, Presence::Online | Presence::Unknown) && inside(known)
        })
    }

    /// The nodes whose driver could not be reached the last time, or never was.
    pub(super) fn absent(&self) -> Vec<NodeId> {
        let table = self.lock();
        let absent = table.nodes.iter().filter(|(_, known)| {
            (known.presence != Presence::Online || known.facts.is_none())
                // What has come is being asked already, or will be.
                && (known.is_of_driver() || known.seen)
        });
        absent.map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn facts(&self, node: &NodeId) -> Option<Arc<Facts>> {
        self.lock().nodes.get(node)?.facts.clone()
    }

    /// What is known, of all nodes of which something is.
    pub(super) fn all_facts(&self) -> Vec<Arc<Facts>> {
        self.lock().nodes.values().filter_map(|known| known.facts.clone()).collect()
    }

    pub(super) fn is_online(&self, node: &NodeId) -> bool {
        self.lock().nodes.get(node).is_some_and(|known| known.presence == Presence::Online)
    }

    /// Where a node is; nowhere in particular if that is not known.
    pub(super) fn topology(&self, node: &NodeId) -> csi::Topology {
        self.facts(node).map(|facts| facts.topology.clone()).unwrap_or_default()
    }

    pub(super) fn learn(&self, node: &NodeId, facts: Facts) {
        let mut table = self.lock();
        let Some(known) = table.nodes.get_mut(node) else { return };
        if let Some(before) = &known.facts
            && before.topology != facts.topology
        {
            tracing::warn!(
                %node, before = ?before.topology.segments, now = ?facts.topology.segments,
                "a node says that it is somewhere else than before; volumes that were made there may be out of reach for pods"
            );
        }
        known.facts = Some(Arc::new(facts));
        known.misses = 0;
        if known.set(node, Presence::Online) {
            self.online.notify_one();
        }
    }

    /// Takes in what the end of a call says of the node's presence.
    pub(super) fn tell(&self, node: &NodeId, outcome: &Outcome) {
        let presence = match &outcome.origin {
            Origin::Driver => Presence::Online,
            Origin::Relay(fault) => match &**fault {
                // That no hub can be reached says nothing of a node.
                Fault::NodeOffline { .. } | Fault::NodeUnknown { .. } => Presence::Offline,
                Fault::DriverNotRegistered { .. } => Presence::WithoutDriver,
                _ => return,
            },
            Origin::Endpoint => return,
        };
        if let Some(known) = self.lock().nodes.get_mut(node)
            // Without its facts it cannot be chosen.
            && (presence != Presence::Online || known.facts.is_some())
        {
            let news = known.set(node, presence);
            if news && presence == Presence::Online {
                self.online.notify_one();
            }
        }
    }

    /// Waits until a node is online that was not.
    pub(super) async fn comes_online(&self) {
        self.online.notified().await;
    }

    /// The node that a driver calls so.
    pub(super) fn by_node_id(&self, node_id: &str) -> Result<NodeId, Refusal> {
        let table = self.lock();
        let named = |known: &Known| known.facts.as_ref().is_some_and(|facts| facts.node_id == node_id);
        let mut found = table.nodes.iter().filter(|(_, known)| named(known)).map(|(node, _)| node);
        match (found.next(), found.next()) {
            (Some(node), None) => Ok(node.clone()),
            (Some(one), Some(other)) => Err(Refusal::NotKnown {
                what: format!(
                    "nodes {one} and {other} both have the node_id {node_id:?}; give each node's driver a node_id of its own"
                ),
            }),
            (None, _) => Err(
                match table.nodes.iter().find(|(_, known)| known.facts.is_none() && known.is_of_driver()) {
                    Some((node, _)) => Refusal::NotKnown {
                        what: format!(
                            "no node has the node_id {node_id:?}, but node {node} has not been reached yet"
                        ),
                    },
                    None => Refusal::NoSuchNode { node_id: node_id.to_owned() },
                },
            ),
        }
    }

    /// Remembers how large a volume of a class may be.
    pub(super) fn found_room(&self, node: &NodeId, class: Digest, bytes: u64, now: Instant) {
        if let Some(known) = self.lock().nodes.get_mut(node) {
            known.found_room(class, bytes, now);
        }
    }

    /// Forgets how much room there is: something was made or deleted.
    pub(super) fn room_changed(&self, node: &NodeId) {
        if let Some(known) = self.lock().nodes.get_mut(node) {
            known.forget_room();
        }
    }

    /// The candidates for a volume of a class.
    pub(super) fn candidates(&self, class: &Digest, now: Instant) -> Vec<Candidate> {
        let candidate = |(node, known): (&NodeId, &Known)| Candidate {
            node: node.clone(),
            topology: known.facts.as_ref().map(|facts| facts.topology.clone()),
            presence: known.presence,
            room: known.room(class, now),
        };
        self.lock().nodes.iter().filter(|(_, known)| known.is_of_driver()).map(candidate).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::known::{FRESH, LONG_ROUND, ROUND};
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn nodes() -> Nodes {
        Nodes::new(["edge-1", "edge-2"].map(node), false, [])
    }

    fn facts(node_id: &str) -> Facts {
        Facts { node_id: node_id.to_owned(), ..Facts::default() }
    }

    #[test]
    fn a_node_id_is_the_name_of_one_node_or_of_none_and_not_before_all_have_said_theirs() {
        let nodes = nodes();
        nodes.learn(&node("edge-1"), facts("a"));
        assert_eq!(nodes.by_node_id("a"), Ok(node("edge-1")));
        assert!(matches!(nodes.by_node_id("b"), Err(Refusal::NotKnown { .. })));
        nodes.learn(&node("edge-2"), facts("c"));
        assert!(matches!(nodes.by_node_id("b"), Err(Refusal::NoSuchNode { .. })));
        nodes.learn(&node("edge-2"), facts("a"));
        assert!(matches!(nodes.by_node_id("a"), Err(Refusal::NotKnown { .. })), "it could be either");
    }

    #[test]
    fn a_node_is_chosen_once_it_has_said_what_it_is_and_no_lost_hub_makes_it_offline() {
        let nodes = nodes();
        nodes.tell(&node("edge-1"), &Outcome::ok());
        assert!(!nodes.is_online(&node("edge-1")));
        nodes.learn(&node("edge-1"), facts("a"));
        nodes.tell(&node("edge-1"), &Fault::HubUnreachable { reason: String::new() }.into());
        assert!(nodes.is_online(&node("edge-1")));
        nodes.tell(&node("edge-1"), &Fault::NodeOffline { node: node("edge-1") }.into());
        assert_eq!(
            (nodes.online(), nodes.not_away(&csi::Topology::default())),
            (vec![], vec![node("edge-2")])
        );
        nodes.tell(&node("edge-1"), &Outcome::ok());
        assert!(nodes.is_online(&node("edge-1")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_room_of_a_node_counts_for_its_class_and_for_a_minute() {
        let (nodes, class) = (nodes(), Digest::from_bytes([1; 32]));
        let room = |class: &Digest| nodes.candidates(class, Instant::now())[0].room;
        nodes.found_room(&node("edge-1"), class, 9, Instant::now());
        assert_eq!((room(&class), room(&Digest::from_bytes([2; 32]))), (Some(9), None));
        tokio::time::advance(FRESH).await;
        assert_eq!(room(&class), None);
        nodes.found_room(&node("edge-1"), class, 9, Instant::now());
        nodes.room_changed(&node("edge-1"));
        assert_eq!(room(&class), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_that_finds_its_nodes_knows_those_that_have_the_driver_and_forgets_the_others() {
        let nodes = Nodes::new([], true, [(node("edge-9"), Bytes::from(facts("z").encode_to_vec()))]);
        assert!(nodes.arrived(&node("edge-1")) && nodes.arrived(&node("edge-2")));
        nodes.current();
        assert_eq!(nodes.names(), ["edge-1", "edge-2", "edge-9"].map(node));
        assert_eq!(nodes.not_away(&csi::Topology::default()), ["edge-1", "edge-2"].map(node));
        nodes.learn(&node("edge-1"), facts("a"));
        let driver = csi_proto::DriverName::new("csi-hostpath").unwrap();
        nodes.tell(&node("edge-2"), &Fault::DriverNotRegistered { driver }.into());
        assert_eq!(nodes.names(), ["edge-1", "edge-9"].map(node), "a node without the driver is none of it");
        assert_eq!(nodes.by_node_id("b"), Err(Refusal::NoSuchNode { node_id: "b".to_owned() }));
        for name in ["edge-1", "edge-2"] {
            nodes.left(&node(name));
        }
        assert_eq!((nodes.names(), nodes.online()), (["edge-1", "edge-9"].map(node).to_vec(), vec![]));
        assert!(!nodes.remove(&node("edge-9")));
        assert_eq!(nodes.names(), [node("edge-1")]);
        assert_eq!(nodes.only(), None, "there may be others");
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_starts_after_its_node_is_found_soon_and_one_that_never_comes_is_seldom_asked_for()
    {
        let nodes = Nodes::new([], true, []);
        nodes.arrived(&node("edge-1"));
        nodes.current();
        let mut asked = Vec::new();
        for second in 0..3600_u32 {
            for node in nodes.take_due(1, Instant::now()).0 {
                asked.push(second);
                assert!(nodes.begin_facts(&node, Instant::now()));
                let driver = csi_proto::DriverName::new("csi-hostpath").unwrap();
                nodes.tell(&node, &Fault::DriverNotRegistered { driver }.into());
                nodes.missed(&node);
                nodes.rested(&node, true);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(asked[..7], [0, 5, 15, 35, 75, 155, 315]);
        assert!(asked.len() < 20, "{asked:?}");
    }

    #[test]
    fn a_route_that_was_given_its_nodes_takes_no_others() {
        let nodes = nodes();
        assert!(!nodes.arrived(&node("edge-3")) && nodes.arrived(&node("edge-1")));
        assert_eq!(nodes.names(), ["edge-1", "edge-2"].map(node));
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_told_who_is_there_a_node_is_asked_when_it_comes_and_seldom_after() {
        let nodes = Nodes::new([], true, []);
        let asked = |most| {
            let (due, _) = nodes.take_due(most, Instant::now());
            for node in &due {
                assert!(nodes.begin_facts(node, Instant::now()));
                nodes.learn(node, facts("a"));
                nodes.rested(node, true);
            }
            due.len()
        };
        for number in 0..1000 {
            nodes.arrived(&node(&format!("edge-{number}")));
        }
        nodes.current();
        let mut all = 0;
        while let batch @ 1.. = asked(16) {
            all += batch;
        }
        assert_eq!(all, 1000);
        tokio::time::advance(ROUND).await;
        assert_eq!(asked(usize::MAX), 0);
        nodes.arrived(&node("edge-7"));
        assert_eq!(asked(usize::MAX), 1);
        tokio::time::advance(LONG_ROUND).await;
        assert_eq!(asked(usize::MAX), 1000);
    }
}
