//! Presence: a hub reports connected peers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failing test panics")]

mod ends;
mod session_common;

use std::collections::BTreeSet;
use std::time::Duration;

use edge_transport::advanced::{HubSettings, PeerSettings};
use edge_transport::hub::{HubBuilder, Rules};
use edge_transport::presence::{Change, SERVICE, Watch};
use edge_transport::{Hub, Peer, PeerId, Reason, Request};
use session_common::{Echo, Net, net_with, peer_id, service_name};

/// A watcher and the peers that it knows.
struct Watcher {
    watch: Watch,
    connected: BTreeSet<PeerId>,
    lists: usize,
}

impl Watcher {
    fn new(peer: &Peer) -> Self {
        let watch = Watch::new(peer.clone(), service_name("echo"));
        Self { watch, connected: BTreeSet::new(), lists: 0 }
    }

    async fn step(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(60), self.watch.next());
        for change in next.await.expect("a change within a minute").unwrap() {
            match change {
                Change::Up { peer, .. } => drop(self.connected.insert(peer)),
                Change::Down { peer, .. } => assert!(self.connected.remove(&peer), "{peer} was up"),
                Change::Synced => self.lists += 1,
                // The slot of a watch that was dropped is not free yet.
                Change::Failed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads until exactly these peers are up.
    async fn expect_peers(&mut self, names: &[&str]) {
        let names: BTreeSet<_> = names.iter().map(|name| peer_id(name)).collect();
        while self.lists == 0 || self.connected != names {
            self.step().await;
        }
    }
}

fn presence_net() -> Net {
    net_with(HubBuilder::presence)
}

#[tokio::test(start_paused = true)]
async fn watcher_sees_peers_of_the_service_and_changes() {
    let net = presence_net();
    let (first, _) = net.edge("edge-1").await;
    let caller = net.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.expect_peers(&["edge-1"]).await;
    let _without_service = net.caller("other").await;
    let (_second, _) = net.edge("edge-2").await;
    watcher.expect_peers(&["edge-1", "edge-2"]).await;
    first.close().await;
    watcher.expect_peers(&["edge-2"]).await;
    assert_eq!(watcher.lists, 1, "only changes follow");
    assert_eq!((net.hub.peers().len(), net.hub.stats().peers), (3, 3), "the hub is not one of its peers");
}

#[tokio::test(start_paused = true)]
async fn hides_peers_that_the_watcher_may_not_call() {
    let rules = ["proxy=edge-*", "stranger=elsewhere"].map(|rule| rule.parse().unwrap());
    let net = net_with(|builder| builder.presence().policy(Rules::new(rules)));
    let (_edge, _) = net.edge("edge-1").await;
    let (_other, _) = net.edge("other-1").await;
    let (proxy, stranger) = (net.caller("proxy").await, net.caller("stranger").await);
    let (mut sees, mut blind) = (Watcher::new(&proxy), Watcher::new(&stranger));
    sees.expect_peers(&["edge-1"]).await;
    blind.expect_peers(&[]).await;
    let (_third, _) = net.edge("other-2").await;
    let (_fourth, _) = net.edge("edge-2").await;
    sees.expect_peers(&["edge-1", "edge-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_a_long_list_gets_a_new_list() {
    let net = presence_net();
    let mut edges = Vec::new();
    for number in 0..1000 {
        edges.push(net.edge(&format!("edge-{number}")).await.0);
    }
    // A reader with little credit, so that unread messages wait at the hub.
    let mut settings = PeerSettings::default();
    settings.session.credit = 1;
    let caller = net.caller_with("proxy", settings).await;
    let mut watcher = Watcher::new(&caller);
    while watcher.lists == 0 {
        watcher.step().await;
    }
    assert_eq!(watcher.connected.len(), 1000);
    // More events than a hub buffers for a reader: each peer connects and disconnects twice.
    for _ in 0..2 {
        for edge in std::mem::take(&mut edges) {
            edge.close().await;
        }
        for number in 0..1000 {
            edges.push(net.edge(&format!("edge-{number}")).await.0);
        }
    }
    for edge in edges.drain(10..) {
        edge.close().await;
    }
    let expected: Vec<_> = (0..10).map(|number| format!("edge-{number}")).collect();
    watcher.expect_peers(&expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn watcher_sees_missing_peers_after_a_hub_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.sock");
    let start = async || {
        let listener = ends::uds(&path).await;
        Hub::builder().listener(listener).presence().start().unwrap()
    };
    let peer = |name: &str, serves: bool| {
        let builder = Peer::builder(peer_id(name)).dialer(ends::dial_uds(&path));
        let builder = if serves { builder.service(service_name("echo"), Echo::default()) } else { builder };
        builder.start().unwrap()
    };
    let hub = start().await;
    let (first, second, proxy) = (peer("edge-1", true), peer("edge-2", true), peer("proxy", false));
    let mut watcher = Watcher::new(&proxy);
    watcher.expect_peers(&["edge-1", "edge-2"]).await;
    hub.close().await;
    first.close().await;
    let _hub = start().await;
    watcher.expect_peers(&["edge-2"]).await;
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn dropped_watches_free_their_slots_without_events() {
    let mut settings = HubSettings::default();
    settings.max_peers = 1;
    let net = net_with(|builder| builder.presence().settings(settings));
    let caller = net.caller("proxy").await;
    for _ in 0..3 {
        Watcher::new(&caller).expect_peers(&[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hub_with_watchers_drains_at_once() {
    let net = presence_net();
    let caller = net.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.expect_peers(&[]).await;
    let began = tokio::time::Instant::now();
    net.hub.drain("the end").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Sends a presence request as another implementation would, and returns the reason of its refusal.
async fn refused_to_watch(peer: &Peer) -> Reason {
    // The field `service` of a request: "echo".
    let request = Request::new(service_name(SERVICE), &b"\x0a\x04echo"[..]);
    let next = peer.call(peer.hub().unwrap(), request).await.unwrap().next().await.unwrap();
    next.expect_err("a refusal").reason()
}

/// A caller watches again and again and reads nothing. Few of its lists are in memory; those that it cancels leave at once, and
/// another caller has its list.
#[tokio::test(start_paused = true)]
async fn unread_lists_of_one_caller_have_limited_memory() {
    const IN_MEMORY: usize = 8;
    let net = presence_net();
    // More than fit into one message. The caller reads none.
    let mut nodes = Vec::new();
    for number in 0..600 {
        nodes.push(
            Peer::builder(peer_id(&format!("edge-{number}"))).service(service_name("echo"), Echo::default()),
        );
    }
    let mut connected = Vec::new();
    for node in nodes {
        let node = node.dialer(Box::new(net.dialer.clone())).start().unwrap();
        node.connected().await.unwrap();
        connected.push(node);
    }
    let mut settings = PeerSettings::default();
    settings.session.credit = 1;
    let hostile = net.caller_with("hostile/1", settings).await;
    let mut watches = Vec::new();
    for _ in 0..=IN_MEMORY {
        let request = Request::new(service_name(SERVICE), &b"\x0a\x04echo"[..]);
        watches.push(hostile.call(hostile.hub().unwrap(), request).await.unwrap());
    }
    let mut other = Watcher::new(&net.caller("other").await);
    while other.lists == 0 {
        other.step().await;
    }
    let mut last = watches.pop().unwrap();
    let early = tokio::time::timeout(Duration::from_secs(5), last.next()).await;
    assert!(early.is_err(), "a list more is in memory");
    let mut unread = watches.pop().unwrap();
    watches.clear();
    assert!(last.next().await.unwrap().is_ok(), "the cancelled ones have left");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(unread.next().await.unwrap().is_ok(), "the first message");
    assert_eq!(
        unread.next().await.unwrap().unwrap_err().reason(),
        Reason::Overloaded,
        "it was not read in time"
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_may_not_watch_and_callers_may() {
    let callers = Rules::callers([peer_id("proxy")]);
    let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
    let policies: [&dyn Fn(HubBuilder) -> HubBuilder; 3] = [
        &|builder| builder.policy(Rules::clients_only()),
        &|builder| builder.policy(callers.clone()),
        &|builder| builder.policy(rules.clone()),
    ];
    for (number, policy) in policies.into_iter().enumerate() {
        let net = net_with(|builder| policy(builder.presence()));
        let (node, _) = net.edge("edge-1").await;
        assert_eq!(refused_to_watch(&node).await, Reason::Forbidden);
        let [Change::Failed { cause }] = &Watcher::new(&node).watch.next().await.unwrap()[..] else {
            panic!("a failure");
        };
        assert!(cause.contains("the hub's policy must allow this peer to watch"), "{cause}");
        if number > 0 {
            // A node that omits its services is refused too where callers are named.
            let hiding = net.caller("edge-3").await;
            assert_eq!(refused_to_watch(&hiding).await, Reason::Forbidden);
        }
        assert!(net.hub.stats().forbidden > 0);
        let proxy = net.caller("proxy").await;
        let mut watcher = Watcher::new(&proxy);
        watcher.expect_peers(&["edge-1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn watch_of_some_peers_reports_no_others() {
    let rules = Rules::new(["a=edge-a*".parse().unwrap(), "b=edge-b*".parse().unwrap()]);
    let net = net_with(|builder| builder.presence().policy(rules));
    let (_there, _) = net.edge("edge-a-1").await;
    let (first, second) = (net.caller("a/all").await, net.caller("a/one").await);
    let other = net.caller("b").await;
    let (mut all, mut blind) = (Watcher::new(&first), Watcher::new(&other));
    let mut one = Watcher::new(&second);
    one.watch = one.watch.only([peer_id("edge-a-1")]);
    all.expect_peers(&["edge-a-1"]).await;
    one.expect_peers(&["edge-a-1"]).await;
    blind.expect_peers(&[]).await;
    let (_second, _) = net.edge("edge-a-2").await;
    let (_third, _) = net.edge("edge-b-1").await;
    all.expect_peers(&["edge-a-1", "edge-a-2"]).await;
    blind.expect_peers(&["edge-b-1"]).await;
    let (_again, _) = net.edge("edge-a-3").await;
    assert_eq!(one.connected.len(), 1);
}
