//! The nodes that the hubs report, and the nodes that an operator has decommissioned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::advanced::reachability::{NodeChange, NodeStatus};
use csi_proxy::{
    DecommissionError, MAX_DECOMMISSIONED, NodeId, NodeSockets, NodeWatch, Reachability, TopologyRouter,
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, mpsc, watch};

use super::decommission::{Action, CommandError, DecommissionedNodes, PendingAction, execute_by_topology};
use super::roster::Roster;

/// How long open calls may take when a node's socket is removed.
const SOCKET_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The receiver of node changes.
#[derive(Debug)]
pub(super) enum Follower {
    /// All calls go to one node.
    Fixed {
        node: NodeId,
        connected: bool,
        /// Notified when the node connects, so that its driver is called again.
        online: Arc<Notify>,
        /// Notified when the node is lost for longer than its grace, so that `Probe` reports it.
        away: Arc<Notify>,
    },
    /// A router selects the node of each call.
    Topology(Arc<TopologyRouter>),
    /// Each node has a socket.
    Sockets(BySocket),
}

/// The sockets of all nodes that are not decommissioned.
#[derive(Debug)]
pub(super) struct BySocket {
    driver: DriverName,
    sockets: NodeSockets,
    roster: Roster,
    /// The nodes that may have a socket; empty: all nodes.
    only: Vec<NodeId>,
    /// The connected nodes among those.
    connected: BTreeSet<NodeId>,
    /// The decommissioned nodes, and whether each is connected.
    decommissioned: watch::Sender<Vec<(NodeId, bool)>>,
}

/// Applies node changes to the follower, and executes commands, until the peers are closed.
pub(super) async fn follow(
    mut nodes: NodeWatch,
    driver: DriverName,
    reachability: Reachability,
    mut follower: Follower,
    mut commands: mpsc::Receiver<PendingAction>,
) {
    // A node is away when its grace is over: until then its calls wait, and Probe does not change.
    let (mut lost, mut graces) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            changes = nodes.next() => {
                let Some(changes) = changes else { return };
                follower.add_to_roster(&changes);
                for change in &changes {
                    if let Some(node) = follower.apply(change).await
                        && lost.insert(node.clone())
                    {
                        let reachability = reachability.clone();
                        graces.push(async move { (reachability.settled(&node).await, node) });
                    }
                }
            }
            Some((status, node)) = graces.next() => {
                lost.remove(&node);
                if let NodeStatus::Away(_) = status {
                    follower.away(&node).await;
                }
            }
            Some(pending) = commands.recv() => follower.execute(&driver, pending).await,
        }
    }
}

impl Follower {
    /// Adds the nodes that a batch of changes connects to the roster, with one write.
    fn add_to_roster(&mut self, changes: &[NodeChange]) {
        if let Self::Sockets(BySocket { roster, only, .. }) = self {
            let nodes = changes.iter().filter_map(|change| match change {
                NodeChange::Up(node) if only.is_empty() || only.contains(node) => Some(node.clone()),
                _ => None,
            });
            roster.add(nodes);
        }
    }

    /// Applies one change, and returns the node if it was lost.
    async fn apply(&mut self, change: &NodeChange) -> Option<NodeId> {
        match change {
            NodeChange::Up(node) => self.up(node.clone()).await,
            NodeChange::Down(node) => {
                self.down(node);
                return Some(node.clone());
            }
            NodeChange::Synced => self.synced(),
            _ => {}
        }
        None
    }

    async fn up(&mut self, up: NodeId) {
        match self {
            Self::Fixed { node, connected, online, .. } => {
                if up == *node {
                    *connected = true;
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.arrived(&up),
            Self::Sockets(by_socket) => by_socket.up(up).await,
        }
    }

    fn down(&mut self, down: &NodeId) {
        match self {
            Self::Fixed { node, connected, .. } => *connected &= down != node,
            Self::Topology(_) => {}
            Self::Sockets(by_socket) => by_socket.down(down),
        }
    }

    /// Handles a lost node that did not reconnect within its grace.
    async fn away(&self, lost: &NodeId) {
        match self {
            Self::Fixed { node, away, .. } => {
                if lost == node {
                    away.notify_one();
                }
            }
            Self::Topology(route) => route.left(lost),
            Self::Sockets(by_socket) => by_socket.away(lost).await,
        }
    }

    /// Handles the end of the initial list of nodes.
    fn synced(&self) {
        match self {
            // The node may have connected before the subscription, after a call had failed.
            Self::Fixed { connected, online, .. } => {
                if *connected {
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.synced(),
            Self::Sockets(BySocket { sockets, connected, .. }) => {
                connected.iter().for_each(|node| sockets.online(node));
            }
        }
    }
}

impl Follower {
    /// Returns the decommissioned nodes, for the status page.
    pub(super) fn decommissioned_nodes(&self) -> DecommissionedNodes {
        match self {
            Self::Fixed { .. } => DecommissionedNodes::Unsupported,
            Self::Topology(route) => DecommissionedNodes::Topology(Arc::clone(route)),
            Self::Sockets(by_socket) => DecommissionedNodes::Sockets(by_socket.decommissioned.subscribe()),
        }
    }

    async fn execute(&mut self, driver: &DriverName, PendingAction { action, answer }: PendingAction) {
        let done = match self {
            Self::Fixed { node, .. } => {
                Err(CommandError::FixedRoute { driver: driver.clone(), node: node.clone() })
            }
            Self::Topology(route) => {
                let route = Arc::clone(route);
                // Changes of nodes must not wait for the disk.
                tokio::spawn(async move {
                    let _ = answer.send(execute_by_topology(&route, action).await);
                });
                return;
            }
            Self::Sockets(by_socket) => match action {
                Action::Decommission(node) => by_socket.decommission(node).await,
                Action::Recommission(node) => by_socket.recommission(node).await,
                Action::Repair(..) => Err(CommandError::NoPlacements { driver: driver.clone() }),
            },
        };
        // Fails if the caller no longer waits for the answer.
        let _ = answer.send(done);
    }
}

impl BySocket {
    /// Creates the follower of the nodes in `only`, or of every node if `only` is empty.
    pub(super) fn new(driver: DriverName, sockets: NodeSockets, roster: Roster, only: Vec<NodeId>) -> Self {
        let (connected, decommissioned) = (BTreeSet::new(), watch::Sender::default());
        let by_socket = Self { driver, sockets, roster, only, connected, decommissioned };
        by_socket.publish();
        by_socket
    }

    async fn up(&mut self, node: NodeId) {
        if !self.only.is_empty() && !self.only.contains(&node) {
            return;
        }
        self.connected.insert(node.clone());
        if self.roster.decommissioned.contains(&node) {
            tracing::warn!(%node, "a decommissioned node is connected; it gets no socket until it is recommissioned");
            self.publish();
        } else if let Err(error) = self.sockets.serve(&node).await {
            tracing::error!("{error}");
        }
    }

    fn down(&mut self, node: &NodeId) {
        self.connected.remove(node);
        self.publish();
    }

    /// Asks the driver of a lost node again, which finds that it cannot be reached.
    async fn away(&self, node: &NodeId) {
        if self.roster.nodes.contains(node)
            && let Err(error) = self.sockets.serve(node).await
        {
            tracing::error!("{error}");
        }
    }

    async fn decommission(&mut self, node: NodeId) -> Result<String, CommandError> {
        let known = &self.roster.decommissioned;
        let before = known.contains(&node);
        if !before && self.connected.contains(&node) {
            return Err(DecommissionError::Connected { node }.into());
        }
        if !before && !self.roster.nodes.contains(&node) {
            return Err(DecommissionError::Unknown { node, driver: self.driver.clone() }.into());
        }
        if !before && known.len() >= MAX_DECOMMISSIONED {
            return Err(DecommissionError::TooMany { max: MAX_DECOMMISSIONED }.into());
        }
        let durable = self.roster.decommission(&node).await;
        durable.map_err(|source| CommandError::NotDurable { node: node.clone(), source })?;
        self.publish();
        self.sockets.release(&node, SOCKET_DRAIN_TIMEOUT).await;
        tracing::warn!(%node, "the node is decommissioned; its socket is removed until it is recommissioned");
        let already = if before { " already" } else { "" };
        Ok(format!("node {node} is{already} decommissioned: it has no socket until it is recommissioned"))
    }

    async fn recommission(&mut self, node: NodeId) -> Result<String, CommandError> {
        if !self.roster.decommissioned.contains(&node) {
            return Ok(format!("node {node} was not decommissioned"));
        }
        let durable = self.roster.recommission(&node).await;
        durable.map_err(|source| CommandError::NotDurable { node: node.clone(), source })?;
        self.publish();
        self.sockets.serve(&node).await?;
        tracing::warn!(%node, "the node is recommissioned");
        Ok(format!("node {node} is recommissioned and has its socket again"))
    }

    /// Publishes the decommissioned nodes for the status page.
    fn publish(&self) {
        let nodes = self.roster.decommissioned.iter();
        self.decommissioned
            .send_replace(nodes.map(|node| (node.clone(), self.connected.contains(node))).collect());
    }
}

#[cfg(test)]
mod tests;
