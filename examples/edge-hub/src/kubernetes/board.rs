//! The core behind a lock, and bells for the nodes that listen.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::core::{Bounds, Core, Event, Next, Subscription, Touched};
use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::{Update, Watch};

/// Shared by the watches, which tell it, and the nodes, which ask it.
#[derive(Debug, Clone)]
pub(super) struct Board(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    core: Core,
    bells: HashMap<NodeName, Arc<Notify>>,
    stopped: bool,
}

impl Board {
    /// An empty one, with a source that no hub before had.
    pub(super) fn new(bounds: Bounds) -> Self {
        // A hasher with random keys is the standard library's source of random numbers.
        let source = RandomState::new().build_hasher().finish().max(1);
        let state = State { core: Core::new(source, bounds), bells: HashMap::new(), stopped: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked was a test; the core has no step that can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a watch says, and rings for whom it concerns.
    pub(super) fn take(&self, event: Event) {
        let mut state = self.state();
        match state.core.on(event) {
            Touched::Nodes(nodes) => {
                nodes.iter().filter_map(|node| state.bells.get(node)).for_each(|bell| bell.notify_one());
            }
            Touched::All => state.bells.values().for_each(|bell| bell.notify_one()),
        }
    }

    /// Looks something up.
    pub(super) fn look<T>(&self, question: impl FnOnce(&Core) -> T) -> T {
        question(&self.state().core)
    }

    /// A node listens. If it did so before, that ends.
    pub(super) fn listen(&self, node: NodeName, has: Watch) -> Listener {
        let bell = Arc::new(Notify::new());
        let mut state = self.state();
        if let Some(old) = state.bells.insert(node.clone(), Arc::clone(&bell)) {
            old.notify_one();
        }
        Listener { board: self.clone(), subscription: state.core.subscribe(node, has), bell }
    }

    /// Ends all listening, now and later.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.bells.values().for_each(|bell| bell.notify_one());
    }
}

/// A node that listens.
#[derive(Debug)]
pub(super) struct Listener {
    board: Board,
    pub(super) subscription: Subscription,
    bell: Arc<Notify>,
}

impl Listener {
    /// Waits for what the node has not heard. What happens until then, and while it is told, becomes one change. Nothing is lost
    /// if this is dropped while it waits.
    ///
    /// # Errors
    /// Why the node hears no more.
    pub(super) async fn next(&mut self) -> Result<Vec<Update>, &'static str> {
        loop {
            {
                let mut state = self.board.state();
                if state.stopped {
                    return Err("the hub ends");
                }
                match state.core.next(&mut self.subscription) {
                    Next::Change(parts) => return Ok(parts),
                    Next::Replaced => return Err("this node watches anew"),
                    Next::Nothing => {}
                }
            }
            self.bell.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.board.state();
        state.core.unsubscribe(&self.subscription);
        let node = &self.subscription.node;
        if state.bells.get(node).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            state.bells.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::core::Kind;

    fn node() -> NodeName {
        NodeName::new("edge-1").unwrap()
    }

    #[tokio::test]
    async fn the_later_listener_of_a_node_takes_the_place_of_the_earlier() {
        let board = Board::new(Bounds::default());
        let mut earlier = board.listen(node(), Watch::default());
        let waiting = tokio::spawn(async move { earlier.next().await });
        tokio::task::yield_now().await;
        let mut later = board.listen(node(), Watch::default());
        assert_eq!(waiting.await.unwrap(), Err("this node watches anew"));
        for kind in Kind::ALL {
            board.take(Event::Began(kind));
            board.take(Event::Done(kind));
        }
        assert!(later.next().await.is_ok());
        assert_eq!(board.look(Core::present), 1);
        drop(later);
        assert_eq!(board.look(Core::present), 0);
    }

    #[tokio::test]
    async fn an_end_of_the_hub_ends_all_listening() {
        let board = Board::new(Bounds::default());
        let mut listener = board.listen(node(), Watch::default());
        let waiting = tokio::spawn(async move { listener.next().await });
        tokio::task::yield_now().await;
        board.stop();
        assert_eq!(waiting.await.unwrap(), Err("the hub ends"));
        assert_eq!(board.listen(node(), Watch::default()).next().await, Err("the hub ends"));
    }
}
