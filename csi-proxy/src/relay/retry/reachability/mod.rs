//! Which node a call can be sent to now, and how long it is worth waiting for one that it cannot be sent to.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::call::{NodeId, NodeSession};

/// Default of the reconnect grace.
pub const DEFAULT_RECONNECT_GRACE: Duration = Duration::from_secs(5);

/// How long after the loss of a hub a complete list of nodes is waited for, before the nodes count as lost.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// A node with so many losses within [`FLAPPING_WINDOW`] has no grace any more.
const FLAPPING_LOSSES: usize = 3;

/// The time within which losses are counted.
const FLAPPING_WINDOW: Duration = Duration::from_secs(60);

/// A node that was up for so long has its grace again.
const STEADY: Duration = Duration::from_secs(30);

/// A node that has been away for so long is forgotten: it is treated like one that was never seen.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// What can be done with a call to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of a state machine")]
pub enum NodeStatus {
    /// Send it to this session.
    Connected(NodeSession),
    /// Nothing can be sent now. The node or the hub was connected a moment ago and is expected back, at the latest until then.
    Reconnecting {
        /// The end of the grace.
        until: Instant,
        /// What is expected back.
        missing: Missing,
    },
    /// Nothing can be sent, and it is not worth waiting.
    Away(Missing),
}

/// What is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of a state machine")]
pub enum Missing {
    /// The node, at the hub.
    Node,
    /// The hub.
    Hub,
}

/// What presence says about hub and nodes, for everything that has to know it. Cheap to clone; all clones are the same.
///
/// Something has to report here what it sees: `NodeWatch` does it for `edge_transport`. To begin with the hub counts
/// as just lost.
#[derive(Debug, Clone)]
pub struct Reachability(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    /// Wakes calls in the order in which they began to wait, which a `watch` does not.
    changed: Arc<Notify>,
}

impl Reachability {
    /// Knows of no node yet. A node or hub that is lost is expected back for so long ([`DEFAULT_RECONNECT_GRACE`]); zero: never.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self(Arc::new(Shared { core: Mutex::new(Core::new(grace, now())), changed: Arc::default() }))
    }

    /// The reconnect grace.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.core().grace
    }

    /// What can be done with a call to this node now.
    #[must_use]
    pub fn status(&self, node: &NodeId) -> NodeStatus {
        self.core().status(node, now())
    }

    /// The same once no grace runs any more: the node is connected, or it is not worth waiting for.
    pub async fn settled(&self, node: &NodeId) -> NodeStatus {
        loop {
            match self.status(node) {
                NodeStatus::Reconnecting { until, .. } => tokio::time::sleep_until(until.into()).await,
                settled => return settled,
            }
        }
    }

    /// There is a connection to a hub. What nodes it has is not known until [`Self::synced`].
    pub fn hub_connected(&self) {
        self.change(Core::hub_connected);
    }

    /// There is no connection to any hub any more.
    pub fn hub_lost(&self) {
        self.change(|core| core.hub_lost(now()));
    }

    /// The hub has this session of the node. Ignored if it has reported a higher one of the same instance before.
    pub fn node_up(&self, node: &NodeId, session: NodeSession) {
        self.change(|core| core.node_up(node, session, now()));
    }

    /// The hub has lost this session of the node. Ignored if the node has another one.
    pub fn node_down(&self, node: &NodeId, session: NodeSession) {
        self.change(|core| core.node_down(node, session, now()));
    }

    /// The list of nodes is complete. A node that was up before and was not reported as down since is up.
    pub fn synced(&self) {
        self.change(|core| core.synced(now()));
    }

    /// Ready after the next change.
    pub(super) fn changed(&self) -> OwnedNotified {
        Arc::clone(&self.0.changed).notified_owned()
    }

    /// Wakes what waits for a change.
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

/// The time of the runtime, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// [`Reachability`] without a clock. Each event says whether anything changed.
///
/// | Hub | Node | A call |
/// |---|---|---|
/// | complete list | up | is sent |
/// | complete list | lost for less than the grace | waits until the grace ends |
/// | complete list | lost for longer, or flapping, or never seen | fails |
/// | connected, no complete list | up in the new list | is sent |
/// | connected, no complete list | up when the hub was lost | waits until the grace ends that begins with the list, at the latest 30 s after the loss |
/// | connected, no complete list | lost before | waits until its grace ends, or fails |
/// | lost for less than the grace | up, or lost for less than the grace | waits until the first of both graces ends |
/// | lost for longer | any | fails |
///
/// Before the first complete list every node counts as up when the hub was lost.
#[derive(Debug)]
pub(super) struct Core {
    grace: Duration,
    hub: Hub,
    /// Rises with every loss of the hub. A node that was reported in this one is in the new list.
    list: u64,
    nodes: HashMap<NodeId, Node>,
    /// When the grace of nodes ends that were never seen; `None` before the first complete list.
    unseen: Option<Instant>,
    /// At how many nodes those that have been away for long are looked for.
    forget_at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hub {
    /// Since then; the last complete list has been worthless since `list_lost`.
    Lost {
        since: Instant,
        list_lost: Instant,
    },
    Listing {
        list_lost: Instant,
    },
    Listed,
}

#[derive(Debug)]
struct Node {
    link: Link,
    /// The last losses, at most [`FLAPPING_LOSSES`], not those of the hub.
    losses: VecDeque<Instant>,
    /// It was lost too often, and has not been up for [`STEADY`] since.
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
        Self { grace, hub, list: 0, nodes: HashMap::new(), unseen: None, forget_at: 64 }
    }

    pub(super) fn status(&self, node: &NodeId, now: Instant) -> NodeStatus {
        let listed = match (self.nodes.get(node).map(|node| node.link), self.hub) {
            (Some(Link::Up { session, .. }), Hub::Listed) => return NodeStatus::Connected(session),
            (Some(Link::Up { session, list, .. }), Hub::Listing { .. }) if list == self.list => {
                return NodeStatus::Connected(session);
            }
            (Some(Link::Up { .. }), _) => None,
            (Some(Link::Lost { grace_ends, .. }), _) => Some(grace_ends),
            (None, _) => self.unseen,
        };
        let (until, missing) = match self.hub {
            Hub::Lost { since, .. } => {
                let until = since + self.grace;
                (listed.map_or(until, |listed| listed.min(until)), Missing::Hub)
            }
            Hub::Listing { list_lost } => {
                (listed.unwrap_or(list_lost + LIST_LIMIT + self.grace), Missing::Node)
            }
            Hub::Listed => (listed.unwrap_or(now), Missing::Node),
        };
        if now < until { NodeStatus::Reconnecting { until, missing } } else { NodeStatus::Away(missing) }
    }

    fn hub_connected(&mut self) -> bool {
        let Hub::Lost { list_lost, .. } = self.hub else { return false };
        self.hub = Hub::Listing { list_lost };
        true
    }

    fn hub_lost(&mut self, now: Instant) -> bool {
        let list_lost = match self.hub {
            Hub::Lost { .. } => return false,
            Hub::Listing { list_lost } => list_lost,
            Hub::Listed => now,
        };
        self.hub = Hub::Lost { since: now, list_lost };
        self.list += 1;
        true
    }

    fn node_up(&mut self, name: &NodeId, session: NodeSession, now: Instant) -> bool {
        self.forget(now);
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
            // The same link as before.
            Link::Up { session: known, since, .. } if known == session => Link::Up { session, since, list },
            Link::Up { .. } | Link::Lost { .. } => fresh,
        };
        true
    }

    fn node_down(&mut self, name: &NodeId, lost: NodeSession, now: Instant) -> bool {
        let (hub, grace) = (self.hub, self.grace);
        let Some(node) = self.nodes.get_mut(name) else { return false };
        let Link::Up { session, since, list } = node.link else { return false };
        if session != lost {
            return false;
        }
        let begins = match hub {
            // It is not in the list of the hub that came after the one that was lost with it.
            Hub::Listing { list_lost } | Hub::Lost { list_lost, .. } if list < self.list => {
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
        let (Hub::Listing { list_lost } | Hub::Lost { list_lost, .. }) = self.hub else { return false };
        self.hub = Hub::Listed;
        self.unseen.get_or_insert_with(|| now.min(list_lost + LIST_LIMIT) + self.grace);
        true
    }

    /// Forgets the nodes that have been away for long, if there may be many.
    fn forget(&mut self, now: Instant) {
        if self.nodes.len() >= self.forget_at {
            let is_known = |link: Link| match link {
                Link::Up { .. } => true,
                Link::Lost { since, .. } => now < since + FORGOTTEN_AFTER,
            };
            self.nodes.retain(|_, node| is_known(node.link));
            self.forget_at = 64.max(2 * self.nodes.len());
        }
    }
}

impl Node {
    fn count_loss(&mut self, up_since: Instant, now: Instant) {
        if self.flapping && now >= up_since + STEADY {
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
