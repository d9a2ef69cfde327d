//! The nodes with a socket and the decommissioned nodes, stored over a restart: sidecars must find their sockets
//! while the hub is offline.

use std::collections::BTreeSet;

use csi_proxy::advanced::routing::PlacementStore as _;
use csi_proxy::{DEFAULT_MAX_SOCKETS, NodeId, RedbStore, StoreError};

use edge_csi_common::process::Fatal;

/// The nodes with a socket and the decommissioned nodes, durable if the proxy has a store.
#[derive(Debug)]
pub(super) struct Roster {
    /// The nodes that have a socket, or had one before the last restart.
    pub(super) nodes: BTreeSet<NodeId>,
    pub(super) decommissioned: BTreeSet<NodeId>,
    store: Option<RedbStore>,
}

impl Roster {
    /// Reads the stored nodes. Without a store the roster is empty.
    pub(super) async fn open(store: Option<RedbStore>) -> Result<Self, Fatal> {
        let (mut nodes, mut decommissioned) = (Vec::new(), Vec::new());
        if let Some(store) = &store {
            nodes = store.nodes().await.map_err(Fatal::runtime)?;
            decommissioned = store.decommissioned().await.map_err(Fatal::runtime)?;
        }
        let (nodes, decommissioned) = (nodes.into_iter().collect(), decommissioned.into_iter().collect());
        Ok(Self { nodes, decommissioned, store })
    }

    /// Decommissions a node durably.
    ///
    /// # Errors
    /// If the change cannot be written; the roster is then unchanged.
    pub(super) async fn decommission(&mut self, node: &NodeId) -> Result<(), StoreError> {
        if let Some(store) = &self.store {
            store.set_decommissioned(node, true).await?;
        }
        self.nodes.remove(node);
        self.decommissioned.insert(node.clone());
        Ok(())
    }

    /// Recommissions a node durably, and adds it to the nodes with a socket.
    ///
    /// # Errors
    /// If the change cannot be written; the roster is then unchanged.
    pub(super) async fn recommission(&mut self, node: &NodeId) -> Result<(), StoreError> {
        if let Some(store) = &self.store {
            store.set_decommissioned(node, false).await?;
        }
        self.decommissioned.remove(node);
        self.add([node.clone()]);
        Ok(())
    }

    /// Adds nodes that are not decommissioned. A failed write is only logged: a node is added again when it
    /// connects.
    pub(super) fn add(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let room = DEFAULT_MAX_SOCKETS.saturating_sub(self.nodes.len());
        let is_new = |node: &NodeId| !self.nodes.contains(node) && !self.decommissioned.contains(node);
        let new: Vec<_> = nodes.into_iter().filter(is_new).take(room).collect();
        self.nodes.extend(new.iter().cloned());
        let Some(store) = self.store.clone().filter(|_| !new.is_empty()) else { return };
        // In a task of its own: a disk that hangs must not delay calls.
        tokio::spawn(async move {
            if let Err(error) = store.keep_nodes(new).await {
                tracing::warn!(%error, "cannot store the nodes that have a socket for the next start");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::DriverName;

    use super::*;

    #[tokio::test]
    async fn keeps_nodes_over_a_restart_until_decommissioned() {
        let directory = tempfile::tempdir().unwrap();
        let driver = DriverName::new("a.b").unwrap();
        let store = RedbStore::open(directory.path().join("proxy.redb"), &driver).unwrap();
        let kept = async |expected: &[&str]| {
            tokio::time::timeout(std::time::Duration::from_secs(60), async {
                loop {
                    let roster = Roster::open(Some(store.clone())).await.unwrap();
                    if roster.nodes.iter().map(NodeId::as_str).eq(expected.iter().copied()) {
                        return roster;
                    }
                    tokio::task::yield_now().await;
                }
            })
            .await
            .unwrap()
        };
        let node = |name: &str| NodeId::new(name).unwrap();
        let mut roster = Roster::open(Some(store.clone())).await.unwrap();
        roster.add(["edge-2", "edge-1"].map(node));
        roster.add([node("edge-1")]);
        kept(&["edge-1", "edge-2"]).await;
        roster.decommission(&node("edge-1")).await.unwrap();
        let mut roster = kept(&["edge-2"]).await;
        roster.add(["edge-1"].map(node));
        assert!(!roster.nodes.contains(&node("edge-1")) && roster.nodes.contains(&node("edge-2")));
        assert_eq!(roster.decommissioned, [node("edge-1")].into());
        roster.recommission(&node("edge-1")).await.unwrap();
        assert!(kept(&["edge-1", "edge-2"]).await.decommissioned.is_empty());
    }

    #[tokio::test]
    async fn bounds_the_nodes_of_the_roster() {
        let mut roster = Roster::open(None).await.unwrap();
        roster.add((0..2000).map(|number| NodeId::new(format!("n{number}")).unwrap()));
        assert_eq!(roster.nodes.len(), DEFAULT_MAX_SOCKETS);
    }
}
