//! How many requests of nodes are under way: so many of one node, and so many of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::node_name::NodeName;

/// The most requests of one node; further ones are refused.
const OF_ONE_NODE: usize = 32;

/// The most requests that are at the API server; further ones wait.
const OF_ALL: usize = 64;

/// Counts requests.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    nodes: Arc<Mutex<HashMap<NodeName, Desk>>>,
    all: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Desk {
    open: usize,
    /// Held while the node's status is written.
    status: Arc<tokio::sync::Mutex<()>>,
}

/// A request that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    node: NodeName,
    status: Arc<tokio::sync::Mutex<()>>,
}

impl Turns {
    /// Nothing is under way.
    pub(super) fn new() -> Self {
        Self { nodes: Arc::default(), all: Arc::new(Semaphore::new(OF_ALL)) }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, Desk>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of this node; `None` if it has too many.
    pub(super) fn enter(&self, node: &NodeName) -> Option<Turn> {
        let mut nodes = self.nodes();
        let desk = nodes.entry(node.clone()).or_default();
        if desk.open >= OF_ONE_NODE {
            return None;
        }
        desk.open += 1;
        Some(Turn { turns: self.clone(), node: node.clone(), status: Arc::clone(&desk.status) })
    }
}

impl Turn {
    /// Waits for a place at the API server.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.turns.all).acquire_owned().await.ok()
    }

    /// Waits until no other status of the node is being written.
    pub(super) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.status.lock().await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut nodes = self.turns.nodes();
        if let Some(desk) = nodes.get_mut(&self.node) {
            desk.open -= 1;
            if desk.open == 0 {
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
        let turns = Turns::new();
        let (greedy, other) = (NodeName::new("a").unwrap(), NodeName::new("b").unwrap());
        let mut taken: Vec<_> = (0..OF_ONE_NODE).map(|_| turns.enter(&greedy).unwrap()).collect();
        assert!(turns.enter(&greedy).is_none());
        assert!(turns.enter(&other).is_some());
        taken.pop();
        assert!(turns.enter(&greedy).is_some());
        taken.clear();
        assert!(turns.nodes().is_empty(), "a node that asks nothing is forgotten");
    }
}
