//! Which nodes are reachable, and how long to wait for the others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::call::{HashMap, NodeId, NodeSession};

/// The default reconnect grace.
pub const DEFAULT_RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// How long to wait for a complete list of nodes after the loss of a hub, before the nodes count as lost.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// The number of losses within [`FLAPPING_WINDOW`] after which a node has no grace.
const FLAPPING_LOSSES: usize = 3;

/// The time within which losses are counted.
const FLAPPING_WINDOW: Duration = Duration::from_secs(60);

/// How long a node must be up to regain its grace.
const STEADY_AFTER: Duration = Duration::from_secs(30);

/// A node that is offline for this long is evicted: it is treated like an unknown node.
const EVICTED_AFTER: Duration = Duration::from_secs(600);

/// Whether a call can be sent to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of a state machine")]
pub enum NodeStatus {
    /// Send the call to this session.
    Connected(NodeSession),
    /// Nothing can be sent now. The node or the hub was lost within its grace and is expected back.
    Reconnecting {
        /// The end of the grace.
        until: Instant,
        /// The missing component.
        missing: Missing,
    },
    /// Nothing can be sent, and waiting is useless.
    Away(Missing),
}

/// The component that is not connected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of a state machine")]
pub enum Missing {
    /// The node is not connected to the hub.
    Node,
    /// The hub is connected, and does not list its nodes.
    List {
        /// The cause of the last failure.
        cause: Arc<str>,
    },
    /// The hub is not connected.
    Hub,
}

/// The presence of hub and nodes. Cheap to clone; all clones share their state.
///
/// The owner must report events: `NodeWatch` reports those of `edge_transport`. Initially the hub counts as just
/// lost.
#[derive(Debug, Clone)]
pub struct Reachability(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    /// Wakes calls in the order of their waits, which a `watch` does not.
    changed: Arc<Notify>,
}

impl Reachability {
    /// Creates a state without nodes. `grace` is how long a lost node or hub is expected back
    /// ([`DEFAULT_RECONNECT_GRACE`]); zero disables waiting.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self(Arc::new(Shared { core: Mutex::new(Core::new(grace, now())), changed: Arc::default() }))
    }

    /// The reconnect grace.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.core().grace
    }

    /// Whether a call can be sent to this node now.
    #[must_use]
    pub fn status(&self, node: &NodeId) -> NodeStatus {
        self.core().status(node, now())
    }

    /// Waits until no grace is running: the node is connected, or waiting is useless.
    pub async fn settled(&self, node: &NodeId) -> NodeStatus {
        loop {
            match self.status(node) {
                NodeStatus::Reconnecting { until, .. } => tokio::time::sleep_until(until.into()).await,
                settled => return settled,
            }
        }
    }

    /// Reports a connection to a hub. Its nodes are unknown until [`Self::synced`].
    pub fn hub_connected(&self) {
        self.change(Core::hub_connected);
    }

    /// Reports that no hub is connected.
    pub fn hub_lost(&self) {
        self.change(|core| core.hub_lost(now()));
    }

    /// Reports a session of a node. A session is ignored after one of the same instance with a higher number.
    pub fn node_up(&self, node: &NodeId, session: NodeSession) {
        self.change(|core| core.node_up(node, session, now()));
    }

    /// Reports the loss of a session. The loss is ignored if the node has another session.
    pub fn node_down(&self, node: &NodeId, session: NodeSession) {
        self.change(|core| core.node_down(node, session, now()));
    }

    /// Reports that the list of nodes is complete. A node that was up before and was not reported as down is up.
    pub fn synced(&self) {
        self.change(|core| core.synced(now()));
    }

    /// Reports that the connected hub does not list its nodes, with the cause. Ignored after a complete list.
    pub fn list_failed(&self, cause: &str) {
        self.change(|core| core.list_failed(cause));
    }

    /// Completes after the next change.
    pub(super) fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.0.changed).notified_owned()
    }

    /// Wakes all waiters for a change.
    pub(super) fn wake(&self) {
        self.0.changed.notify_waiters();
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, event: impl FnOnce(&mut Core) -> bool) {
        let changed = event(&mut self.core());
        if changed {
            self.wake();
        }
    }
}

/// The clock of the runtime, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// [`Reachability`] without a clock. Each event returns whether anything changed.
///
/// | Hub | Node | A call |
/// |---|---|---|
/// | complete list | up | is sent |
/// | complete list | lost for less than the grace | waits until the grace ends |
/// | complete list | lost for longer, or flapping, or never seen | fails |
/// | connected, no complete list | up in the new list | is sent |
/// | connected, no complete list | up when the hub was lost | waits until the grace ends that begins with the list, at the latest 30 s after the loss |
/// | connected, no complete list | lost before | waits until its grace ends, or fails |
/// | connected, refuses the list | up when the hub was lost | waits until the grace ends that began with the loss of the list |
/// | lost for less than the grace | up, or lost for less than the grace | waits until the first of both graces ends |
/// | lost for longer | any | fails |
///
/// Before the first complete list every node counts as up when the hub was lost.
#[derive(Debug)]
pub(super) struct Core {
    grace: Duration,
    hub: Hub,
    /// Increases with every loss of the hub. A node whose link has this number is in the new list.
    list: u64,
    nodes: HashMap<NodeId, Node>,
    /// The end of the grace of unknown nodes; `None` before the first complete list.
    unseen: Option<Instant>,
    /// The number of nodes at which offline nodes are evicted.
    evict_at: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hub {
    /// Lost at `since`; the last complete list is outdated since `list_lost`.
    Lost {
        since: Instant,
        list_lost: Instant,
    },
    Listing {
        list_lost: Instant,
        /// Why the hub does not list its nodes, if it has said so.
        failure: Option<Arc<str>>,
    },
    Listed,
}

#[derive(Debug)]
struct Node {
    link: Link,
    /// The last losses, at most [`FLAPPING_LOSSES`], without those of the hub.
    losses: VecDeque<Instant>,
    /// Whether the node was lost too often, and was not up for [`STEADY_AFTER`] since.
    flapping: bool,
}

#[derive(Debug, Clone, Copy)]
enum Link {
    Up { session: NodeSession, since: Instant, list: u64 },
    Lost { since: Instant, grace_ends: Instant },
}

impl Core {
    fn new(grace: Duration, now: Instant) -> Self {
        let hub = Hub::Lost { since: now, list_lost: now };
        Self { grace, hub, list: 0, nodes: HashMap::default(), unseen: None, evict_at: 64 }
    }

    pub(super) fn status(&self, node: &NodeId, now: Instant) -> NodeStatus {
        let listed = match (self.nodes.get(node).map(|node| node.link), &self.hub) {
            (Some(Link::Up { session, .. }), Hub::Listed) => return NodeStatus::Connected(session),
            (Some(Link::Up { session, list, .. }), Hub::Listing { .. }) if list == self.list => {
                return NodeStatus::Connected(session);
            }
            (Some(Link::Up { .. }), _) => None,
            (Some(Link::Lost { grace_ends, .. }), _) => Some(grace_ends),
            (None, _) => self.unseen,
        };
        let (until, missing) = match &self.hub {
            Hub::Lost { since, .. } => {
                let until = *since + self.grace;
                (listed.map_or(until, |listed| listed.min(until)), Missing::Hub)
            }
            Hub::Listing { list_lost, failure: None } => {
                (listed.unwrap_or(*list_lost + LIST_LIMIT + self.grace), Missing::Node)
            }
            Hub::Listing { list_lost, failure: Some(cause) } => {
                (listed.unwrap_or(*list_lost + self.grace), Missing::List { cause: Arc::clone(cause) })
            }
            Hub::Listed => (listed.unwrap_or(now), Missing::Node),
        };
        if now < until { NodeStatus::Reconnecting { until, missing } } else { NodeStatus::Away(missing) }
    }

    fn hub_connected(&mut self) -> bool {
        let Hub::Lost { list_lost, .. } = self.hub else { return false };
        self.hub = Hub::Listing { list_lost, failure: None };
        true
    }

    fn list_failed(&mut self, cause: &str) -> bool {
        let Hub::Listing { failure, .. } = &mut self.hub else { return false };
        let changed = failure.as_deref() != Some(cause);
        *failure = Some(cause.into());
        changed
    }

    fn hub_lost(&mut self, now: Instant) -> bool {
        let list_lost = match self.hub {
            Hub::Lost { .. } => return false,
            Hub::Listing { list_lost, .. } => list_lost,
            Hub::Listed => now,
        };
        self.hub = Hub::Lost { since: now, list_lost };
        self.list += 1;
        true
    }

    fn node_up(&mut self, name: &NodeId, session: NodeSession, now: Instant) -> bool {
        self.evict(now);
        let list = self.list;
        let fresh = Link::Up { session, since: now, list };
        let Some(node) = self.nodes.get_mut(name) else {
            let node = Node { link: fresh, losses: VecDeque::new(), flapping: false };
            self.nodes.insert(name.clone(), node);
            return true;
        };
        node.link = match node.link {
            Link::Up { session: known, .. }
                if known.instance == session.instance && known.number > session.number =>
            {
                return false;
            }
            // A new list repeats a known session.
            Link::Up { session: known, since, .. } if known == session => Link::Up { session, since, list },
            Link::Up { .. } | Link::Lost { .. } => fresh,
        };
        true
    }

    fn node_down(&mut self, name: &NodeId, lost: NodeSession, now: Instant) -> bool {
        let (hub, grace) = (self.hub.clone(), self.grace);
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let Link::Up { session, since, list } = node.link else { return false };
        if session != lost {
            return false;
        }
        let begins = match hub {
            // The node is not in the list of the next hub after it was lost together with the previous one.
            Hub::Listing { list_lost, .. } | Hub::Lost { list_lost, .. } if list < self.list => {
                now.min(list_lost + LIST_LIMIT)
            }
            _ => {
                node.count_loss(since, now);
                now
            }
        };
        let grace_ends = if node.flapping { now } else { begins + grace };
        node.link = Link::Lost { since: now, grace_ends };
        true
    }

    fn synced(&mut self, now: Instant) -> bool {
        let (Hub::Listing { list_lost, .. } | Hub::Lost { list_lost, .. }) = self.hub else { return false };
        self.hub = Hub::Listed;
        self.unseen.get_or_insert_with(|| now.min(list_lost + LIST_LIMIT) + self.grace);
        true
    }

    /// Evicts nodes that are offline for [`EVICTED_AFTER`], if there are many nodes.
    fn evict(&mut self, now: Instant) {
        if self.nodes.len() >= self.evict_at {
            let is_known = |link: Link| match link {
                Link::Up { .. } => true,
                Link::Lost { since, .. } => now < since + EVICTED_AFTER,
            };
            self.nodes.retain(|_, node| is_known(node.link));
            self.evict_at = 64.max(2 * self.nodes.len());
        }
    }
}

impl Node {
    fn count_loss(&mut self, up_since: Instant, now: Instant) {
        if self.flapping && now >= up_since + STEADY_AFTER {
            self.flapping = false;
            self.losses.clear();
        }
        self.losses.push_back(now);
        self.losses.retain(|loss| now < *loss + FLAPPING_WINDOW);
        self.flapping |= self.losses.len() >= FLAPPING_LOSSES;
        self.losses.truncate(FLAPPING_LOSSES);
    }
}

#[cfg(test)]
mod tests;
