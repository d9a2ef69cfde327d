//! Ids that a node may know without having what they identify.
//!
//! A node that received an id of another node could report it as that of its next new volume, and would get the
//! calls and the secrets of the other. Therefore an id that was sent to a node, or that another node lists, is not
//! believed in the answer to a create method before the other nodes deny it. An id with a record that another node
//! lists is disputed.
//!
//! Only hashes with a random key are kept: two ids with the same hash cost a search, and no node can choose them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use crate::call::{NodeId, Subject};
use crate::routing::placements::DEFAULT_MAX_ROWS;

/// The maximum number of ids that one node disputes at a time, so that one node cannot stop the calls to the volumes of
/// all others.
const MAX_DISPUTED: usize = 64;

/// The maximum number of ids without a record that are kept from the list of one node. Each takes about 24 bytes.
const MAX_LISTED: usize = 2_000;

/// The maximum number of ids in calls that are kept.
const MAX_SENT: usize = DEFAULT_MAX_ROWS;

#[derive(Debug, Default)]
pub(super) struct Doubts {
    hasher: RandomState,
    /// Ids without a record in calls to nodes.
    sent: Recent,
    /// Ids in the list of a node that are not recorded for the node.
    listed: HashMap<NodeId, Recent>,
    /// Ids in the list of a node that are recorded for another one.
    disputed: HashMap<NodeId, HashSet<u64>>,
}

/// The hashes of the most recent ids.
#[derive(Debug, Default)]
struct Recent {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Recent {
    fn insert(&mut self, id: u64, max: usize) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > max {
            self.order.pop_front().map(|oldest| self.ids.remove(&oldest));
        }
    }
}

impl Doubts {
    /// Records that a call to a node names an id without a record.
    pub(super) fn sent(&mut self, subject: &Subject) {
        let id = self.hasher.hash_one(subject);
        self.sent.insert(id, MAX_SENT);
    }

    /// Records that a node lists an id without a record.
    pub(super) fn listed(&mut self, node: &NodeId, subject: &Subject) {
        let id = self.hasher.hash_one(subject);
        self.listed.entry(node.clone()).or_default().insert(id, MAX_LISTED);
    }

    /// Records that a node lists an id that is recorded for another node. Returns whether this is new.
    pub(super) fn disputed(&mut self, node: &NodeId, subject: &Subject) -> bool {
        let id = self.hasher.hash_one(subject);
        let ids = self.disputed.entry(node.clone()).or_default();
        ids.len() < MAX_DISPUTED && ids.insert(id)
    }

    /// Whether another node may have an id without a record that this node reports as new.
    pub(super) fn of_new(&self, node: &NodeId, subject: &Subject) -> bool {
        let id = self.hasher.hash_one(subject);
        self.sent.ids.contains(&id)
            || self.listed.iter().any(|(other, listed)| other != node && listed.ids.contains(&id))
    }

    /// The nodes that list an id that is recorded for another node.
    pub(super) fn disputants(&self, subject: &Subject) -> Vec<NodeId> {
        let id = self.hasher.hash_one(subject);
        let found = self.disputed.iter().filter(|(_, ids)| ids.contains(&id));
        found.map(|(node, _)| node.clone()).collect()
    }

    /// The number of ids of other nodes that each node lists.
    pub(super) fn disputed_ids(&self) -> Vec<(NodeId, usize)> {
        let counts = self.disputed.iter().map(|(node, ids)| (node.clone(), ids.len()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Records that a node denies an id that the node has listed.
    pub(super) fn denied(&mut self, node: &NodeId, subject: &Subject) {
        let id = self.hasher.hash_one(subject);
        self.disputed.get_mut(node).map(|ids| ids.remove(&id));
    }

    /// Forgets what a decommissioned node has listed.
    pub(super) fn forget(&mut self, node: &NodeId) {
        self.listed.remove(node);
        self.disputed.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn volume(number: usize) -> Subject {
        Subject::Volume(number.to_string().into())
    }

    #[test]
    fn doubts_of_one_node_are_bounded_and_spare_those_of_another() {
        let (mut doubts, victim, liar) = (Doubts::default(), node("victim"), node("liar"));
        doubts.listed(&victim, &volume(0));
        for number in 1..=MAX_LISTED + 1 {
            doubts.listed(&liar, &volume(number));
            doubts.disputed(&liar, &volume(number));
        }
        assert!(doubts.of_new(&liar, &volume(0)) && !doubts.of_new(&victim, &volume(0)));
        assert!(!doubts.of_new(&victim, &volume(1)) && doubts.of_new(&victim, &volume(2)));
        let disputed = (1..=MAX_LISTED).filter(|n| !doubts.disputants(&volume(*n)).is_empty());
        assert_eq!(disputed.count(), MAX_DISPUTED);
        assert_eq!(doubts.disputed_ids(), [(liar.clone(), MAX_DISPUTED)]);
        assert_eq!(doubts.disputants(&volume(1)), std::slice::from_ref(&liar));
        doubts.denied(&liar, &volume(1));
        assert_eq!(doubts.disputants(&volume(1)), []);
        doubts.forget(&liar);
        assert_eq!(doubts.disputed_ids(), []);
        assert_eq!((doubts.disputants(&volume(2)), doubts.of_new(&victim, &volume(2))), (vec![], false));
    }

    #[test]
    fn kind_of_an_id_matters() {
        let mut doubts = Doubts::default();
        doubts.sent(&volume(1));
        assert!(doubts.of_new(&node("liar"), &volume(1)));
        assert!(!doubts.of_new(&node("liar"), &Subject::Snapshot("1".into())));
    }
}
