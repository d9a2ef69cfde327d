//! A hub tells who is there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::collections::BTreeSet;
use std::time::Duration;

use edge_transport::hub::{HubBuilder, HubSettings, NodesCallNobody, Rules};
use edge_transport::link::DialOptions;
use edge_transport::link::uds;
use edge_transport::presence::{Change, SERVICE, Watch};
use edge_transport::{Hub, Peer, PeerId, PeerSettings, Reason, Request};
use session_common::{Echo, Net, net_with, peer_id, service_name};

/// A watcher and what it knows.
struct Watcher {
    watch: Watch,
    there: BTreeSet<PeerId>,
    lists: usize,
}

impl Watcher {
    fn new(peer: &Peer) -> Self {
        let watch = Watch::new(peer.clone(), service_name("echo"));
        Self { watch, there: BTreeSet::new(), lists: 0 }
    }

    async fn step(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(60), self.watch.next());
        for change in next.await.expect("something within a minute").unwrap() {
            match change {
                Change::Up { peer, .. } => drop(self.there.insert(peer)),
                Change::Down { peer, .. } => assert!(self.there.remove(&peer), "{peer} was told to be there"),
                Change::Current => self.lists += 1,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads until these, and nobody else, are there.
    async fn sees(&mut self, names: &[&str]) {
        let names: BTreeSet<_> = names.iter().map(|name| peer_id(name)).collect();
        while self.lists == 0 || self.there != names {
            self.step().await;
        }
    }
}

fn telling() -> Net {
    net_with(HubBuilder::presence)
}

#[tokio::test(start_paused = true)]
async fn a_watcher_is_told_who_offers_the_service_and_who_comes_and_goes() {
    let net = telling();
    let (first, _) = net.edge("edge-1").await;
    let caller = net.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.sees(&["edge-1"]).await;
    let _without_service = net.caller("other").await;
    let (_second, _) = net.edge("edge-2").await;
    watcher.sees(&["edge-1", "edge-2"]).await;
    first.close().await;
    watcher.sees(&["edge-2"]).await;
    assert_eq!(watcher.lists, 1, "changes alone");
    assert_eq!((net.hub.peers().len(), net.hub.stats().peers), (3, 3), "the hub is none of its peers");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_of_peers_that_it_may_not_call() {
    let rules = ["proxy=edge-*", "stranger=elsewhere"].map(|rule| rule.parse().unwrap());
    let net = net_with(|builder| builder.presence().policy(Rules::new(rules)));
    let (_edge, _) = net.edge("edge-1").await;
    let (_other, _) = net.edge("other-1").await;
    let (proxy, stranger) = (net.caller("proxy").await, net.caller("stranger").await);
    let (mut sees, mut blind) = (Watcher::new(&proxy), Watcher::new(&stranger));
    sees.sees(&["edge-1"]).await;
    blind.sees(&[]).await;
    let (_third, _) = net.edge("other-2").await;
    let (_fourth, _) = net.edge("edge-2").await;
    sees.sees(&["edge-1", "edge-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_peers_are_told_in_pieces_and_a_reader_that_slept_through_the_rest_gets_a_new_list() {
    let net = telling();
    let mut edges = Vec::new();
    for number in 0..1000 {
        edges.push(net.edge(&format!("edge-{number}")).await.0);
    }
    // A reader that takes little ahead, so that what it does not read waits at the hub.
    let mut settings = PeerSettings::default();
    settings.session.credit = 1;
    let caller = net.caller_with("proxy", settings).await;
    let mut watcher = Watcher::new(&caller);
    while watcher.lists == 0 {
        watcher.step().await;
    }
    assert_eq!(watcher.there.len(), 1000);
    // More events than a hub keeps for a reader: each comes and goes twice.
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
    watcher.sees(&expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn after_another_life_of_the_hub_a_watcher_hears_who_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.sock");
    let start = || {
        let listener = uds::bind(&path, edge_transport::link::Limits::default()).unwrap();
        Hub::builder().listener(Box::new(listener)).presence().start().unwrap()
    };
    let peer = |name: &str, serves: bool| {
        let address: edge_transport::link::Address = format!("unix://{}", path.display()).parse().unwrap();
        let dialer = address.dialer(&DialOptions::default()).unwrap();
        let builder = Peer::builder(peer_id(name)).dialer(dialer).settings(PeerSettings::default());
        let builder = if serves { builder.service(service_name("echo"), Echo::default()) } else { builder };
        builder.start().unwrap()
    };
    let hub = start();
    let (first, second, proxy) = (peer("edge-1", true), peer("edge-2", true), peer("proxy", false));
    let mut watcher = Watcher::new(&proxy);
    watcher.sees(&["edge-1", "edge-2"]).await;
    hub.close().await;
    first.close().await;
    let _hub = start();
    watcher.sees(&["edge-2"]).await;
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn watches_that_were_left_make_room_for_others_though_nobody_comes_or_goes() {
    let mut settings = HubSettings::default();
    settings.max_peers = 1;
    let net = net_with(|builder| builder.presence().settings(settings));
    let caller = net.caller("proxy").await;
    for _ in 0..3 {
        Watcher::new(&caller).sees(&[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hub_with_watchers_drains_at_once() {
    let net = telling();
    let caller = net.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.sees(&[]).await;
    let began = tokio::time::Instant::now();
    net.hub.drain("the end").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Asks who is there, as a peer of another make would, and says why it is refused.
async fn refused_to_watch(peer: &Peer) -> Reason {
    // The field `service` of a question: "echo".
    let request = Request::new(service_name(SERVICE), &b"\x0a\x04echo"[..]);
    let next = peer.call(peer.hub().unwrap(), request).await.unwrap().next().await.unwrap();
    next.expect_err("a refusal").reason()
}

#[tokio::test(start_paused = true)]
async fn a_node_may_not_watch_and_a_caller_may() {
    let callers = Rules::callers([peer_id("proxy")]);
    let rules = Rules::new(["proxy=edge-*".parse().unwrap()]);
    let policies: [&dyn Fn(HubBuilder) -> HubBuilder; 3] = [
        &|builder| builder.policy(NodesCallNobody),
        &|builder| builder.policy(callers.clone()),
        &|builder| builder.policy(rules.clone()),
    ];
    for (number, policy) in policies.into_iter().enumerate() {
        let net = net_with(|builder| policy(builder.presence()));
        let (node, _) = net.edge("edge-1").await;
        assert_eq!(refused_to_watch(&node).await, Reason::Forbidden);
        if number > 0 {
            // It hides what it offers; where callers have names that is of no use.
            let hiding = net.caller("edge-3").await;
            assert_eq!(refused_to_watch(&hiding).await, Reason::Forbidden);
        }
        assert!(net.hub.stats().forbidden > 0);
        let proxy = net.caller("proxy").await;
        let mut watcher = Watcher::new(&proxy);
        watcher.sees(&["edge-1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_some_peers_hears_of_no_others() {
    let rules = Rules::new(["a=edge-a*".parse().unwrap(), "b=edge-b*".parse().unwrap()]);
    let net = net_with(|builder| builder.presence().policy(rules));
    let (_there, _) = net.edge("edge-a-1").await;
    let (first, second) = (net.caller("a/all").await, net.caller("a/one").await);
    let other = net.caller("b").await;
    let (mut all, mut blind) = (Watcher::new(&first), Watcher::new(&other));
    let mut one = Watcher::new(&second);
    one.watch = one.watch.only([peer_id("edge-a-1")]);
    all.sees(&["edge-a-1"]).await;
    one.sees(&["edge-a-1"]).await;
    blind.sees(&[]).await;
    let (_second, _) = net.edge("edge-a-2").await;
    let (_third, _) = net.edge("edge-b-1").await;
    all.sees(&["edge-a-1", "edge-a-2"]).await;
    blind.sees(&["edge-b-1"]).await;
    let (_again, _) = net.edge("edge-a-3").await;
    assert_eq!(one.there.len(), 1);
}
