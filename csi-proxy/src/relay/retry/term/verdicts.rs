//! Which nodes accept the term of this proxy, and which refuse it. One node that lies decides nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::call::NodeId;

/// How long a node must have refused the term before the term is raised above that of the node.
const MIN_REFUSAL: Duration = Duration::from_secs(60);

/// What the nodes together say about the term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::relay::retry) enum Verdict {
    /// More nodes refuse the term than accept it: another proxy has replaced this one.
    Refused,
    /// As many nodes or more have accepted the term since a node began to refuse it, a minute ago or earlier: no other
    /// proxy has replaced this one, and the node has a term from before this proxy started, or lies.
    Confirmed,
    /// Neither.
    Contested,
}

/// The last verdict of each node on the term in use.
#[derive(Debug, Default)]
pub(in crate::relay::retry) struct Verdicts {
    /// When each node last accepted a call.
    accepted: HashMap<NodeId, Instant>,
    /// When each node first refused a call, if it has accepted none since.
    refused: HashMap<NodeId, Instant>,
}

impl Verdicts {
    /// Records that a node has accepted a call.
    pub(in crate::relay::retry) fn accept(&mut self, node: &NodeId, now: Instant) {
        match self.accepted.get_mut(node) {
            Some(last) => *last = now,
            None => {
                self.refused.remove(node);
                self.accepted.insert(node.clone(), now);
            }
        }
    }

    /// Records that a node has refused a call.
    pub(in crate::relay::retry) fn refuse(&mut self, node: &NodeId, now: Instant) -> Verdict {
        self.accepted.remove(node);
        let since = *self.refused.entry(node.clone()).or_insert_with(|| {
            tracing::warn!(%node, "a node refuses the term of this proxy");
            now
        });
        let refusing = self.refused.len();
        if self.accepted.len() < refusing {
            return Verdict::Refused;
        }
        let is_old = now.saturating_duration_since(since) >= MIN_REFUSAL;
        let confirming = self.accepted.values().filter(|last| **last > since).take(refusing).count();
        if is_old && confirming == refusing { Verdict::Confirmed } else { Verdict::Contested }
    }

    /// Forgets all verdicts, since another term is in use.
    pub(in crate::relay::retry) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::new(format!("edge-{number}")).unwrap()
    }

    fn accepted_by(nodes: usize, now: Instant) -> Verdicts {
        let mut verdicts = Verdicts::default();
        (1..=nodes).for_each(|number| verdicts.accept(&node(number), now));
        verdicts
    }

    #[test]
    fn most_nodes_decide() {
        let now = Instant::now();
        let mut verdicts = accepted_by(5, now);
        let mut refuse = |number| verdicts.refuse(&node(number), now);
        let expected = [Verdict::Contested, Verdict::Contested, Verdict::Refused];
        assert_eq!([1, 2, 3].map(&mut refuse), expected);
        assert_eq!(accepted_by(1, now).refuse(&node(1), now), Verdict::Refused, "the only node");
        assert_eq!(accepted_by(1, now).refuse(&node(2), now), Verdict::Contested, "a liar");
    }

    #[test]
    fn term_is_confirmed_by_later_calls_only() {
        let now = Instant::now();
        let later = now + MIN_REFUSAL;
        let mut verdicts = accepted_by(3, now);
        let first = now + Duration::from_secs(1);
        assert_eq!(verdicts.refuse(&node(1), first), Verdict::Contested);
        assert_eq!(verdicts.refuse(&node(1), later + MIN_REFUSAL), Verdict::Contested);
        verdicts.accept(&node(2), later);
        assert_eq!(verdicts.refuse(&node(1), later), Verdict::Contested, "not for long enough");
        assert_eq!(verdicts.refuse(&node(1), first + MIN_REFUSAL), Verdict::Confirmed);
        verdicts.accept(&node(1), later);
        assert_eq!(verdicts.refuse(&node(1), later + MIN_REFUSAL), Verdict::Contested, "anew");
    }
}
