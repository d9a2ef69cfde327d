//! Limits the warnings that a node can cause at will, so that no node fills the log of the hub.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::node_name::NodeName;

/// The minimum time between two warnings of one kind about one node.
const INTERVAL: Duration = Duration::from_secs(10);

/// The last warnings. Each failure is counted and returned to its node, whether or not it is logged here.
#[derive(Debug, Clone, Default)]
pub(super) struct WarnLimits(Arc<Mutex<HashMap<Key, Instant>>>);

/// The kind of a warning, and its node. All peers whose name is not one of a Node share `None`: a certificate can make up many.
type Key = (Box<str>, Option<NodeName>);

impl WarnLimits {
    /// Whether to log a warning of this kind about a node now. If so, the next one is permitted [`INTERVAL`] later.
    pub(super) fn permits(&self, kind: &str, node: Option<&NodeName>, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < INTERVAL;
        let key = (kind.into(), node.cloned());
        if last.get(&key).is_some_and(is_recent) {
            return false;
        }
        last.retain(|_, at| is_recent(at));
        last.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_one_warning_of_a_kind_in_10_s() {
        let (limits, start) = (WarnLimits::default(), Instant::now());
        let (greedy, other) = (NodeName::new("a").unwrap(), NodeName::new("b").unwrap());
        let permits = |kind, node, after| limits.permits(kind, node, start + Duration::from_millis(after));
        for (after, expected) in [(0, true), (0, false), (9_999, false), (10_000, true), (10_001, false)] {
            assert_eq!(permits("secret", Some(&greedy), after), expected, "{after}");
        }
        assert!(permits("status", Some(&greedy), 10_001));
        assert!(permits("secret", Some(&other), 10_001));
        assert!(permits("secret", None, 10_001));
        assert!(!permits("secret", None, 10_002), "names that are not of Nodes share one");
    }

    #[test]
    fn nodes_are_forgotten() {
        let (limits, start) = (WarnLimits::default(), Instant::now());
        for number in 0..100 {
            let node = NodeName::new(&format!("edge-{number}")).unwrap();
            assert!(limits.permits("secret", Some(&node), start));
        }
        assert!(limits.permits("secret", None, start + INTERVAL));
        assert_eq!(limits.0.lock().unwrap().len(), 1);
    }
}
