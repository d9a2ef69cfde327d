//! Limits of concurrent requests: for each node, and for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::node_name::NodeName;

/// The maximum number of open requests of one node; further ones are refused.
const MAX_PER_NODE: usize = 32;

/// The maximum number of concurrent requests to the API server; further ones wait.
const MAX_AT_API_SERVER: usize = 64;

/// The open requests, with their limits.
#[derive(Debug, Clone)]
pub(super) struct RequestLimits {
    nodes: Arc<Mutex<HashMap<NodeName, NodeRequests>>>,
    all: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct NodeRequests {
    open: usize,
    /// Held while the node's status is written.
    status: Arc<tokio::sync::Mutex<()>>,
}

/// A request, counted until the value is dropped.
#[derive(Debug)]
pub(super) struct RequestPermit {
    limits: RequestLimits,
    node: NodeName,
    status: Arc<tokio::sync::Mutex<()>>,
}

impl RequestLimits {
    /// Creates the limits, without open requests.
    pub(super) fn new() -> Self {
        Self { nodes: Arc::default(), all: Arc::new(Semaphore::new(MAX_AT_API_SERVER)) }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, NodeRequests>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of a node; `None` if the node has too many open requests.
    pub(super) fn acquire(&self, node: &NodeName) -> Option<RequestPermit> {
        let mut nodes = self.nodes();
        let requests = nodes.entry(node.clone()).or_default();
        if requests.open >= MAX_PER_NODE {
            return None;
        }
        requests.open += 1;
        Some(RequestPermit { limits: self.clone(), node: node.clone(), status: Arc::clone(&requests.status) })
    }
}

impl RequestPermit {
    /// Waits until a request to the API server may be sent.
    pub(super) async fn api_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.limits.all).acquire_owned().await.ok()
    }

    /// Waits until no other status of the node is being written.
    pub(super) async fn lock_status(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.status.lock().await
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut nodes = self.limits.nodes();
        if let Some(requests) = nodes.get_mut(&self.node) {
            requests.open -= 1;
            if requests.open == 0 {
                nodes.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_cannot_take_the_place_of_others() {
        let limits = RequestLimits::new();
        let (greedy, other) = (NodeName::new("a").unwrap(), NodeName::new("b").unwrap());
        let mut taken: Vec<_> = (0..MAX_PER_NODE).map(|_| limits.acquire(&greedy).unwrap()).collect();
        assert!(limits.acquire(&greedy).is_none());
        assert!(limits.acquire(&other).is_some());
        taken.pop();
        assert!(limits.acquire(&greedy).is_some());
        taken.clear();
        assert!(limits.nodes().is_empty(), "a node without open requests is removed");
    }
}
