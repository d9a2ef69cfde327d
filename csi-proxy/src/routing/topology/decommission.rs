//! Decommissioned nodes: an operator has declared them lost, with all volumes on them.
//!
//! What such a node had is released, so that the names of its volumes may be used on other nodes. If it connects again it stays
//! quarantined: it gets no calls and no volumes until it is recommissioned, since volumes of one name may exist twice by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use csi_proto::DriverName;
use tokio::sync::Notify;

use super::TopologyRouter;
use crate::call::NodeId;
use crate::routing::Refusal;

/// Most nodes that are decommissioned at the same time.
pub const MAX_DECOMMISSIONED: usize = 10_000;

/// A node cannot be decommissioned or recommissioned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecommissionError {
    /// It is connected, so its volumes are not lost.
    #[error("node {node} is connected, so its volumes are not lost; stop its agent first")]
    Connected {
        /// The node.
        node: NodeId,
    },
    /// The route knows neither the node nor a volume on it.
    #[error("node {node} is not known to the proxy of driver {driver}: it was never seen and has no volume")]
    Unknown {
        /// The node.
        node: NodeId,
        /// The driver of the route.
        driver: DriverName,
    },
    /// Too many nodes are decommissioned.
    #[error("{max} nodes are decommissioned, which is the bound; recommission those that will not return")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// It is not durable. The node gets no calls as long as the process runs.
    #[error("node {node}: not durable, repeat the command: {source}")]
    NotDurable {
        /// The node.
        node: NodeId,
        /// Why.
        source: Refusal,
    },
}

/// What decommissioning a node did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decommissioned {
    /// How many rows of the table of placements were released.
    pub rows: usize,
    /// Whether the node was decommissioned before.
    pub before: bool,
}

/// The decommissioned nodes of a route. Durable is only who they are, in the store of placements.
#[derive(Debug)]
pub(super) struct Quarantine {
    nodes: Mutex<BTreeMap<NodeId, Quarantined>>,
    /// A node was decommissioned.
    added: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Quarantined {
    /// The route was given it by name.
    named: bool,
    connected: bool,
}

impl Quarantine {
    /// Begins with these, and takes them out of the nodes that the route is given.
    pub(super) fn new(
        decommissioned: impl IntoIterator<Item = NodeId>,
        names: &mut BTreeSet<NodeId>,
    ) -> Self {
        let quarantined = |node: NodeId| {
            tracing::warn!(%node, "this node is decommissioned and gets no calls until it is recommissioned");
            let named = names.remove(&node);
            (node, Quarantined { named, connected: false })
        };
        let nodes = decommissioned.into_iter().map(quarantined).collect();
        Self { nodes: Mutex::new(nodes), added: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Quarantined>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready once the node is decommissioned.
    pub(super) async fn until_added(&self, node: &NodeId) {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // Before the look, or what is added after it would be missed.
            added.as_mut().enable();
            if self.lock().contains_key(node) {
                return;
            }
            added.await;
        }
    }
}

impl TopologyRouter {
    /// Decommissions a node, since it is lost with all volumes on it: what it had is released, the calls that it has end, and it
    /// stays quarantined until it is [recommissioned](Self::recommission), over restarts too. Repeating it changes nothing more.
    ///
    /// # Errors
    /// If the node is connected or not known, too many are decommissioned, or it cannot be made durable. Only in the last case
    /// something was done: the node gets no calls from this process, and a part of what it had may be released. Repeating the
    /// command, or the next start, does the rest.
    pub async fn decommission(&self, node: &NodeId) -> Result<Decommissioned, DecommissionError> {
        let before = {
            let mut quarantine = self.quarantine.lock();
            let before = quarantine.contains_key(node);
            if !before {
                let connected = self.drivers.look(|cache| cache.is_connected(node));
                if connected == Some(true) {
                    return Err(DecommissionError::Connected { node: node.clone() });
                }
                if connected.is_none() && !self.placements.has_rows_of(node) {
                    let (node, driver) = (node.clone(), self.driver.clone());
                    return Err(DecommissionError::Unknown { node, driver });
                }
                if quarantine.len() >= MAX_DECOMMISSIONED {
                    return Err(DecommissionError::TooMany { max: MAX_DECOMMISSIONED });
                }
                let named = self.drivers.change(|cache, _| cache.remove(node));
                quarantine.insert(node.clone(), Quarantined { named, connected: false });
            }
            before
        };
        self.quarantine.added.notify_waiters();
        let durable = self.placements.decommission(node).await;
        let rows = durable.map_err(|source| DecommissionError::NotDurable { node: node.clone(), source })?;
        self.remove_node(node).await;
        tracing::warn!(%node, rows, "the node is decommissioned; it gets no calls until it is recommissioned");
        Ok(Decommissioned { rows, before })
    }

    /// Recommissions a node: it gets calls again. Says whether it was decommissioned.
    ///
    /// # Errors
    /// If it cannot be made durable. The node stays quarantined.
    pub async fn recommission(&self, node: &NodeId) -> Result<bool, DecommissionError> {
        let durable = self.placements.recommission(node).await;
        durable.map_err(|source| DecommissionError::NotDurable { node: node.clone(), source })?;
        let mut quarantine = self.quarantine.lock();
        let Some(Quarantined { named, connected }) = quarantine.remove(node) else { return Ok(false) };
        if named {
            self.drivers.change(|cache, now| cache.add(node, now));
        }
        if connected {
            self.drivers.arrived(node);
        }
        tracing::warn!(%node, "the node is recommissioned");
        Ok(true)
    }

    /// The decommissioned nodes, and whether each is connected all the same.
    #[must_use]
    pub fn decommissioned(&self) -> Vec<(NodeId, bool)> {
        self.quarantine.lock().iter().map(|(node, known)| (node.clone(), known.connected)).collect()
    }

    /// Takes in that a node has come, or has come back. Asks its driver what it is as soon as it can.
    pub fn arrived(&self, node: &NodeId) {
        let mut quarantine = self.quarantine.lock();
        if let Some(known) = quarantine.get_mut(node) {
            if !std::mem::replace(&mut known.connected, true) {
                tracing::warn!(
                    %node,
                    "a decommissioned node is connected; it gets no calls until it is recommissioned"
                );
            }
        } else {
            self.drivers.arrived(node);
        }
    }

    /// Takes in that a node is away. Says nothing of the calls that it may still be working on.
    pub fn left(&self, node: &NodeId) {
        match self.quarantine.lock().get_mut(node) {
            Some(known) => known.connected = false,
            None => self.drivers.change(|cache, now| cache.left(node, now)),
        }
    }

    /// Takes a decommissioned node out, with what it has said.
    pub(super) async fn remove_node(&self, node: &NodeId) {
        self.drivers.remove(node).await;
        self.rooms().changed(node);
    }
}
