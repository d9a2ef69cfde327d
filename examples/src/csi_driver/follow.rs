//! Which nodes there are, as the hub tells it, and which of them an operator has decommissioned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::route::{DecommissionError, MAX_DECOMMISSIONED};
use csi_proxy::session_relay::NodeWatch;
use csi_proxy::{NodeId, NodeSockets, NodeStatus, Reachability, TopologyRouter};
use edge_transport::presence::Change;
use edge_transport::{Peer, PeerId};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, mpsc, watch};

use super::decommission::{CommandError, Commanded, Order, Quarantined, by_topology};
use super::roster::Roster;
use crate::process::Fatal;

/// How long open calls may take when a node's socket is removed.
const FAREWELL: Duration = Duration::from_secs(5);

/// Who is to know which nodes there are.
#[derive(Debug)]
pub(super) enum Follower {
    /// The one node that all calls go to.
    Fixed {
        node: NodeId,
        there: bool,
        /// Told when the node is there: its driver may be asked again.
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
    peer: Peer,
    driver: DriverName,
    reachability: Reachability,
    mut follower: Follower,
    mut commands: mpsc::Receiver<Commanded>,
) -> Result<(), Fatal> {
    let mut nodes = NodeWatch::new(peer, reachability.clone()).map_err(Fatal::runtime)?;
    if let Follower::Fixed { node, .. } = &follower {
        nodes = nodes.only(node);
    }
    // A node is away when its grace is over: until then its calls wait, and Probe does not change.
    let (mut lost, mut graces) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            changes = nodes.next() => {
                let Some(changes) = changes else { return Ok(()) };
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
            Change::Current => self.current(),
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

    /// A node that was lost has not come back within its grace.
    fn away(&self, node: &NodeId) {
        if let Self::Topology(route) = self {
            route.left(node);
        }
    }

    /// The list is complete.
    fn current(&self) {
        match self {
            // It may have come before this could ask who is there, and a call in vain before that.
            Self::Fixed { there, online, .. } => {
                if *there {
                    online.notify_one();
                }
            }
            Self::Topology(route) => route.current(),
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
                // What nodes come and go must not wait for the disk.
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
        // Fails if nobody waits for the answer any more.
        let _ = answer.send(done);
    }
}

impl BySocket {
    /// The nodes in the roster, of which only these may have a socket; empty for all.
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
        if self.roster.decommissioned().contains(&node) {
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
        let known = self.roster.decommissioned();
        let before = known.contains(&node);
        if !before && self.there.contains(&node) {
            return Err(DecommissionError::Connected { node }.into());
        }
        if !before && !self.roster.contains(&node) {
            return Err(DecommissionError::Unknown { node, driver: self.driver.clone() }.into());
        }
        if !before && known.len() >= MAX_DECOMMISSIONED {
            return Err(DecommissionError::TooMany { max: MAX_DECOMMISSIONED }.into());
        }
        let durable = self.roster.decommission(&node).await;
        durable.map_err(|source| CommandError::NotDurable { node: node.clone(), source })?;
        self.show();
        self.sockets.release(&node, FAREWELL).await;
        tracing::warn!(%node, "the node is decommissioned; its socket is removed until it is recommissioned");
        let already = if before { " already" } else { "" };
        Ok(format!("node {node} is{already} decommissioned: it has no socket until it is recommissioned"))
    }

    async fn recommission(&mut self, node: NodeId) -> Result<String, CommandError> {
        if !self.roster.decommissioned().contains(&node) {
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
        let nodes = self.roster.decommissioned().iter();
        self.decommissioned
            .send_replace(nodes.map(|node| (node.clone(), self.there.contains(node))).collect());
    }
}

/// A peer whose name is no node's is none.
fn node_of(peer: &PeerId) -> Option<NodeId> {
    NodeId::new(peer.as_str()).ok()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use csi_proxy::route::store::{MemoryStore, RedbStore};
    use csi_proxy::session_relay::SERVICE;
    use csi_proxy::{Call, EndpointSettings, Fault, Relay, Replies, TopologySettings};
    use edge_transport::link::memory;
    use edge_transport::peer::PeerBuilder;
    use edge_transport::{Hub, ReplySender, Request, Service, ServiceName, SessionId};
    use futures_util::FutureExt as _;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    struct Silent;

    /// No node is connected.
    struct Nowhere;

    #[async_trait]
    impl Relay for Nowhere {
        async fn relay(&self, call: Call) -> Result<Replies, Fault> {
            Err(Fault::NodeOffline { node: call.node })
        }
    }

    #[async_trait]
    impl Service for Silent {
        async fn call(&self, _: PeerId, _: Request, _: ReplySender) {}
    }

    fn driver() -> DriverName {
        DriverName::new("a.b").unwrap()
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    /// What an operator reads.
    async fn ordered(follower: &mut Follower, order: Order) -> Result<String, String> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        follower.obey(&driver(), Commanded { order, answer }).await;
        answered.await.unwrap().map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_fixed_route_keeps_nothing_and_decommissions_no_node() {
        let (mut follower, _) = fixed();
        let refused = ordered(&mut follower, Order::Decommission(node("edge-1"))).await.unwrap_err();
        assert!(refused.contains("keeps nothing of nodes"), "{refused}");
    }

    #[tokio::test]
    async fn a_decommissioned_node_has_no_socket_though_it_connects_until_recommissioned() {
        let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = RedbStore::open(state.path().join("proxy.redb"), &driver()).unwrap();
        let sockets = NodeSockets::new(directory.path(), driver(), Nowhere, EndpointSettings::default());
        let open = async || {
            let roster = Roster::open(Some(store.clone())).await.unwrap();
            Follower::Sockets(BySocket::new(driver(), sockets.clone(), roster, Vec::new()))
        };
        let mut follower = open().await;
        let socket = directory.path().join("edge-1/csi.sock");
        let (peer, session) = (peer("edge-1"), SessionId { instance: 1, number: 1 });
        let (up, down) = (Change::Up { peer: peer.clone(), session }, Change::Down { peer, session });
        let (lose, undo) = (Order::Decommission(node("edge-1")), Order::Recommission(node("edge-1")));
        let unknown = ordered(&mut follower, lose.clone()).await.unwrap_err();
        assert!(unknown.contains("not known"), "{unknown}");
        follower.expect(std::slice::from_ref(&up));
        follower.take(&up).await;
        let connected = ordered(&mut follower, lose.clone()).await.unwrap_err();
        assert!(connected.contains("connected") && socket.exists(), "{connected}");

        follower.take(&down).await;
        ordered(&mut follower, lose.clone()).await.unwrap();
        let again = ordered(&mut follower, lose).await.unwrap();
        assert!(again.contains("already") && !socket.exists(), "{again}");
        // As after a restart of the proxy.
        let mut follower = open().await;
        follower.expect(std::slice::from_ref(&up));
        follower.take(&up).await;
        assert_eq!((follower.quarantined().nodes(), socket.exists()), (vec![(node("edge-1"), true)], false));
        ordered(&mut follower, undo.clone()).await.unwrap();
        assert_eq!((follower.quarantined().nodes(), socket.exists()), (vec![], true));
        let again = ordered(&mut follower, undo).await.unwrap();
        assert!(again.contains("was not decommissioned"), "{again}");
        sockets.shutdown(Duration::ZERO).await;
    }

    fn fixed() -> (Follower, Arc<Notify>) {
        let online = Arc::new(Notify::new());
        let node = NodeId::new("edge-1").unwrap();
        (Follower::Fixed { node, there: false, online: Arc::clone(&online) }, online)
    }

    fn peer(name: &str) -> PeerId {
        PeerId::new(name).unwrap()
    }

    #[tokio::test]
    async fn a_fixed_route_asks_its_driver_when_the_node_comes_and_after_each_list_that_has_it() {
        let (mut follower, online) = fixed();
        let session = SessionId { instance: 1, number: 1 };
        let up = |name| Change::Up { peer: peer(name), session };
        let down = |name| Change::Down { peer: peer(name), session };
        for (change, expected) in [
            (Change::Current, false),
            (up("edge-2"), false),
            (up("edge-1"), true),
            (Change::Current, true),
            (down("edge-2"), false),
            (Change::Current, true),
            (down("edge-1"), false),
            (Change::Current, false),
            (up("edge-1"), true),
        ] {
            follower.take(&change).await;
            assert_eq!(online.notified().now_or_never().is_some(), expected, "{change:?}");
        }
    }

    /// A hub with presence, and the way to it.
    fn hub() -> (Hub, memory::MemoryDialer) {
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().presence();
        (hub.start().unwrap(), dialer)
    }

    fn joins(dialer: &memory::MemoryDialer, name: &str) -> PeerBuilder {
        Peer::builder(peer(name)).dialer(Box::new(dialer.clone()))
    }

    #[tokio::test]
    async fn a_fixed_route_hears_of_its_node_from_the_hub() {
        let (_hub, dialer) = hub();
        let proxy = joins(&dialer, "proxy").start().unwrap();
        let (follower, online) = fixed();
        let (_command, commands) = mpsc::channel(1);
        let reachability = Reachability::new(Duration::from_secs(5));
        let following = tokio::spawn(follow(proxy, driver(), reachability.clone(), follower, commands));
        let service = ServiceName::new(SERVICE).unwrap();
        let _nodes = ["edge-2", "edge-1"]
            .map(|name| joins(&dialer, name).service(service.clone(), Silent).start().unwrap());
        timeout(Duration::from_secs(60), online.notified()).await.unwrap();
        let status = reachability.status(&NodeId::new("edge-1").unwrap());
        assert!(matches!(status, NodeStatus::Connected(_)), "{status:?}");
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_by_topology_takes_a_node_for_away_when_its_grace_is_over() {
        let (_hub, dialer) = hub();
        let proxy = joins(&dialer, "proxy").start().unwrap();
        let mut settings = TopologySettings::default();
        settings.discovers = true;
        let route =
            TopologyRouter::open(driver(), Vec::new(), MemoryStore::default(), settings).await.unwrap();
        let route = Arc::new(route);
        let follower = Follower::Topology(Arc::clone(&route));
        let (_command, commands) = mpsc::channel(1);
        let reachability = Reachability::new(Duration::from_secs(5));
        let following = tokio::spawn(follow(proxy, driver(), reachability, follower, commands));
        let node = joins(&dialer, "edge-1").service(ServiceName::new(SERVICE).unwrap(), Silent);
        let node = node.start().unwrap();
        let known = async |expected: usize| {
            while route.node_counts().0 != expected {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), known(1)).await.unwrap();
        node.close().await;
        let lost = Instant::now();
        // A node that is not known to have the driver is forgotten when it is away.
        timeout(Duration::from_secs(60), known(0)).await.unwrap();
        assert!(lost.elapsed() >= Duration::from_millis(4900), "{:?}", lost.elapsed());
        following.abort();
    }
}
