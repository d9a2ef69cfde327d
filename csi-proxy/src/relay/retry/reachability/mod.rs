//! Which nodes are reachable and at which hub, and how long to wait for the others.

mod core;
mod node;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

pub(crate) use self::core::HubId;
use self::core::{Core, SessionEnd};
use crate::call::{NodeId, NodeSession};

/// The default reconnect grace.
pub const DEFAULT_RECONNECT_GRACE: Duration = Duration::from_secs(5);

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
    /// The node is not connected to a hub.
    Node,
    /// Several agents with the node's name are connected, each to a hub, or were less than 10 s ago. It is unknown which of them
    /// is the node.
    OneAgent,
    /// A hub is connected, and does not list its nodes.
    List {
        /// The cause of the last failure.
        cause: Arc<str>,
    },
    /// No hub is connected.
    Hub,
}

/// A change of the nodes, as all hubs together report them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeChange {
    /// The node is connected, or is connected with a new session, possibly at another hub.
    Up(NodeId),
    /// The node is no longer connected to any hub. Its grace may be running.
    Down(NodeId),
    /// A second agent with the node's name is connected to another hub.
    Contested(NodeId),
    /// All connected hubs have listed their nodes.
    Synced,
    /// A hub does not list its nodes.
    Failed {
        /// The cause, and what the hub needs.
        cause: String,
    },
}

/// The presence of hubs and nodes. Cheap to clone; all clones share their state.
///
/// The owner adds each hub and reports its events: `NodeWatch` reports those of `edge_transport`. Initially the hubs count as
/// just lost.
#[derive(Debug, Clone)]
pub struct Reachability(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    core: Mutex<Core>,
    /// Wakes calls in the order of their waits, which a `watch` does not.
    changed: Arc<Notify>,
}

impl Reachability {
    /// Creates a state without hubs and nodes. `grace` is how long a lost node or hub is expected back
    /// ([`DEFAULT_RECONNECT_GRACE`]); zero disables waiting.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self(Arc::new(Shared { core: Mutex::new(Core::new(grace, now())), changed: Arc::default() }))
    }

    /// Adds a hub, which is not connected.
    #[must_use]
    pub fn add_hub(&self) -> HubPresence {
        HubPresence { reachability: self.clone(), id: self.core().add_hub(now()) }
    }

    /// The reconnect grace.
    #[must_use]
    pub fn grace(&self) -> Duration {
        self.core().grace()
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

    /// The nodes with two connected agents, sorted. No call is sent to them.
    #[must_use]
    pub fn contested(&self) -> Vec<NodeId> {
        self.core().contested()
    }

    /// The hub at which the node has this session now.
    #[cfg(feature = "edge-transport")]
    pub(crate) fn hub_of(&self, node: &NodeId, session: Option<NodeSession>) -> Option<HubId> {
        self.core().hub_of(node, session)
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

    fn change(&self, event: impl FnOnce(&mut Core, &mut Vec<NodeChange>) -> bool) -> Vec<NodeChange> {
        let mut changes = Vec::new();
        let changed = event(&mut self.core(), &mut changes);
        if changed {
            self.wake();
        }
        for change in &changes {
            if let NodeChange::Contested(node) = change {
                tracing::error!(%node, "two agents with the name of this node are connected to two hubs; no call is sent to the node until one of them has been lost for 10 s: give each node its own name and state directory");
            }
        }
        changes
    }
}

/// What one hub reports to a [`Reachability`]. Dropping it removes the hub. Each report returns the changes of the nodes.
#[derive(Debug)]
pub struct HubPresence {
    reachability: Reachability,
    id: HubId,
}

impl HubPresence {
    #[cfg(feature = "edge-transport")]
    pub(crate) const fn id(&self) -> HubId {
        self.id
    }

    /// Reports that the hub is connected. Its nodes are unknown until [`Self::synced`].
    pub fn connected(&self) {
        self.reachability.change(|core, _| core.hub_connected(self.id));
    }

    /// Reports that the hub is not connected.
    pub fn lost(&self) -> Vec<NodeChange> {
        self.reachability.change(|core, changes| core.hub_lost(self.id, now(), changes))
    }

    /// Reports a session of a node at this hub. A session is ignored after one of the same instance with a higher number, at
    /// any hub.
    pub fn node_up(&self, node: &NodeId, session: NodeSession) -> Vec<NodeChange> {
        self.reachability.change(|core, changes| core.node_up(self.id, node, session, now(), changes))
    }

    /// Reports the loss of a session. The loss is ignored if the node has another session.
    pub fn node_down(&self, node: &NodeId, session: NodeSession) -> Vec<NodeChange> {
        let end = (session, SessionEnd::Lost);
        self.reachability.change(|core, changes| core.node_down(self.id, node, end, now(), changes))
    }

    /// Reports the end of a session that was drained, by the node or by the hub. It does not count as a loss: a node that is lost
    /// three times in a minute has no grace.
    pub fn node_drained(&self, node: &NodeId, session: NodeSession) -> Vec<NodeChange> {
        let end = (session, SessionEnd::Drained);
        self.reachability.change(|core, changes| core.node_down(self.id, node, end, now(), changes))
    }

    /// Reports that the list of the hub's nodes is complete. A node that was up at this hub before and was not reported as
    /// down is up.
    pub fn synced(&self) -> Vec<NodeChange> {
        self.reachability.change(|core, changes| core.synced(self.id, now(), changes))
    }

    /// Reports that the connected hub does not list its nodes, with the cause. Ignored after a complete list.
    pub fn list_failed(&self, cause: &str) -> Vec<NodeChange> {
        self.reachability.change(|core, changes| core.list_failed(self.id, cause, changes))
    }
}

impl Drop for HubPresence {
    fn drop(&mut self) {
        self.reachability.change(|core, changes| core.remove_hub(self.id, now(), changes));
    }
}

/// The clock of the runtime, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
