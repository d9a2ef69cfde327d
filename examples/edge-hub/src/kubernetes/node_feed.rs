//! The shared core, and the subscriptions of the connected nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::core::{Affected, Bounds, Core, Event, Kind, Next, Subscription};
use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::{Update, Watch};
use edge_csi_common::kubernetes::new_instance;

/// How long the watches may take to catch up with what a node has seen at another hub, before they list again.
const CATCH_UP: Duration = Duration::from_secs(3);

/// Why a subscription of a hub that drains ends.
pub(super) const SHUTTING_DOWN: &str = "the hub is shutting down";

/// The core, shared by the watches, which update it, and the nodes, which subscribe to it.
#[derive(Debug, Clone)]
pub(super) struct NodeFeed {
    state: Arc<Mutex<State>>,
    /// The kinds that have to be listed again.
    lists: Arc<watch::Sender<BTreeSet<Kind>>>,
    /// Whether the hub drains.
    stopped: Arc<watch::Sender<bool>>,
}

#[derive(Debug)]
struct State {
    core: Core,
    subscribers: HashMap<NodeName, Arc<Notify>>,
}

impl NodeFeed {
    /// Creates an empty feed with a random source, which identifies this instance of the hub.
    pub(super) fn new(bounds: Bounds) -> Self {
        let state = State { core: Core::new(new_instance(), bounds), subscribers: HashMap::new() };
        Self { state: Arc::new(Mutex::new(state)), lists: Arc::default(), stopped: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No change of the core panics midway, so the data behind a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event of a watch, and notifies the affected nodes.
    pub(super) fn apply(&self, event: Event) {
        if let Event::ListStarted(kind) = event {
            self.lists.send_if_modified(|wanted| wanted.remove(&kind));
        }
        let mut state = self.state();
        match state.core.on(event) {
            Affected::Nodes(nodes) => {
                nodes
                    .iter()
                    .filter_map(|node| state.subscribers.get(node))
                    .for_each(|notify| notify.notify_one());
            }
            Affected::All => state.subscribers.values().for_each(|notify| notify.notify_one()),
        }
    }

    /// Waits until this kind has to be listed again, and at least until `earliest`.
    pub(super) async fn list_wanted(&self, kind: Kind, earliest: Instant) {
        sleep_until(earliest).await;
        // The sender is not dropped while it is borrowed.
        let _ = self.lists.subscribe().wait_for(|kinds| kinds.contains(&kind)).await;
    }

    /// Has these kinds listed again.
    fn want_lists(&self, node: &NodeName, kinds: &BTreeSet<Kind>) {
        self.lists.send_if_modified(|wanted| {
            let before = wanted.len();
            wanted.extend(kinds);
            let is_new = wanted.len() > before;
            if is_new {
                let resources: Vec<&str> = kinds.iter().map(|kind| kind.resource()).collect();
                tracing::warn!(%node, ?resources, "the watches are behind what a node has from another hub, listing again");
            }
            is_new
        });
    }

    /// Reads the core.
    pub(super) fn read<T>(&self, question: impl FnOnce(&Core) -> T) -> T {
        question(&self.state().core)
    }

    /// Returns a number that is higher than those of all subscriptions before.
    pub(super) fn next_number(&self) -> u64 {
        self.state().core.next_number()
    }

    /// Subscribes a node. An earlier subscription of the node ends.
    pub(super) fn subscribe(&self, node: NodeName, has: &Watch) -> Subscriber {
        let notify = Arc::new(Notify::new());
        let mut state = self.state();
        if let Some(old) = state.subscribers.insert(node.clone(), Arc::clone(&notify)) {
            old.notify_one();
        }
        Subscriber { feed: self.clone(), subscription: state.core.subscribe(node, has), notify }
    }

    /// Waits until [`stop`](Self::stop) is called, or was.
    pub(super) async fn stopped(&self) {
        // The sender is not dropped while it is borrowed.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Ends all present and future subscriptions.
    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
        self.state().subscribers.values().for_each(|notify| notify.notify_one());
    }
}

/// The subscription of a connected node, which ends on drop.
#[derive(Debug)]
pub(super) struct Subscriber {
    feed: NodeFeed,
    pub(super) subscription: Subscription,
    notify: Arc<Notify>,
}

impl Subscriber {
    /// Waits for changes that the node has not received. Changes that happen meanwhile are merged into one. Cancel-safe: nothing
    /// is lost if the future is dropped.
    ///
    /// # Errors
    /// Returns the reason why the subscription has ended.
    pub(super) async fn next(&mut self) -> Result<Vec<Update>, &'static str> {
        loop {
            let behind = {
                let mut state = self.feed.state();
                if *self.feed.stopped.borrow() {
                    return Err(SHUTTING_DOWN);
                }
                match state.core.next(&mut self.subscription) {
                    Next::Change(parts) => return Ok(parts),
                    Next::Replaced => return Err("a later watch of this node replaced this one"),
                    Next::Nothing => BTreeSet::new(),
                    Next::Behind(kinds) => kinds,
                }
            };
            if behind.is_empty() {
                self.notify.notified().await;
            } else if timeout(CATCH_UP, self.notify.notified()).await.is_err() {
                self.feed.want_lists(&self.subscription.node, &behind);
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut state = self.feed.state();
        state.core.unsubscribe(&self.subscription);
        let node = &self.subscription.node;
        if state.subscribers.get(node).is_some_and(|notify| Arc::ptr_eq(notify, &self.notify)) {
            state.subscribers.remove(node);
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
        let feed = NodeFeed::new(Bounds::default());
        let mut first = feed.subscribe(node(), &Watch::default());
        let waiting = tokio::spawn(async move { first.next().await });
        tokio::task::yield_now().await;
        let mut later = feed.subscribe(node(), &Watch::default());
        assert_eq!(waiting.await.unwrap(), Err("a later watch of this node replaced this one"));
        for kind in Kind::ALL {
            feed.apply(Event::ListStarted(kind));
            feed.apply(Event::ListFinished(kind));
        }
        assert!(later.next().await.is_ok());
        assert_eq!(feed.read(Core::present), 1);
        drop(later);
        assert_eq!(feed.read(Core::present), 0);
    }

    #[tokio::test]
    async fn an_end_of_the_hub_ends_all_listening() {
        let feed = NodeFeed::new(Bounds::default());
        let mut subscriber = feed.subscribe(node(), &Watch::default());
        let waiting = tokio::spawn(async move { subscriber.next().await });
        tokio::task::yield_now().await;
        feed.stop();
        assert_eq!(waiting.await.unwrap(), Err("the hub is shutting down"));
        assert_eq!(feed.subscribe(node(), &Watch::default()).next().await, Err("the hub is shutting down"));
    }
}
