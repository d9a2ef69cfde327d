//! Numbers the open calls for the fence. Does no I/O.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::call::{CallNumber, Fence, GivenUp, HashMap, InvalidFence, MAX_GIVEN_UP, NodeId, Term};

/// The maximum number of open calls per node, so that no fence exceeds its ranges.
pub(super) const MAX_OPEN: usize = MAX_GIVEN_UP;

/// How a call ended at the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The node answered the call.
    Answered,
    /// The call has no answer: a copy may be in the network and must not begin.
    GivenUp,
}

/// Numbers the calls to each node from 1, and records which are open and which were given up.
///
/// Between two open numbers everything is closed, so one range there covers all given-up numbers: there are never more
/// ranges than open calls. The last number of a node without an open call is kept.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashMap<NodeId, Node>);

#[derive(Debug, Default)]
struct Node {
    last: u64,
    open: BTreeMap<CallNumber, Gap>,
}

/// The given-up numbers between an open number and the next open one: first to last.
type Gap = Option<(CallNumber, CallNumber)>;

impl Numbers {
    /// Opens a call; `None` if the node has [`MAX_OPEN`] open calls.
    pub(super) fn open(&mut self, name: &NodeId) -> Option<CallNumber> {
        if !self.0.contains_key(name) {
            self.0.insert(name.clone(), Node::default());
        }
        let node = self.0.get_mut(name).filter(|node| node.open.len() < MAX_OPEN)?;
        node.last = node.last.checked_add(1)?;
        let number = CallNumber::new(node.last)?;
        node.open.insert(number, None);
        Some(number)
    }

    /// The fence of the next attempt of an open call.
    pub(super) fn fence(&self, node: &NodeId, term: Term, number: CallNumber) -> Result<Fence, InvalidFence> {
        let open = self.0.get(node).map(|node| &node.open);
        let lowest = open.and_then(|open| open.keys().next()).copied().unwrap_or(number);
        let gaps = open.into_iter().flat_map(BTreeMap::values);
        let ranges = gaps.filter_map(|gap| gap.map(|(first, last)| RangeInclusive::new(first, last)));
        Fence::new(term, number, lowest, GivenUp::new(ranges)?)
    }

    /// Closes a call.
    pub(super) fn close(&mut self, node: &NodeId, number: CallNumber, how: Closed) {
        let Some(Node { open, .. }) = self.0.get_mut(node) else { return };
        let Some(behind) = open.remove(&number) else { return };
        // All numbers below the lowest open one count as closed.
        if let Some((_, gap)) = open.range_mut(..number).next_back() {
            let itself = (how == Closed::GivenUp).then_some((number, number));
            let given_up = [*gap, itself, behind].into_iter().flatten();
            *gap = given_up.reduce(|(first, _), (_, last)| (first, last));
        }
    }
}

#[cfg(test)]
mod tests;
