//! What nodes have said of themselves, for as long as they listen. A Node that is made anew has none of it: then it is written
//! again, without asking the node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::NodeStatus;

/// The last status of each node that listens.
#[derive(Debug, Clone, Default)]
pub(super) struct Statuses(Arc<Mutex<HashMap<NodeName, Kept>>>);

#[derive(Debug, Default)]
struct Kept {
    /// Who listens for the node, by a number that no other listener has; a later one has a higher one.
    listener: u64,
    status: Option<NodeStatus>,
    /// The Node to which it was written.
    written: Option<String>,
}

impl Statuses {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node listens from now on. A later listener may have entered already; it stays.
    pub(super) fn enter(&self, node: &NodeName, listener: u64) {
        let mut nodes = self.nodes();
        let kept = nodes.entry(node.clone()).or_default();
        kept.listener = kept.listener.max(listener);
    }

    /// A node listens no more, unless another listener has taken this one's place.
    pub(super) fn leave(&self, node: &NodeName, listener: u64) {
        let mut nodes = self.nodes();
        if nodes.get(node).is_some_and(|kept| kept.listener == listener) {
            nodes.remove(node);
        }
    }

    /// Whether a node listens.
    pub(super) fn listens(&self, node: &NodeName) -> bool {
        self.nodes().contains_key(node)
    }

    /// A status was written to the Node of this UID, or to none.
    pub(super) fn keep(&self, node: &NodeName, status: &NodeStatus, written: Option<String>) {
        if let Some(kept) = self.nodes().get_mut(node) {
            kept.status = Some(status.clone());
            kept.written = written;
        }
    }

    /// The status that the Node of this UID lacks, if it does.
    pub(super) fn missing(&self, node: &str, uid: &str) -> Option<(NodeName, NodeStatus)> {
        let nodes = self.nodes();
        let (name, kept) = nodes.get_key_value(node)?;
        let lacks = kept.written.as_deref() != Some(uid);
        kept.status.as_ref().filter(|_| lacks).map(|status| (name.clone(), status.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_made_anew_lacks_the_status_of_who_listens() {
        let statuses = Statuses::default();
        let node = NodeName::new("edge-1").unwrap();
        let status = NodeStatus { volumes_in_use: vec!["v".to_owned()], ..NodeStatus::default() };
        statuses.keep(&node, &status, None);
        assert_eq!(statuses.missing("edge-1", "1"), None, "nobody listens");
        statuses.enter(&node, 1);
        assert_eq!(statuses.missing("edge-1", "1"), None, "nothing was said");
        statuses.keep(&node, &status, Some("1".to_owned()));
        assert_eq!(statuses.missing("edge-1", "1"), None);
        assert_eq!(statuses.missing("edge-1", "2"), Some((node.clone(), status.clone())));
        statuses.keep(&node, &status, None);
        assert!(statuses.missing("edge-1", "1").is_some());
        statuses.enter(&node, 2);
        statuses.leave(&node, 1);
        assert!(statuses.missing("edge-1", "1").is_some(), "the later one listens");
        statuses.leave(&node, 2);
        assert_eq!(statuses.missing("edge-1", "1"), None);
    }

    #[test]
    fn a_listener_that_was_overtaken_before_it_entered_takes_nothing_from_the_later_one() {
        let statuses = Statuses::default();
        let node = NodeName::new("edge-1").unwrap();
        statuses.enter(&node, 2);
        statuses.enter(&node, 1);
        statuses.keep(&node, &NodeStatus::default(), None);
        statuses.leave(&node, 1);
        assert!(statuses.listens(&node) && statuses.missing("edge-1", "1").is_some());
        statuses.leave(&node, 2);
        assert!(!statuses.listens(&node));
    }
}
