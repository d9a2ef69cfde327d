//! Nodes that the hub reports, and commands of an operator.

use async_trait::async_trait;
use csi_proxy::{CSI_SERVICE, Call, Fault, MemoryStore, RedbStore, Relay, Replies, TopologyRouter};
use edge_transport::link::{Dialer, memory};
use edge_transport::peer::PeerBuilder;
use edge_transport::{Hub, Peer, PeerId, ReplySender, Request, Service, ServiceName};
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
async fn executed(follower: &mut Follower, action: Action) -> Result<String, String> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    follower.execute(&driver(), PendingAction { action, answer }).await;
    answered.await.unwrap().map_err(|error| error.to_string())
}

#[tokio::test]
async fn fixed_route_refuses_decommission() {
    let (mut follower, ..) = fixed();
    let refused = executed(&mut follower, Action::Decommission(node("edge-1"))).await.unwrap_err();
    assert!(refused.contains("stores no placements"), "{refused}");
}

#[tokio::test]
async fn decommissioned_node_has_no_socket_until_recommissioned() {
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = RedbStore::open(state.path().join("proxy.redb"), &driver()).unwrap();
    let sockets = NodeSockets::new(directory.path(), driver(), Nowhere);
    let open = async || {
        let roster = Roster::open(Some(store.clone())).await.unwrap();
        Follower::Sockets(BySocket::new(driver(), sockets.clone(), roster, Vec::new()))
    };
    let mut follower = open().await;
    let socket = directory.path().join("edge-1/csi.sock");
    let (up, down) = (NodeChange::Up(node("edge-1")), NodeChange::Down(node("edge-1")));
    let (lose, undo) = (Action::Decommission(node("edge-1")), Action::Recommission(node("edge-1")));
    let unknown = executed(&mut follower, lose.clone()).await.unwrap_err();
    assert!(unknown.contains("not known"), "{unknown}");
    follower.add_to_roster(std::slice::from_ref(&up));
    follower.apply(&up).await;
    let repaired = executed(&mut follower, Action::Repair("pvc-1".to_owned(), None)).await.unwrap_err();
    assert!(repaired.contains("stores no placements"), "{repaired}");
    let connected = executed(&mut follower, lose.clone()).await.unwrap_err();
    assert!(connected.contains("connected") && socket.exists(), "{connected}");

    follower.apply(&down).await;
    executed(&mut follower, lose.clone()).await.unwrap();
    let again = executed(&mut follower, lose).await.unwrap();
    assert!(again.contains("already") && !socket.exists(), "{again}");
    // As after a restart of the proxy.
    let mut follower = open().await;
    follower.add_to_roster(std::slice::from_ref(&up));
    follower.apply(&up).await;
    assert_eq!(
        (follower.decommissioned_nodes().nodes(), socket.exists()),
        (vec![(node("edge-1"), true)], false)
    );
    executed(&mut follower, undo.clone()).await.unwrap();
    assert_eq!((follower.decommissioned_nodes().nodes(), socket.exists()), (vec![], true));
    let again = executed(&mut follower, undo).await.unwrap();
    assert!(again.contains("was not decommissioned"), "{again}");
    sockets.shutdown(Duration::ZERO).await;
}

fn fixed() -> (Follower, Arc<Notify>, Arc<Notify>) {
    let (online, away) = <(Arc<Notify>, Arc<Notify>)>::default();
    let (node, connected) = (NodeId::new("edge-1").unwrap(), false);
    (Follower::Fixed { node, connected, online: Arc::clone(&online), away: Arc::clone(&away) }, online, away)
}

#[tokio::test]
async fn fixed_route_refreshes_when_the_node_is_away() {
    let (follower, _, away) = fixed();
    for (name, expected) in [("edge-2", false), ("edge-1", true)] {
        follower.away(&node(name)).await;
        assert_eq!(away.notified().now_or_never().is_some(), expected, "{name}");
    }
}

fn peer(name: &str) -> PeerId {
    PeerId::new(name).unwrap()
}

#[tokio::test]
async fn fixed_route_refreshes_when_the_node_connects() {
    let (mut follower, online, _) = fixed();
    let up = |name| NodeChange::Up(node(name));
    let down = |name| NodeChange::Down(node(name));
    for (change, expected) in [
        (NodeChange::Synced, false),
        (up("edge-2"), false),
        (up("edge-1"), true),
        (NodeChange::Synced, true),
        (down("edge-2"), false),
        (NodeChange::Synced, true),
        (down("edge-1"), false),
        (NodeChange::Synced, false),
        (up("edge-1"), true),
    ] {
        follower.apply(&change).await;
        assert_eq!(online.notified().now_or_never().is_some(), expected, "{change:?}");
    }
}

/// A hub with presence, and its address.
fn hub() -> (Hub, Arc<dyn Dialer>) {
    let (listener, dialer) = memory::listen("hub", 1 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().presence();
    (hub.start().unwrap(), dialer)
}

fn joins(dialer: &Arc<dyn Dialer>, name: &str) -> PeerBuilder {
    Peer::builder(peer(name)).dialer(Box::new(dialer.clone()))
}

fn watch(proxy: Peer, reachability: &Reachability) -> NodeWatch {
    NodeWatch::new(proxy, &driver(), reachability.clone()).unwrap()
}

#[tokio::test]
async fn fixed_route_follows_presence() {
    let (_hub, dialer) = hub();
    let proxy = joins(&dialer, "proxy").start().unwrap();
    let (follower, online, _) = fixed();
    let (_command, commands) = mpsc::channel(1);
    let reachability = Reachability::new(Duration::from_secs(5));
    let following =
        tokio::spawn(follow(watch(proxy, &reachability), driver(), reachability.clone(), follower, commands));
    let service = ServiceName::new(CSI_SERVICE).unwrap();
    let _nodes = ["edge-2", "edge-1"]
        .map(|name| joins(&dialer, name).service(service.clone(), Silent).start().unwrap());
    timeout(Duration::from_secs(60), online.notified()).await.unwrap();
    let status = reachability.status(&NodeId::new("edge-1").unwrap());
    assert!(matches!(status, NodeStatus::Connected(_)), "{status:?}");
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn topology_route_marks_a_node_offline_after_its_grace() {
    let (_hub, dialer) = hub();
    let proxy = joins(&dialer, "proxy").start().unwrap();
    let route = TopologyRouter::builder(driver(), []).with_discovery().open(MemoryStore::default()).await;
    let route = Arc::new(route.unwrap());
    let follower = Follower::Topology(Arc::clone(&route));
    let (_command, commands) = mpsc::channel(1);
    let reachability = Reachability::new(Duration::from_secs(5));
    let following =
        tokio::spawn(follow(watch(proxy, &reachability), driver(), reachability, follower, commands));
    let node = joins(&dialer, "edge-1").service(ServiceName::new(CSI_SERVICE).unwrap(), Silent);
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
