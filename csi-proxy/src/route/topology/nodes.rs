//! What is known of a driver's nodes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message;
use tokio::time::Instant;

use crate::call::NodeId;
use crate::fault::Fault;
use crate::operation::Digest;
use crate::outcome::{Origin, Outcome};
use crate::route::{Candidate, Presence, Refusal};

/// How long a capacity that a driver reported counts in an election.
const FRESH: Duration = Duration::from_secs(60);

/// Most classes whose capacity is remembered of a node.
const MAX_ROOMS: usize = 64;

/// What a node's driver says of itself.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Facts {
    /// Its own name for the node; empty if it has no node service.
    #[prost(string, tag = "1")]
    pub(super) node_id: String,
    /// Where the node is.
    #[prost(message, required, tag = "2")]
    pub(super) topology: csi::Topology,
    /// The `GetPluginInfoResponse`.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) info: Bytes,
    /// The `GetPluginCapabilitiesResponse`.
    #[prost(message, required, tag = "4")]
    pub(super) plugin: csi::GetPluginCapabilitiesResponse,
    /// The `ControllerGetCapabilitiesResponse`; `None` if the service is not offered.
    #[prost(message, optional, tag = "5")]
    pub(super) controller: Option<csi::ControllerGetCapabilitiesResponse>,
    /// The `GroupControllerGetCapabilitiesResponse`; `None` if the service is not offered.
    #[prost(message, optional, tag = "6")]
    pub(super) group: Option<csi::GroupControllerGetCapabilitiesResponse>,
}

/// The nodes, each with what is known of it.
#[derive(Debug)]
pub(super) struct Nodes(Mutex<BTreeMap<NodeId, Known>>);

#[derive(Debug)]
struct Known {
    facts: Option<Facts>,
    presence: Presence,
    rooms: VecDeque<Room>,
}

/// How large a volume of a class may be.
#[derive(Debug)]
struct Room {
    class: Digest,
    bytes: u64,
    since: Instant,
}

impl Nodes {
    /// These nodes, with what each has said before.
    pub(super) fn new(
        nodes: impl IntoIterator<Item = NodeId>,
        before: impl Fn(&NodeId) -> Option<Bytes>,
    ) -> Self {
        let known = |node: NodeId| {
            let facts = before(&node).and_then(|facts| Facts::decode(facts).ok());
            (node, Known { facts, presence: Presence::Unknown, rooms: VecDeque::new() })
        };
        Self(Mutex::new(nodes.into_iter().map(known).collect()))
    }

    /// All nodes, by name.
    pub(super) fn names(&self) -> Vec<NodeId> {
        self.table().keys().cloned().collect()
    }

    /// The node, if there is only one.
    pub(super) fn only(&self) -> Option<NodeId> {
        let table = self.table();
        if table.len() == 1 { table.keys().next().cloned() } else { None }
    }

    /// The nodes whose driver can be reached, and then the others.
    pub(super) fn online_first(&self) -> Vec<NodeId> {
        let table = self.table();
        let of = |online: bool| {
            table.iter().filter(move |(_, known)| (known.presence == Presence::Online) == online)
        };
        of(true).chain(of(false)).map(|(node, _)| node.clone()).collect()
    }

    /// The nodes whose driver can be reached.
    pub(super) fn online(&self) -> Vec<NodeId> {
        let table = self.table();
        let online = table.iter().filter(|(_, known)| known.presence == Presence::Online);
        online.map(|(node, _)| node.clone()).collect()
    }

    /// The nodes that may have room: all but those that are known to be away.
    pub(super) fn not_away(&self) -> Vec<NodeId> {
        let table = self.table();
        let may =
            table.iter().filter(|(_, known)| matches!(known.presence, Presence::Online | Presence::Unknown));
        may.map(|(node, _)| node.clone()).collect()
    }

    /// The nodes whose driver could not be reached the last time, or never was.
    pub(super) fn absent(&self) -> Vec<NodeId> {
        let table = self.table();
        let absent =
            table.iter().filter(|(_, known)| known.presence != Presence::Online || known.facts.is_none());
        absent.map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn facts(&self, node: &NodeId) -> Option<Facts> {
        self.table().get(node)?.facts.clone()
    }

    /// What is known, of all nodes of which something is.
    pub(super) fn all_facts(&self) -> Vec<(NodeId, Facts)> {
        let table = self.table();
        table.iter().filter_map(|(node, known)| Some((node.clone(), known.facts.clone()?))).collect()
    }

    pub(super) fn is_online(&self, node: &NodeId) -> bool {
        self.table().get(node).is_some_and(|known| known.presence == Presence::Online)
    }

    /// Where a node is; nowhere in particular if that is not known.
    pub(super) fn topology(&self, node: &NodeId) -> csi::Topology {
        self.facts(node).map(|facts| facts.topology).unwrap_or_default()
    }

    pub(super) fn learn(&self, node: &NodeId, facts: Facts) {
        let mut table = self.table();
        let Some(known) = table.get_mut(node) else { return };
        if let Some(before) = &known.facts
            && before.topology != facts.topology
        {
            tracing::warn!(
                %node, before = ?before.topology.segments, now = ?facts.topology.segments,
                "a node says that it is somewhere else than before; volumes that were made there may be out of reach for pods"
            );
        }
        known.facts = Some(facts);
        set(node, known, Presence::Online);
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
        if let Some(known) = self.table().get_mut(node)
            // Without its facts it cannot be chosen.
            && (presence != Presence::Online || known.facts.is_some())
        {
            set(node, known, presence);
        }
    }

    /// The node that a driver calls so.
    pub(super) fn by_node_id(&self, node_id: &str) -> Result<NodeId, Refusal> {
        let table = self.table();
        let named = |known: &Known| known.facts.as_ref().is_some_and(|facts| facts.node_id == node_id);
        let mut found = table.iter().filter(|(_, known)| named(known)).map(|(node, _)| node);
        match (found.next(), found.next()) {
            (Some(node), None) => Ok(node.clone()),
            (Some(one), Some(other)) => Err(Refusal::NotKnown {
                what: format!(
                    "nodes {one} and {other} both have the node_id {node_id:?}; give each node's driver a node_id of its own"
                ),
            }),
            (None, _) => Err(match table.iter().find(|(_, known)| known.facts.is_none()) {
                Some((node, _)) => Refusal::NotKnown {
                    what: format!(
                        "no node has the node_id {node_id:?}, but node {node} has not been reached yet"
                    ),
                },
                None => Refusal::NoSuchNode { node_id: node_id.to_owned() },
            }),
        }
    }

    /// Remembers how large a volume of a class may be.
    pub(super) fn found_room(&self, node: &NodeId, class: Digest, bytes: u64, now: Instant) {
        if let Some(known) = self.table().get_mut(node) {
            known.rooms.retain(|room| room.class != class);
            known.rooms.push_back(Room { class, bytes, since: now });
            if known.rooms.len() > MAX_ROOMS {
                known.rooms.pop_front();
            }
        }
    }

    /// Forgets how much room there is: something was made or deleted.
    pub(super) fn room_changed(&self, node: &NodeId) {
        if let Some(known) = self.table().get_mut(node) {
            known.rooms.clear();
        }
    }

    /// The candidates for a volume of a class.
    pub(super) fn candidates(&self, class: &Digest, now: Instant) -> Vec<Candidate> {
        let room = |known: &Known| {
            let fresh =
                |room: &&Room| room.class == *class && now.saturating_duration_since(room.since) < FRESH;
            known.rooms.iter().find(fresh).map(|room| room.bytes)
        };
        let candidate = |(node, known): (&NodeId, &Known)| Candidate {
            node: node.clone(),
            topology: known.facts.as_ref().map(|facts| facts.topology.clone()),
            presence: known.presence,
            room: room(known),
        };
        self.table().iter().map(candidate).collect()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<NodeId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(node: &NodeId, known: &mut Known, presence: Presence) {
    if known.presence != presence {
        known.presence = presence;
        tracing::info!(%node, ?presence, "a node of the route");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn nodes() -> Nodes {
        Nodes::new(["edge-1", "edge-2"].map(node), |_| None)
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
        assert_eq!((nodes.online(), nodes.not_away()), (vec![], vec![node("edge-2")]));
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
}
