//! Decommissioned nodes: an operator has declared them and all their volumes lost.
//!
//! The rows of a decommissioned node are released, so that the names of its volumes may be used on other nodes. A
//! decommissioned node that connects again stays quarantined: it gets no calls and no volumes until it is
//! recommissioned, since volumes may exist twice by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use csi_proto::DriverName;
use tokio::sync::Notify;

use super::TopologyRouter;
use crate::call::NodeId;
use crate::routing::Refusal;
use crate::routing::store::StoreError;

/// The maximum number of decommissioned nodes.
pub const MAX_DECOMMISSIONED: usize = 10_000;

/// A node cannot be decommissioned or recommissioned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecommissionError {
    /// The node is connected, so its volumes are not lost.
    #[error("node {node} is connected, so its volumes are not lost; stop its agent first")]
    Connected {
        /// The connected node.
        node: NodeId,
    },
    /// The route knows neither the node nor a volume on it.
    #[error(
        "node {node} is not known to the proxy of driver {driver}: it was never connected and has no volume"
    )]
    Unknown {
        /// The unknown node.
        node: NodeId,
        /// The driver of the route.
        driver: DriverName,
    },
    /// Too many nodes are decommissioned.
    #[error("the limit of {max} decommissioned nodes is reached; recommission nodes that will not return")]
    TooMany {
        /// The maximum number of decommissioned nodes.
        max: usize,
    },
    /// The change is not durable. The node gets no calls while the process runs.
    #[error("node {node}: not durable, repeat the command: {source}")]
    NotDurable {
        /// The node to decommission or recommission.
        node: NodeId,
        /// Why the change is not durable.
        source: Refusal,
    },
}

/// The result of a decommission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decommissioned {
    /// The number of released rows in the table of placements.
    pub rows: usize,
    /// Whether the node was already decommissioned.
    pub before: bool,
}

/// The decommissioned nodes of a route. Their names are durable in the placement store.
#[derive(Debug)]
pub(super) struct Quarantine {
    nodes: Mutex<BTreeMap<NodeId, Quarantined>>,
    /// Notifies the waiting calls when a node is decommissioned.
    added: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Quarantined {
    /// Whether the node was configured by name.
    named: bool,
    connected: bool,
}

impl Quarantine {
    /// Quarantines these nodes and removes them from the configured names.
    pub(super) fn new(
        decommissioned: impl IntoIterator<Item = NodeId>,
        names: &mut BTreeSet<NodeId>,
    ) -> Self {
        let quarantined = |node: NodeId| {
            tracing::warn!(%node, "node is decommissioned, it gets no calls until it is recommissioned");
            let named = names.remove(&node);
            (node, Quarantined { named, connected: false })
        };
        let nodes = decommissioned.into_iter().map(quarantined).collect();
        Self { nodes: Mutex::new(nodes), added: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Quarantined>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the node is decommissioned.
    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.lock().contains_key(node)
    }

    /// Completes when the node is decommissioned.
    pub(super) async fn until_added(&self, node: &NodeId) {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // Registers before the check, so that no later notification is missed.
            added.as_mut().enable();
            if self.lock().contains_key(node) {
                return;
            }
            added.await;
        }
    }
}

impl TopologyRouter {
    /// Decommissions a node that is lost with all its volumes: releases its rows, ends its calls, and quarantines
    /// it until it is [recommissioned](Self::recommission), across restarts. Idempotent.
    ///
    /// # Errors
    /// If the node is connected or unknown, too many are decommissioned, or the change is not durable. Only in the
    /// last case is anything changed: the node gets no calls from this process, and some of its rows may be
    /// released. A repeated command, or the next start, completes the decommission.
    pub async fn decommission(&self, node: &NodeId) -> Result<Decommissioned, DecommissionError> {
        let before = {
            let mut quarantine = self.quarantine.lock();
            let before = quarantine.contains_key(node);
            if !before {
                let connected = self.driver_info.read(|cache| cache.is_connected(node));
                if connected == Some(true) {
                    return Err(DecommissionError::Connected { node: node.clone() });
                }
                if connected.is_none() && !self.placements.read(|placements| placements.has_rows_of(node)) {
                    let (node, driver) = (node.clone(), self.driver.clone());
                    return Err(DecommissionError::Unknown { node, driver });
                }
                if quarantine.len() >= MAX_DECOMMISSIONED {
                    return Err(DecommissionError::TooMany { max: MAX_DECOMMISSIONED });
                }
                let named = self.driver_info.change(|cache, _| cache.remove(node));
                quarantine.insert(node.clone(), Quarantined { named, connected: false });
            }
            before
        };
        self.quarantine.added.notify_waiters();
        let durable = self.placements.decommission(node).await;
        let rows = durable.map_err(|source| DecommissionError::NotDurable { node: node.clone(), source })?;
        let released = self.driver_info.release_claim(node).await;
        let not_durable = |error: StoreError| Refusal::NotPersisted { reason: error.to_string() };
        released
            .map_err(not_durable)
            .map_err(|source| DecommissionError::NotDurable { node: node.clone(), source })?;
        self.remove_node(node).await;
        // Another node may report what this one owned.
        self.driver_info.admit_all().await;
        tracing::warn!(%node, rows, "node decommissioned, it gets no calls until it is recommissioned");
        Ok(Decommissioned { rows, before })
    }

    /// Recommissions a node: it gets calls again. Returns whether it was decommissioned.
    ///
    /// # Errors
    /// If the change is not durable. The node stays quarantined.
    pub async fn recommission(&self, node: &NodeId) -> Result<bool, DecommissionError> {
        let durable = self.placements.recommission(node).await;
        durable.map_err(|source| DecommissionError::NotDurable { node: node.clone(), source })?;
        let mut quarantine = self.quarantine.lock();
        let Some(Quarantined { named, connected }) = quarantine.remove(node) else { return Ok(false) };
        if named {
            self.driver_info.change(|cache, now| cache.add(node, now));
        }
        if connected {
            self.driver_info.arrived(node);
        }
        tracing::warn!(%node, "node recommissioned");
        Ok(true)
    }

    /// The decommissioned nodes, and whether each is connected.
    #[must_use]
    pub fn decommissioned(&self) -> Vec<(NodeId, bool)> {
        self.quarantine.lock().iter().map(|(node, known)| (node.clone(), known.connected)).collect()
    }

    /// Records that a node is connected, and refreshes its driver info.
    pub fn arrived(&self, node: &NodeId) {
        let mut quarantine = self.quarantine.lock();
        if let Some(known) = quarantine.get_mut(node) {
            if !std::mem::replace(&mut known.connected, true) {
                tracing::warn!(
                    %node,
                    "a decommissioned node is connected, it gets no calls until it is recommissioned"
                );
            }
        } else {
            self.driver_info.arrived(node);
        }
    }

    /// Records that a node is disconnected. Calls at the node may still be running.
    pub fn left(&self, node: &NodeId) {
        match self.quarantine.lock().get_mut(node) {
            Some(known) => known.connected = false,
            None => self.driver_info.change(|cache, now| cache.left(node, now)),
        }
    }

    /// Removes a decommissioned node and its driver info.
    pub(super) async fn remove_node(&self, node: &NodeId) {
        self.driver_info.remove(node).await;
        self.capacity_cache().changed(node);
        self.doubts().forget(node);
    }
}
