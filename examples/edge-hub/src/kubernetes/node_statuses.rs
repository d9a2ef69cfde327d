//! What nodes have said of themselves, for as long as they listen. A Node that is made anew has none of it: then it is written
//! again, without asking the node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::NodeStatus;

/// The last status of each node that listens.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeStatuses(Arc<Mutex<HashMap<NodeName, Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    /// The latest subscription of the node; numbers increase.
    subscription: u64,
    status: Option<NodeStatus>,
    /// The Node to which it was written.
    written: Option<String>,
}

impl NodeStatuses {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node listens from now on. A later subscription may have entered already; it stays.
    pub(super) fn enter(&self, node: &NodeName, subscription: u64) {
        let mut nodes = self.nodes();
        let entry = nodes.entry(node.clone()).or_default();
        entry.subscription = entry.subscription.max(subscription);
    }

    /// A node listens no more, unless another subscription has taken this one's place.
    pub(super) fn leave(&self, node: &NodeName, subscription: u64) {
        let mut nodes = self.nodes();
        if nodes.get(node).is_some_and(|entry| entry.subscription == subscription) {
            nodes.remove(node);
        }
    }

    /// Whether a node listens.
    pub(super) fn is_connected(&self, node: &NodeName) -> bool {
        self.nodes().contains_key(node)
    }

    /// A status was written to the Node of this UID, or to none.
    pub(super) fn set(&self, node: &NodeName, status: &NodeStatus, written: Option<String>) {
        if let Some(entry) = self.nodes().get_mut(node) {
            entry.status = Some(status.clone());
            entry.written = written;
        }
    }

    /// The status that the Node of this UID is_missing, if it does.
    pub(super) fn missing(&self, node: &str, uid: &str) -> Option<(NodeName, NodeStatus)> {
        let nodes = self.nodes();
        let (name, entry) = nodes.get_key_value(node)?;
        let is_missing = entry.written.as_deref() != Some(uid);
        entry.status.as_ref().filter(|_| is_missing).map(|status| (name.clone(), status.clone()))
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
        statuses.set(&node, &status, None);
        assert_eq!(statuses.missing("edge-1", "1"), None, "not connected");
        statuses.enter(&node, 1);
        assert_eq!(statuses.missing("edge-1", "1"), None, "nothing was said");
        statuses.set(&node, &status, Some("1".to_owned()));
        assert_eq!(statuses.missing("edge-1", "1"), None);
        assert_eq!(statuses.missing("edge-1", "2"), Some((node.clone(), status.clone())));
        statuses.set(&node, &status, None);
        assert!(statuses.missing("edge-1", "1").is_some());
        statuses.enter(&node, 2);
        statuses.leave(&node, 1);
        assert!(statuses.missing("edge-1", "1").is_some(), "the later one listens");
        statuses.leave(&node, 2);
        assert_eq!(statuses.missing("edge-1", "1"), None);
    }

    #[test]
    fn late_subscription_does_not_replace_a_newer_one() {
        let statuses = NodeStatuses::default();
        let node = NodeName::new("edge-1").unwrap();
        statuses.enter(&node, 2);
        statuses.enter(&node, 1);
        statuses.set(&node, &NodeStatus::default(), None);
        statuses.leave(&node, 1);
        assert!(statuses.is_connected(&node) && statuses.missing("edge-1", "1").is_some());
        statuses.leave(&node, 2);
        assert!(!statuses.is_connected(&node));
    }
}
