//! The nodes of the route, as the driver's cache knows them.

use csi_proto::csi::v1 as csi;
use tokio::time::Instant;

use super::TopologyRouter;
use crate::call::{NodeId, Outcome};
use crate::dispatcher::operation::Digest;
use crate::driver_info::{self, Entry, Presence};
use crate::routing::{Candidate, Refusal};

impl TopologyRouter {
    /// Takes in that all nodes that are there were told of: no other is. From then on nodes are asked when they come, and seldom
    /// otherwise.
    pub fn current(&self) {
        self.drivers.change(driver_info::Cache::current);
    }

    /// All nodes of the driver, by name.
    pub(super) fn names(&self) -> Vec<NodeId> {
        self.of_driver(|_| true)
    }

    /// The nodes whose driver can be reached.
    pub(super) fn online(&self) -> Vec<NodeId> {
        self.of_driver(Entry::is_online)
    }

    /// The nodes whose driver can be reached, and then the others.
    pub(super) fn online_first(&self) -> Vec<NodeId> {
        let mut nodes = self.online();
        nodes.extend(self.of_driver(|entry| !entry.is_online()));
        nodes
    }

    /// The nodes within a topology that may have room: all but those that are known to be away.
    pub(super) fn not_away(&self, topology: &csi::Topology) -> Vec<NodeId> {
        self.of_driver(|entry| {
            matches!(entry.presence(), Presence::Online | Presence::Unknown)
                && (topology.segments.is_empty()
                    || entry.topology().is_some_and(|place| place.is_within(topology)))
        })
    }

    fn of_driver(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<NodeId> {
        self.drivers.look(|cache| {
            let found = cache.entries().filter(|(_, entry)| entry.is_of_driver() && wanted(entry));
            found.map(|(node, _)| node.clone()).collect()
        })
    }

    /// The node, if there is only one and there will be no other.
    pub(super) fn only(&self) -> Option<NodeId> {
        self.drivers.look(driver_info::Cache::only)
    }

    /// Where a node is; nowhere in particular if that is not known.
    pub(super) fn topology(&self, node: &NodeId) -> csi::Topology {
        self.known_topology(node).unwrap_or_default()
    }

    /// The same; `None` before the node was asked.
    pub(super) fn known_topology(&self, node: &NodeId) -> Option<csi::Topology> {
        self.drivers.look(|cache| cache.entry(node)?.topology())
    }

    /// The candidates for a volume of a class.
    pub(super) fn candidates(&self, class: &Digest) -> Vec<Candidate> {
        let (rooms, now) = (self.rooms(), Instant::now());
        self.drivers.look(|cache| {
            let nodes = cache.entries().filter(|(_, entry)| entry.is_of_driver());
            nodes
                .map(|(node, entry)| Candidate {
                    node: node.clone(),
                    topology: entry.topology(),
                    presence: entry.presence(),
                    room: rooms.of(node, class, now),
                })
                .collect()
        })
    }

    /// The node that a driver calls so.
    pub(super) fn by_node_id(&self, node_id: &str) -> Result<NodeId, Refusal> {
        self.drivers.look(|cache| {
            let mut found = cache.entries().filter(|(_, entry)| entry.node_id() == node_id).map(|(node, _)| node);
            let what = match (found.next(), found.next()) {
                (Some(node), None) => return Ok(node.clone()),
                (Some(one), Some(other)) => format!(
                    "nodes {one} and {other} both have the node_id {node_id:?}; give each node's driver a node_id of its own"
                ),
                (None, _) => {
                    let silent = |entry: &Entry| entry.topology().is_none() && entry.is_of_driver();
                    match cache.entries().find(|(_, entry)| silent(entry)) {
                        Some((node, _)) => format!("no node has the node_id {node_id:?}, but node {node} has not been reached yet"),
                        None => return Err(Refusal::NoSuchNode { node_id: node_id.to_owned() }),
                    }
                }
            };
            Err(Refusal::NotKnown { what })
        })
    }

    /// Takes in what the end of a call says of the node's presence.
    pub(super) fn hear(&self, node: &NodeId, outcome: &Outcome) {
        self.drivers.change(|cache, now| cache.heard(node, outcome, now));
    }
}
