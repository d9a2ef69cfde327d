//! The nodes of the route, from the cache of driver info.

use csi_proto::csi::v1 as csi;
use tokio::time::Instant;

use super::TopologyRouter;
use super::create::class_of;
use super::reach::Reach;
use crate::call::{NodeId, Outcome};
use crate::driver_info::{self, Entry, Presence};
use crate::routing::{Candidate, Refusal, VolumeRequest};

impl TopologyRouter {
    /// Records that the list of connected nodes is complete. From then on nodes are refreshed when they connect, and
    /// rarely otherwise.
    pub fn synced(&self) {
        self.driver_info.change(driver_info::Cache::synced);
    }

    /// Checks that all connected nodes are known.
    ///
    /// # Errors
    /// If the hub has not reported them yet: a subject may be on a node that is not known.
    pub(super) fn check_complete(&self) -> Result<(), Refusal> {
        if self.driver_info.read(driver_info::Cache::knows_nodes) {
            return Ok(());
        }
        let what =
            "the hub has not reported its nodes yet, and a node may have the subject; retry".to_owned();
        Err(Refusal::Undetermined { what })
    }

    /// Checks that a node reports only what is its own.
    ///
    /// # Errors
    /// If the node is quarantined.
    pub(super) fn check_claim(&self, node: &NodeId) -> Result<(), Refusal> {
        let conflict = self.driver_info.read(|cache| cache.entry(node)?.conflict().cloned());
        conflict.map_or(Ok(()), |reason| Err(Refusal::Quarantined { node: node.clone(), reason }))
    }

    /// All nodes of the driver, by name.
    pub(super) fn names(&self) -> Vec<NodeId> {
        self.names_of(|_| true)
    }

    /// The nodes with a reachable driver.
    pub(super) fn online(&self) -> Vec<NodeId> {
        self.names_of(Entry::is_online)
    }

    /// The nodes within a topology that may have capacity: online, or of unknown presence.
    pub(super) fn possibly_online(&self, topology: &csi::Topology) -> Vec<NodeId> {
        self.names_of(|entry| {
            matches!(entry.presence(), Presence::Online | Presence::Unknown)
                && entry.conflict().is_none()
                && (topology.segments.is_empty()
                    || entry.topology().is_some_and(|place| place.is_within(topology)))
        })
    }

    fn names_of(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<NodeId> {
        self.driver_info.read(|cache| {
            let found = cache.entries().filter(|(_, entry)| entry.is_of_driver() && wanted(entry));
            found.map(|(node, _)| node.clone()).collect()
        })
    }

    /// The only node, if no other node can be added.
    pub(super) fn only(&self) -> Option<NodeId> {
        self.driver_info.read(driver_info::Cache::only)
    }

    /// The topology of a node; empty if unknown.
    pub(super) fn topology(&self, node: &NodeId) -> csi::Topology {
        self.known_topology(node).unwrap_or_default()
    }

    /// The topology of a node; `None` if unknown.
    pub(super) fn known_topology(&self, node: &NodeId) -> Option<csi::Topology> {
        self.driver_info.read(|cache| cache.entry(node)?.topology().cloned())
    }

    /// Which nodes may be within a topology of the request.
    pub(super) fn reach<'a>(&self, request: &'a VolumeRequest) -> Reach<'a> {
        Reach::of(request, self.settings.topology_key.as_deref())
    }

    /// The candidates for a volume within its reach; `waited` excludes a node that was never reached, since all nodes
    /// were asked before.
    pub(super) fn candidates(
        &self,
        request: &VolumeRequest,
        reach: &Reach<'_>,
        waited: bool,
    ) -> Vec<Candidate> {
        let (capacity_cache, class, now) =
            (self.capacity_cache(), class_of(&request.parameters), Instant::now());
        self.driver_info.read(|cache| {
            let takes_part = |(node, entry): &(&NodeId, &Entry)| {
                entry.is_of_driver()
                    && entry.conflict().is_none()
                    && reach.may_include(node, entry.topology())
                    && !(waited && entry.is_newcomer())
            };
            let candidate = |(node, entry): (&NodeId, &Entry)| Candidate {
                node: node.clone(),
                topology: entry.topology().cloned(),
                presence: entry.presence(),
                room: capacity_cache.of(node, &class, now),
            };
            cache.entries().filter(takes_part).map(candidate).collect()
        })
    }

    /// The node with this `node_id`.
    pub(super) fn by_node_id(&self, node_id: &str) -> Result<NodeId, Refusal> {
        self.driver_info.read(|cache| {
            let mut found =
                cache.entries().filter(|(_, entry)| entry.node_id() == node_id).map(|(node, _)| node);
            let what = match (found.next(), found.next()) {
                (Some(node), None) => return Ok(node.clone()),
                (Some(one), Some(other)) => format!(
                    "nodes {one} and {other} both have the node_id {node_id:?}; make the node_ids unique"
                ),
                (None, _) => {
                    let unreached = |entry: &Entry| entry.topology().is_none() && entry.is_of_driver();
                    match cache.entries().find(|(_, entry)| unreached(entry)) {
                        Some((node, _)) => format!(
                            "no node has the node_id {node_id:?}, but node {node} has not been reached yet, or is quarantined"
                        ),
                        None => return Err(Refusal::NoSuchNode { node_id: node_id.to_owned() }),
                    }
                }
            };
            Err(Refusal::Undetermined { what })
        })
    }

    /// Derives the presence of the node from the outcome of a call.
    pub(super) fn observe(&self, node: &NodeId, outcome: &Outcome) {
        self.driver_info.change(|cache, now| cache.observe(node, outcome, now));
    }
}
