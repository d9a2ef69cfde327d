//! Which nodes accept the term of this proxy, and which refuse it. One node that lies decides nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::call::NodeId;

/// How long to wait for the answers of the other nodes: the proxy has asked each connected one meanwhile.
const ASKED_WITHIN: Duration = Duration::from_secs(360);

/// What the nodes together say about the term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::relay::retry) enum TermStatus {
    /// More nodes refuse the term than not: another proxy has replaced this one.
    Refused,
    /// As many nodes or more have accepted the term since a node began to refuse it: no other proxy has replaced this
    /// one, and the node has a term from before this proxy started, or lies.
    Confirmed,
    /// Not decided yet.
    Contested,
}

/// The last answer of each node about the term in use.
#[derive(Debug, Default)]
pub(in crate::relay::retry) struct NodeAnswers {
    /// When each node last accepted a call.
    accepted: HashMap<NodeId, Instant>,
    /// When each node first refused a call, if it has accepted none since.
    refused: HashMap<NodeId, Instant>,
}

impl NodeAnswers {
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

    /// Records that one of `known` nodes has refused a call. Nodes that have not been asked count as
    /// accepting at first.
    pub(in crate::relay::retry) fn refuse(
        &mut self,
        node: &NodeId,
        now: Instant,
        known: usize,
    ) -> TermStatus {
        self.accepted.remove(node);
        let since = *self.refused.entry(node.clone()).or_insert_with(|| {
            tracing::warn!(%node, "a node refuses the term of this proxy");
            now
        });
        let refusing = self.refused.len();
        if self.accepted.len().max(known.saturating_sub(refusing)) < refusing {
            return TermStatus::Refused;
        }
        if now.saturating_duration_since(since) < ASKED_WITHIN {
            return TermStatus::Contested;
        }
        let confirming = self.accepted.values().filter(|last| **last > since).take(refusing).count();
        if confirming == refusing { TermStatus::Confirmed } else { TermStatus::Refused }
    }

    /// Forgets all answers, since another term is in use.
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

    fn accepted_by(nodes: usize, now: Instant) -> NodeAnswers {
        let mut node_answers = NodeAnswers::default();
        (1..=nodes).for_each(|number| node_answers.accept(&node(number), now));
        node_answers
    }

    #[test]
    fn most_nodes_decide() {
        let now = Instant::now();
        let mut node_answers = accepted_by(5, now);
        let mut refuse = |number| node_answers.refuse(&node(number), now, 0);
        let expected = [TermStatus::Contested, TermStatus::Contested, TermStatus::Refused];
        assert_eq!([1, 2, 3].map(&mut refuse), expected);
        assert_eq!(accepted_by(1, now).refuse(&node(1), now, 1), TermStatus::Refused, "the only node");
        assert_eq!(accepted_by(1, now).refuse(&node(2), now, 2), TermStatus::Contested, "a liar");
        assert_eq!(
            accepted_by(1, now).refuse(&node(1), now, 2),
            TermStatus::Contested,
            "the other was not asked"
        );
    }

    #[test]
    fn later_calls_decide_in_the_end() {
        let begin = Instant::now();
        let (first, last) = (begin + Duration::from_secs(1), begin + Duration::from_secs(1) + ASKED_WITHIN);
        let contested = || {
            let mut node_answers = accepted_by(4, begin);
            assert_eq!(node_answers.refuse(&node(1), first, 4), TermStatus::Contested);
            node_answers
        };
        assert_eq!(
            contested().refuse(&node(1), last, 4),
            TermStatus::Refused,
            "no node has accepted it since"
        );
        let mut node_answers = contested();
        node_answers.accept(&node(2), last);
        assert_eq!(node_answers.refuse(&node(1), last - Duration::from_secs(1), 4), TermStatus::Contested);
        assert_eq!(node_answers.refuse(&node(1), last, 4), TermStatus::Confirmed);
        assert_eq!(
            node_answers.refuse(&node(3), last, 4),
            TermStatus::Contested,
            "the second has its own time"
        );
        assert_eq!(node_answers.refuse(&node(1), last, 4), TermStatus::Refused, "two against one");
        node_answers.accept(&node(1), last);
        assert_eq!(node_answers.refuse(&node(1), last, 4), TermStatus::Contested, "anew");
    }
}
