//! A hub tells who is there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edge_transport::frame::Kind;
use edge_transport::hub::{AllowAll, HubBuilder, HubSettings, NodesCallNobody, OnlyCallers, Rules};
use edge_transport::link::DialOptions;
use edge_transport::link::uds;
use edge_transport::presence::{Change, GoneError, KeepGone, SERVICE, Watch};
use edge_transport::{Hub, Peer, PeerId, PeerSettings, Reason, Request};
use session_common::raw::{Raw, hello};
use session_common::{Echo, Net, net_with, peer_id, service_name};

/// A watcher and what it knows.
struct Watcher {
    watch: Watch,
    there: BTreeSet<PeerId>,
    gone: Vec<PeerId>,
    lists: usize,
}

impl Watcher {
    fn new(peer: &Peer) -> Self {
        let watch = Watch::new(peer.clone(), service_name("echo"));
        Self { watch, there: BTreeSet::new(), gone: Vec::new(), lists: 0 }
    }

    async fn step(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(60), self.watch.next());
        for change in next.await.expect("something within a minute").unwrap() {
            match change {
                Change::Up(peer) => drop(self.there.insert(peer)),
                Change::Down(peer) => assert!(self.there.remove(&peer), "{peer} was told to be there"),
                Change::Gone(peer) => self.gone.push(peer),
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
async fn who_is_gone_for_good_is_told_to_all_who_watch_and_to_those_who_come_later_until_it_is_back() {
    let net = telling();
    let (edge, _) = net.edge("edge-1").await;
    let caller = net.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.sees(&["edge-1"]).await;
    assert_eq!(net.hub.watchers_of(&peer_id("edge-1")), [peer_id("proxy")]);
    let connected = net.hub.declare_gone(&peer_id("edge-1")).await;
    assert_eq!(connected, Err(GoneError::Connected { peer: peer_id("edge-1") }));
    edge.close().await;
    watcher.sees(&[]).await;
    let mut reports = net.hub.reports();
    net.hub.declare_gone(&peer_id("edge-1")).await.unwrap();
    while watcher.gone.is_empty() {
        watcher.step().await;
    }
    watcher.watch.report(&watcher.gone[0], true, "released 3 rows").await.unwrap();
    let report = reports.recv().await.unwrap();
    assert_eq!((report.from, report.peer, report.done), (peer_id("proxy"), peer_id("edge-1"), true));
    assert_eq!(report.words, "released 3 rows");

    let later = net.caller("proxy-2").await;
    let mut late = Watcher::new(&later);
    late.sees(&[]).await;
    assert_eq!(late.gone, [peer_id("edge-1")]);
    let (_back, _) = net.edge("edge-1").await;
    let last = net.caller("proxy-3").await;
    let mut last = Watcher::new(&last);
    last.sees(&["edge-1"]).await;
    assert!(last.gone.is_empty());
}

#[tokio::test(start_paused = true)]
async fn watches_that_were_left_make_room_for_others_and_count_no_more_though_nobody_comes_or_goes() {
    let mut settings = HubSettings::default();
    settings.max_peers = 1;
    let net = net_with(|builder| builder.presence().settings(settings));
    let caller = net.caller("proxy").await;
    for _ in 0..3 {
        Watcher::new(&caller).sees(&[]).await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(net.hub.watchers_of(&peer_id("edge-1")), []);
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

#[tokio::test(start_paused = true)]
async fn a_hub_that_tells_nobody_who_is_there_declares_nobody_gone() {
    let without: [&dyn Fn(HubBuilder) -> HubBuilder; 2] = [
        &|builder| builder,
        // It answers something, but not this.
        &|builder| builder.service(service_name("other"), AllowAll, Echo::default()),
    ];
    for change in without {
        let net = net_with(change);
        let refused = net.hub.declare_gone(&peer_id("edge-1")).await.unwrap_err();
        assert_eq!(refused, GoneError::NoPresence);
        assert!(refused.to_string().contains("build the hub with `presence`"), "{refused}");
    }
}

/// Asks who is there, as a peer of another make would, and says why it is refused.
async fn refused_to_watch(peer: &Peer) -> Reason {
    // The field `service` of a question: "echo".
    let request = Request::new(peer.hub().unwrap(), service_name(SERVICE), &b"\x0a\x04echo"[..]);
    let next = peer.call(request).await.unwrap().next().await.unwrap();
    next.expect_err("a refusal").reason()
}

#[tokio::test(start_paused = true)]
async fn a_node_may_neither_watch_nor_report_and_holds_up_nobody_who_declares_another_gone() {
    let callers = OnlyCallers::new([peer_id("proxy")]);
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
        let mut reports = net.hub.reports();
        let false_report = Watch::new(node.clone(), service_name("echo"));
        assert!(false_report.report(&peer_id("edge-2"), false, "no").await.is_err());
        net.hub.declare_gone(&peer_id("edge-2")).await.unwrap();
        assert!(reports.try_recv().is_err());
        assert!(net.hub.watchers_of(&peer_id("edge-2")).is_empty());
        let proxy = net.caller("proxy").await;
        let mut watcher = Watcher::new(&proxy);
        watcher.sees(&["edge-1"]).await;
        assert_eq!(watcher.gone, [peer_id("edge-2")]);
        assert_eq!(net.hub.watchers_of(&peer_id("edge-2")), [peer_id("proxy")]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_not_call_a_peer_and_who_did_not_ask_for_it_is_not_told_that_it_is_gone() {
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
    assert_eq!(net.hub.watchers_of(&peer_id("edge-a-9")), [peer_id("a/all")]);
    assert_eq!(net.hub.watchers_of(&peer_id("edge-a-1")), ["a/all", "a/one"].map(peer_id));
    net.hub.declare_gone(&peer_id("edge-a-9")).await.unwrap();
    // Told after it, so that what was to be told before has been.
    let (_second, _) = net.edge("edge-a-2").await;
    let (_third, _) = net.edge("edge-b-1").await;
    all.sees(&["edge-a-1", "edge-a-2"]).await;
    blind.sees(&["edge-b-1"]).await;
    assert_eq!((all.gone.len(), blind.gone.len()), (1, 0));
    let (_again, _) = net.edge("edge-a-1").await;
    assert_eq!((one.there.len(), one.gone.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_report_says_does_nothing_to_the_terminal_of_who_reads_it() {
    let net = telling();
    let caller = net.caller("proxy").await;
    let mut reports = net.hub.reports();
    let watch = Watch::new(caller, service_name("echo"));
    watch.report(&peer_id("edge-1"), true, "a\x1b[2Jb\nc").await.unwrap();
    assert_eq!(reports.recv().await.unwrap().words, "a [2Jb c");
}

/// Keeps in memory, and fails when it is told to.
#[derive(Clone, Default)]
struct Kept {
    peers: Arc<Mutex<BTreeSet<PeerId>>>,
    failing: Arc<AtomicBool>,
}

impl KeepGone for Kept {
    fn keep(&self, gone: &BTreeSet<PeerId>) -> io::Result<()> {
        // The worst of failures: what is kept is new all the same.
        self.peers.lock().unwrap().clone_from(gone);
        if self.failing.load(SeqCst) { Err(io::Error::other("disk full")) } else { Ok(()) }
    }
}

impl Kept {
    fn names(&self) -> Vec<String> {
        self.peers.lock().unwrap().iter().map(ToString::to_string).collect()
    }

    fn hub(&self) -> Net {
        let before = self.peers.lock().unwrap().clone();
        net_with(|builder| builder.presence_keeping(before, self.clone()))
    }
}

#[tokio::test]
async fn the_next_life_of_a_hub_tells_who_is_gone_until_it_is_back_or_that_is_taken_back() {
    let kept = Kept::default();
    let hub = kept.hub();
    assert!(hub.hub.keeps_gone() && !telling().hub.keeps_gone());
    for name in ["edge-1", "edge-2", "edge-3"] {
        hub.hub.declare_gone(&peer_id(name)).await.unwrap();
    }
    assert_eq!(kept.names(), ["edge-1", "edge-2", "edge-3"]);
    hub.hub.close().await;

    let hub = kept.hub();
    let caller = hub.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.sees(&[]).await;
    assert_eq!(watcher.gone, ["edge-1", "edge-2", "edge-3"].map(peer_id));
    assert_eq!(hub.hub.retract_gone(&peer_id("edge-2")).await, Ok(true));
    assert_eq!(hub.hub.retract_gone(&peer_id("edge-2")).await, Ok(false));
    let (_back, _) = hub.edge("edge-1").await;
    watcher.sees(&["edge-1"]).await;
    assert_eq!((kept.names(), hub.hub.declared_gone()), (vec!["edge-3".to_owned()], vec![peer_id("edge-3")]));
    assert_eq!((hub.hub.stats().gone, hub.hub.stats().returned), (1, 1));
    hub.hub.close().await;

    let hub = kept.hub();
    let caller = hub.caller("proxy").await;
    let mut watcher = Watcher::new(&caller);
    watcher.sees(&[]).await;
    assert_eq!(watcher.gone, [peer_id("edge-3")]);
}

/// Were it let in, the hub's next life would tell that it is gone, and what is made on it by then would be forgotten.
#[tokio::test]
async fn a_peer_that_is_gone_or_may_be_kept_as_gone_is_not_let_in_before_the_disk_knows_that_it_is_back() {
    let kept = Kept::default();
    let net = kept.hub();
    net.hub.declare_gone(&peer_id("edge-1")).await.unwrap();
    kept.failing.store(true, SeqCst);
    let doubtful = net.hub.declare_gone(&peer_id("edge-2")).await.unwrap_err();
    assert!(matches!(&doubtful, GoneError::NotKept { .. }), "{doubtful:?}");
    assert_eq!(net.hub.declared_gone(), [peer_id("edge-1")], "nobody is told of the other one");
    let failed = net.hub.retract_gone(&peer_id("edge-1")).await.unwrap_err();
    assert!(matches!(&failed, GoneError::NotTakenBack { .. }), "{failed:?}");

    for name in ["edge-1", "edge-2"] {
        let mut raw = Raw::dial(&net).await;
        raw.send(Kind::Hello(hello(name, 1, 1, 1))).await;
        let refusal = raw.refusal().await;
        assert!(refusal.contains("disk full") && refusal.contains("try again"), "{refusal}");
    }
    assert!(net.hub.peers().is_empty());
    kept.failing.store(false, SeqCst);
    let (_first, _) = net.edge("edge-1").await;
    let (_second, _) = net.edge("edge-2").await;
    assert_eq!(kept.names(), [""; 0]);
    assert_eq!(net.hub.stats().returned, 1, "the other one was never gone");
}

#[tokio::test(start_paused = true)]
async fn an_older_life_of_a_peer_that_is_gone_is_refused_and_takes_nothing_back() {
    let kept = Kept::default();
    let net = kept.hub();
    let mut latest = Raw::dial(&net).await;
    latest.send(Kind::Hello(hello("edge-1", 5, 1, 1))).await;
    assert!(matches!(latest.receive().await.unwrap().kind, Kind::Hello(_)));
    drop(latest);
    let declared = async {
        while net.hub.declare_gone(&peer_id("edge-1")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), declared).await.expect("its link is gone");
    let mut older = Raw::dial(&net).await;
    older.send(Kind::Hello(hello("edge-1", 4, 1, 1))).await;
    let refusal = older.refusal().await;
    assert!(refusal.contains('5'), "{refusal}");
    assert_eq!((kept.names(), net.hub.stats().returned), (vec!["edge-1".to_owned()], 0));
    assert_eq!(net.hub.stats().fenced, 1);
}
