//! How much room nodes have said they have.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::NodeId;
use crate::dispatcher::operation::Digest;

/// How long a capacity that a driver reported counts when a node is selected. Provisioners ask once a minute.
const FRESH: Duration = Duration::from_secs(90);

/// Most classes whose capacity is remembered of a node.
const MAX_CLASSES: usize = 64;

/// How large a volume of a class may be, by node: class, bytes, and since when that is known.
#[derive(Debug, Default)]
pub(super) struct Rooms(HashMap<NodeId, VecDeque<(Digest, u64, Instant)>>);

impl Rooms {
    /// Remembers what a node has said.
    pub(super) fn put(&mut self, node: &NodeId, class: Digest, bytes: u64, now: Instant) {
        let rooms = self.0.entry(node.clone()).or_default();
        rooms.retain(|(other, ..)| *other != class);
        rooms.push_back((class, bytes, now));
        if rooms.len() > MAX_CLASSES {
            rooms.pop_front();
        }
    }

    /// What a node has said a short time ago.
    pub(super) fn of(&self, node: &NodeId, class: &Digest, now: Instant) -> Option<u64> {
        let fresh = |(other, _, since): &&(Digest, u64, Instant)| {
            other == class && now.saturating_duration_since(*since) < FRESH
        };
        self.0.get(node)?.iter().find(fresh).map(|(_, bytes, _)| *bytes)
    }

    /// Something was made or deleted there.
    pub(super) fn changed(&mut self, node: &NodeId) {
        self.0.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_room_of_a_node_counts_for_its_class_and_for_a_while() {
        let (mut rooms, class) = (Rooms::default(), Digest::from_bytes([1; 32]));
        let node = NodeId::new("edge-1").unwrap();
        rooms.put(&node, class, 9, Instant::now());
        assert_eq!(rooms.of(&node, &class, Instant::now()), Some(9));
        assert_eq!(rooms.of(&node, &Digest::from_bytes([2; 32]), Instant::now()), None);
        tokio::time::advance(FRESH).await;
        assert_eq!(rooms.of(&node, &class, Instant::now()), None);
        rooms.put(&node, class, 9, Instant::now());
        rooms.changed(&node);
        assert_eq!(rooms.of(&node, &class, Instant::now()), None);
    }
}
