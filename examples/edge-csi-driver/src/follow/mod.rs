//! The nodes that the hub reports, and the nodes that an operator has decommissioned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::NodeWatch;
use csi_proxy::routing::{DecommissionError, MAX_DECOMMISSIONED};
use csi_proxy::{NodeId, NodeSockets, NodeStatus, Reachability, TopologyRouter};
use edge_transport::PeerId;
use edge_transport::presence::Change;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, mpsc, watch};

use super::decommission::{CommandError, Commanded, Order, Quarantined, by_topology};
use super::roster::Roster;

/// How long open calls may take when a node's socket is removed.
const SOCKET_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The receiver of node changes.
#[derive(Debug)]
pub(super) enum Follower {
    /// The one node that all calls go to.
    Fixed {
        node: NodeId,
        there: bool,
        /// Notified when the node connects: its driver may be called again.
        online: Arc<Notify>,
    },
    /// A route that chooses among them.
    Topology(Arc<TopologyRouter>),
    /// A socket for each.
    Sockets(BySocket),
}

/// A socket for each node, but for decommissioned ones.
#[derive(Debug)]
pub(super) struct BySocket {
    driver: DriverName,
    sockets: NodeSockets,
    roster: Roster,
    /// Those that may have one; empty for all.
    only: Vec<NodeId>,
    /// Those of them that are there.
    there: BTreeSet<NodeId>,
    /// The decommissioned ones, and whether each is there.
    decommissioned: watch::Sender<Vec<(NodeId, bool)>>,
}

/// Follows, reports to `reachability` which nodes there are, and carries out commands, until the peer is closed.
pub(super) async fn follow(
    mut nodes: NodeWatch,
    driver: DriverName,
    reachability: Reachability,
    mut follower: Follower,
    mut commands: mpsc::Receiver<Commanded>,
) {
    if let Follower::Fixed { node, .. } = &follower {
        nodes = nodes.only(node);
    }
    // A node is away when its grace is over: until then its calls wait, and Probe does not change.
    let (mut lost, mut graces) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            changes = nodes.next() => {
                let Some(changes) = changes else { return };
                follower.expect(&changes);
                for change in &changes {
                    if let Some(node) = follower.take(change).await
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
                    follower.away(&node);
                }
            }
            Some(commanded) = commands.recv() => follower.obey(&driver, commanded).await,
        }
    }
}

impl Follower {
    /// Keeps in one go what is about to be taken in.
    fn expect(&mut self, changes: &[Change]) {
        if let Self::Sockets(BySocket { roster, only, .. }) = self {
            let nodes = changes.iter().filter_map(|change| match change {
                Change::Up { peer, .. } => {
                    node_of(peer).filter(|node| only.is_empty() || only.contains(node))
                }
                _ => None,
            });
            roster.add(nodes);
        }
    }

    /// Takes one change in. Gives a node that was lost.
    async fn take(&mut self, change: &Change) -> Option<NodeId> {
        match change {
            Change::Up { peer, .. } => {
                if let Some(node) = node_of(peer) {
                    self.up(node).await;
                }
            }
            Change::Down { peer, .. } => return node_of(peer).inspect(|node| self.down(node)),
            Change::Synced => self.current(),
            _ => {}
        }
        None
    }

    async fn up(&mut self, up: NodeId) {
        match self {
            Self::Fixed { node, there, online } => {
                if up == *node {
                    *there = true;
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.arrived(&up),
            Self::Sockets(by_socket) => by_socket.up(up).await,
        }
    }

    fn down(&mut self, down: &NodeId) {
        match self {
            Self::Fixed { node, there, .. } => *there &= down != node,
            Self::Topology(_) => {}
            Self::Sockets(by_socket) => by_socket.down(down),
        }
    }

    /// A lost node did not reconnect within its grace.
    fn away(&self, node: &NodeId) {
        if let Self::Topology(route) = self {
            route.left(node);
        }
    }

    /// The list is complete.
    fn current(&self) {
        match self {
            // The node may have connected before the subscription, after a call had failed.
            Self::Fixed { there, online, .. } => {
                if *there {
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.synced(),
            Self::Sockets(BySocket { sockets, there, .. }) => {
                there.iter().for_each(|node| sockets.online(node));
            }
        }
    }
}

impl Follower {
    /// The decommissioned nodes, for the status page.
    pub(super) fn quarantined(&self) -> Quarantined {
        match self {
            Self::Fixed { .. } => Quarantined::Nowhere,
            Self::Topology(route) => Quarantined::Topology(Arc::clone(route)),
            Self::Sockets(by_socket) => Quarantined::Sockets(by_socket.decommissioned.subscribe()),
        }
    }

    async fn obey(&mut self, driver: &DriverName, Commanded { order, answer }: Commanded) {
        let done = match self {
            Self::Fixed { node, .. } => {
                Err(CommandError::FixedRoute { driver: driver.clone(), node: node.clone() })
            }
            Self::Topology(route) => {
                let route = Arc::clone(route);
                // Changes of nodes must not wait for the disk.
                tokio::spawn(async move {
                    let _ = answer.send(by_topology(&route, order).await);
                });
                return;
            }
            Self::Sockets(by_socket) => match order {
                Order::Decommission(node) => by_socket.decommission(node).await,
                Order::Recommission(node) => by_socket.recommission(node).await,
            },
        };
        // Fails if the caller no longer waits for the answer.
        let _ = answer.send(done);
    }
}

impl BySocket {
    /// The nodes in the roster that may have a socket; every node if `only` is empty.
    pub(super) fn new(driver: DriverName, sockets: NodeSockets, roster: Roster, only: Vec<NodeId>) -> Self {
        let (there, decommissioned) = (BTreeSet::new(), watch::Sender::default());
        let by_socket = Self { driver, sockets, roster, only, there, decommissioned };
        by_socket.show();
        by_socket
    }

    async fn up(&mut self, node: NodeId) {
        if !self.only.is_empty() && !self.only.contains(&node) {
            return;
        }
        self.there.insert(node.clone());
        if self.roster.decommissioned.contains(&node) {
            tracing::warn!(%node, "a decommissioned node is connected; it gets no socket until it is recommissioned");
            self.show();
        } else if let Err(error) = self.sockets.serve(&node).await {
            tracing::error!("{error}");
        }
    }

    fn down(&mut self, node: &NodeId) {
        self.there.remove(node);
        self.show();
    }

    async fn decommission(&mut self, node: NodeId) -> Result<String, CommandError> {
        let known = &self.roster.decommissioned;
        let before = known.contains(&node);
        if !before && self.there.contains(&node) {
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
        self.show();
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
        self.show();
        self.sockets.serve(&node).await?;
        tracing::warn!(%node, "the node is recommissioned");
        Ok(format!("node {node} is recommissioned and has its socket again"))
    }

    /// Shows which nodes are decommissioned.
    fn show(&self) {
        let nodes = self.roster.decommissioned.iter();
        self.decommissioned
            .send_replace(nodes.map(|node| (node.clone(), self.there.contains(node))).collect());
    }
}

/// A peer with a name that is not a node id is not a node.
fn node_of(peer: &PeerId) -> Option<NodeId> {
    NodeId::new(peer.as_str()).ok()
}

#[cfg(test)]
mod tests;
