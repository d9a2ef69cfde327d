//! The last status that each connected node has reported. When a Node is recreated, the hub writes the status
//! again without a request to the node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::NodeStatus;

/// What is written of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that a kubelet writes: the agent is the volume plugin of the node.
    All,
    /// CSINode: the node's kubelet writes all else.
    CsiNode,
}

/// The last status of each connected node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeStatuses(Arc<Mutex<HashMap<NodeName, Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    /// The latest subscription of the node; numbers increase.
    subscription: u64,
    status: Option<(Scope, NodeStatus)>,
    /// The UID of the Node to which the status was written.
    written: Option<String>,
}

impl NodeStatuses {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a subscription of a node. A later subscription that was recorded before stays.
    pub(super) fn enter(&self, node: &NodeName, subscription: u64) {
        let mut nodes = self.nodes();
        let entry = nodes.entry(node.clone()).or_default();
        entry.subscription = entry.subscription.max(subscription);
    }

    /// Removes a node, unless a later subscription has replaced this one.
    pub(super) fn leave(&self, node: &NodeName, subscription: u64) {
        let mut nodes = self.nodes();
        if nodes.get(node).is_some_and(|entry| entry.subscription == subscription) {
            nodes.remove(node);
        }
    }

    /// Whether a node is connected.
    pub(super) fn is_connected(&self, node: &NodeName) -> bool {
        self.nodes().contains_key(node)
    }

    /// Stores a status, with the UID of the Node to which it was written, if any.
    pub(super) fn set(&self, node: &NodeName, scope: Scope, status: &NodeStatus, written: Option<String>) {
        if let Some(entry) = self.nodes().get_mut(node) {
            entry.status = Some((scope, status.clone()));
            entry.written = written;
        }
    }

    /// Returns the status of a node that was not written to the Node with this UID, if any.
    pub(super) fn missing(&self, node: &str, uid: &str) -> Option<(NodeName, Scope, NodeStatus)> {
        let nodes = self.nodes();
        let (name, entry) = nodes.get_key_value(node)?;
        let is_missing = entry.written.as_deref() != Some(uid);
        entry
            .status
            .as_ref()
            .filter(|_| is_missing)
            .map(|(scope, status)| (name.clone(), *scope, status.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recreated_node_misses_its_status() {
        let statuses = NodeStatuses::default();
        let node = NodeName::new("edge-1").unwrap();
        let status = NodeStatus { volumes_in_use: vec!["v".to_owned()], ..NodeStatus::default() };
        statuses.set(&node, Scope::All, &status, None);
        assert_eq!(statuses.missing("edge-1", "1"), None, "not connected");
        statuses.enter(&node, 1);
        assert_eq!(statuses.missing("edge-1", "1"), None, "no status was reported");
        statuses.set(&node, Scope::All, &status, Some("1".to_owned()));
        assert_eq!(statuses.missing("edge-1", "1"), None);
        assert_eq!(statuses.missing("edge-1", "2"), Some((node.clone(), Scope::All, status.clone())));
        statuses.set(&node, Scope::All, &status, None);
        assert!(statuses.missing("edge-1", "1").is_some());
        statuses.enter(&node, 2);
        statuses.leave(&node, 1);
        assert!(statuses.missing("edge-1", "1").is_some(), "the later subscription stays");
        statuses.leave(&node, 2);
        assert_eq!(statuses.missing("edge-1", "1"), None);
    }

    #[test]
    fn late_subscription_does_not_replace_a_newer_one() {
        let statuses = NodeStatuses::default();
        let node = NodeName::new("edge-1").unwrap();
        statuses.enter(&node, 2);
        statuses.enter(&node, 1);
        statuses.set(&node, Scope::All, &NodeStatus::default(), None);
        statuses.leave(&node, 1);
        assert!(statuses.is_connected(&node) && statuses.missing("edge-1", "1").is_some());
        statuses.leave(&node, 2);
        assert!(!statuses.is_connected(&node));
    }
}
