//! Limits the requests of one node: one at a time, and few new ones an hour, so that no node can fill the API server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::kubernetes::node_name::NodeName;

/// The number of new requests that a node may send at once.
const BURST: u32 = 6;

/// The time after which a node may send one more.
const INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The minimum time after the end of a request before the node may repeat it. Shorter than the first delay of an agent.
const PAUSE: Duration = Duration::from_secs(2);

/// Identifies a request.
pub(super) type Digest = [u8; 32];

/// Why a request is not accepted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Limited {
    /// The node has an open request.
    #[error("another request of this node is open")]
    Open,
    /// The node has repeated its request at once.
    #[error("the same request has ended less than {} s ago", PAUSE.as_secs())]
    TooSoon,
    /// The node has sent too many.
    #[error("the node has sent {BURST} new requests; it may send one every {} min", INTERVAL.as_secs() / 60)]
    TooMany,
}

/// The requests of all nodes.
#[derive(Debug, Default)]
pub(super) struct Limits {
    nodes: HashMap<NodeName, NodeRequests>,
}

#[derive(Debug)]
struct NodeRequests {
    open: bool,
    /// When a repetition of the last request may begin.
    again: Instant,
    last: Digest,
    /// New requests that count. The oldest one stops to count at `next`.
    counted: u32,
    next: Instant,
}

impl NodeRequests {
    fn forget(&mut self, now: Instant) {
        while self.counted > 0 && self.next <= now {
            self.counted -= 1;
            self.next += INTERVAL;
        }
    }
}

impl Limits {
    /// Begins a request, unless the node exceeds a limit. A repetition of the last request is not a new one.
    pub(super) fn begin(&mut self, node: &NodeName, digest: Digest, now: Instant) -> Result<(), Limited> {
        self.nodes.retain(|_, requests| {
            requests.forget(now);
            requests.open || requests.counted > 0
        });
        let Some(requests) = self.nodes.get_mut(node) else {
            let first =
                NodeRequests { open: true, again: now, last: digest, counted: 1, next: now + INTERVAL };
            self.nodes.insert(node.clone(), first);
            return Ok(());
        };
        if requests.open {
            return Err(Limited::Open);
        }
        if requests.last == digest && now < requests.again {
            return Err(Limited::TooSoon);
        }
        if requests.last != digest {
            if requests.counted >= BURST {
                return Err(Limited::TooMany);
            }
            if requests.counted == 0 {
                requests.next = now + INTERVAL;
            }
            (requests.last, requests.counted) = (digest, requests.counted + 1);
        }
        requests.open = true;
        Ok(())
    }

    /// Ends the open request of a node.
    pub(super) fn end(&mut self, node: &NodeName, now: Instant) {
        if let Some(requests) = self.nodes.get_mut(node) {
            (requests.open, requests.again) = (false, now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn one_request_at_a_time_and_few_new_ones() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        let (edge, other) = (node("edge-1"), node("edge-2"));
        limits.begin(&edge, [0; 32], start).unwrap();
        assert_eq!(limits.begin(&edge, [0; 32], start), Err(Limited::Open));
        assert_eq!(limits.begin(&edge, [1; 32], start), Err(Limited::Open));
        limits.begin(&other, [0; 32], start).unwrap();
        limits.end(&edge, start);
        let mut now = start;
        for repeated in 0..100 {
            assert_eq!(limits.begin(&edge, [0; 32], now), Err(Limited::TooSoon), "{repeated}");
            now += PAUSE;
            limits.begin(&edge, [0; 32], now).unwrap();
            limits.end(&edge, now);
        }
        for new in 1..6 {
            limits.begin(&edge, [new; 32], now).unwrap();
            limits.end(&edge, now);
        }
        assert_eq!(limits.begin(&edge, [9; 32], now), Err(Limited::TooMany));
        limits.begin(&edge, [5; 32], now + PAUSE).unwrap();
        limits.end(&edge, now + PAUSE);

        now = start;
        for round in 10..20 {
            now += INTERVAL;
            limits.begin(&edge, [round; 32], now).unwrap();
            limits.end(&edge, now);
            assert_eq!(limits.begin(&edge, [99; 32], now), Err(Limited::TooMany), "one each interval");
        }
    }

    #[test]
    fn nodes_are_forgotten() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        for number in 0..100 {
            let node = node(&format!("edge-{number}"));
            limits.begin(&node, [0; 32], start).unwrap();
            limits.end(&node, start);
        }
        limits.begin(&node("open"), [0; 32], start).unwrap();
        limits.begin(&node("last"), [0; 32], start + INTERVAL).unwrap();
        assert_eq!(limits.nodes.len(), 2, "the open one and the last one");
    }
}
