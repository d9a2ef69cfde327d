//! The reported capacity of nodes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::Digest;
use crate::call::NodeId;

/// How long a reported capacity is used for node selection. Provisioners request it once a minute.
const MAX_AGE: Duration = Duration::from_secs(90);

/// The maximum number of storage classes per node.
const MAX_CLASSES: usize = 64;

/// The maximum volume size by node and storage class: class, bytes, and the time of the report.
#[derive(Debug, Default)]
pub(super) struct CapacityCache(HashMap<NodeId, VecDeque<(Digest, u64, Instant)>>);

impl CapacityCache {
    /// Records a reported capacity.
    pub(super) fn put(&mut self, node: &NodeId, class: Digest, bytes: u64, now: Instant) {
        let reports = self.0.entry(node.clone()).or_default();
        reports.retain(|(other, ..)| *other != class);
        reports.push_back((class, bytes, now));
        if reports.len() > MAX_CLASSES {
            reports.pop_front();
        }
    }

    /// The recently reported capacity of a node for a storage class, in bytes.
    pub(super) fn of(&self, node: &NodeId, class: &Digest, now: Instant) -> Option<u64> {
        let fresh = |(other, _, since): &&(Digest, u64, Instant)| {
            other == class && now.saturating_duration_since(*since) < MAX_AGE
        };
        self.0.get(node)?.iter().find(fresh).map(|(_, bytes, _)| *bytes)
    }

    /// Discards the capacity of a node after a volume was created or deleted there.
    pub(super) fn changed(&mut self, node: &NodeId) {
        self.0.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn capacity_is_cached_per_class_for_a_limited_time() {
        let (mut capacity_cache, class) = (CapacityCache::default(), Digest::from_bytes([1; 32]));
        let node = NodeId::new("edge-1").unwrap();
        capacity_cache.put(&node, class, 9, Instant::now());
        assert_eq!(capacity_cache.of(&node, &class, Instant::now()), Some(9));
        assert_eq!(capacity_cache.of(&node, &Digest::from_bytes([2; 32]), Instant::now()), None);
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(capacity_cache.of(&node, &class, Instant::now()), None);
        capacity_cache.put(&node, class, 9, Instant::now());
        capacity_cache.changed(&node);
        assert_eq!(capacity_cache.of(&node, &class, Instant::now()), None);
    }
}
