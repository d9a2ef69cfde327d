//! Links that are seldom pinged while no call waits: what they carry, and how a dead one is found.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::Kind;
use edge_transport::hub::HubBuilder;
use edge_transport::link::faulty::{self, Handle, Plan};
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::presence::{Change, Watch};
use edge_transport::{Peer, PeerId, Reason, ReplyEvent, ReplySender, Request, Service};
use session_common::raw::{Raw, hello};
use session_common::{Echo, Net, collect, echo, net, net_with, peer_id, service_name};
use tokio::time::{Instant, sleep, timeout};

const IDLE_PING: Duration = Duration::from_secs(60);

/// Dials links of a network where bytes are dear.
#[derive(Clone)]
struct Metered {
    inner: Arc<dyn Dialer>,
    last: Arc<Mutex<Option<Handle>>>,
    /// Frames that the dialing end has received.
    received: Arc<AtomicUsize>,
}

impl Metered {
    fn new(net: &Net) -> Self {
        Self { inner: Arc::clone(&net.dialer), last: Arc::default(), received: Arc::default() }
    }

    /// Lets nothing pass any more, without a notification of the ends.
    fn break_silently(&self) {
        let last = self.last.lock().unwrap();
        last.as_ref().unwrap().half_open();
    }

    fn peer(&self, name: &str) -> Peer {
        let builder = Peer::builder(peer_id(name)).dialer(Box::new(self.clone()));
        builder.service(service_name("echo"), Echo::default()).start().unwrap()
    }
}

#[async_trait::async_trait]
impl Dialer for Metered {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (link, handle) = faulty::wrap(self.inner.dial().await?, Plan::new(1));
        *self.last.lock().unwrap() = Some(handle);
        let received = Arc::clone(&self.received);
        let count = move |_: &Bytes| {
            received.fetch_add(1, Ordering::Relaxed);
        };
        Ok(link.with_idle_ping(IDLE_PING).observe(count))
    }

    fn address(&self) -> &str {
        "metered"
    }
}

/// A hub with a node on a metered link, and a caller.
async fn connected() -> (Net, Metered, Peer, Peer) {
    connected_with(|builder| builder).await
}

async fn connected_with(change: impl FnOnce(HubBuilder) -> HubBuilder) -> (Net, Metered, Peer, Peer) {
    let net = net_with(change);
    let metered = Metered::new(&net);
    let node = metered.peer("edge-1");
    node.connected().await.unwrap();
    let caller = net.caller("cloud").await;
    net.wait_for_peer("edge-1").await;
    (net, metered, node, caller)
}

fn is_connected(net: &Net) -> bool {
    net.hub.peers().iter().any(|peer| peer.peer.as_str() == "edge-1")
}

#[tokio::test(start_paused = true)]
async fn idle_link_carries_a_ping_and_its_answer_a_minute() {
    let (net, metered, _node, _caller) = connected().await;
    metered.received.store(0, Ordering::Relaxed);
    sleep(10 * IDLE_PING + Duration::from_secs(1)).await;
    assert_eq!(metered.received.load(Ordering::Relaxed), 10, "the hub answers, and pings never");
    assert!(is_connected(&net));
}

/// Sends one message and then nothing, like a watch.
struct Watched;

#[async_trait::async_trait]
impl Service for Watched {
    async fn call(&self, _: PeerId, _: Request, mut replies: ReplySender) {
        replies.send(Bytes::from_static(b"now")).await.unwrap();
        std::future::pending::<()>().await;
    }
}

#[tokio::test(start_paused = true)]
async fn watch_does_not_keep_a_link_busy() {
    let (net, metered, _node, caller) = connected().await;
    let watched = Metered::new(&net);
    let node = Peer::builder(peer_id("edge-2")).dialer(Box::new(watched.clone()));
    let node = node.service(service_name("echo"), Watched).start().unwrap();
    node.connected().await.unwrap();
    net.wait_for_peer("edge-2").await;
    let (mut watches, watching) = (Vec::new(), metered.peer("edge-3"));
    for peer in [&caller, &watching] {
        peer.connected().await.unwrap();
        let mut replies = peer.call(peer_id("edge-2"), echo("watch")).await.unwrap();
        assert!(matches!(replies.next().await, Some(Ok(ReplyEvent::Message(_)))));
        watches.push(replies);
    }
    // The last frames of the first replies are proven by a ping.
    sleep(Duration::from_secs(5)).await;
    for link in [&watched, &metered] {
        link.received.store(0, Ordering::Relaxed);
    }
    sleep(10 * IDLE_PING).await;
    // Two links of `metered`.
    assert_eq!(watched.received.load(Ordering::Relaxed), 10, "the node that is watched");
    assert_eq!(
        metered.received.load(Ordering::Relaxed),
        20,
        "the node that watches, and one that does nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn call_finds_a_half_open_link_within_10_s() {
    for deadline in [None, Some(Duration::from_secs(120))] {
        let (net, metered, _node, caller) = connected().await;
        sleep(Duration::from_secs(90)).await;
        metered.break_silently();
        sleep(Duration::from_secs(20)).await;
        assert!(is_connected(&net), "nothing has needed the link");
        let called = Instant::now();
        let replies = caller.call(peer_id("edge-1"), echo("x").remaining(deadline)).await.unwrap();
        assert_eq!(collect(replies).await.1, Err(Reason::LinkLost));
        assert!(called.elapsed() <= Duration::from_millis(10_100), "{:?}", called.elapsed());
    }
}

/// The first call is over before the silence is noticed, and its caller asks again.
#[tokio::test(start_paused = true)]
async fn short_calls_find_a_half_open_link_within_10_s() {
    let (_net, metered, _node, caller) = connected().await;
    sleep(Duration::from_secs(90)).await;
    metered.break_silently();
    let called = Instant::now();
    let last = loop {
        let request = echo("x").remaining(Duration::from_secs(2));
        let replies = caller.call(peer_id("edge-1"), request).await.unwrap();
        match collect(replies).await.1 {
            Err(Reason::Deadline) => sleep(Duration::from_secs(1)).await,
            other => break other,
        }
    };
    assert!(matches!(last, Err(Reason::LinkLost | Reason::PeerOffline)), "{last:?}");
    assert!(called.elapsed() <= Duration::from_secs(13), "{:?}", called.elapsed());
}

/// A node that lost its power says nothing. One that announces longer silence than any network needs is not waited for.
#[tokio::test(start_paused = true)]
async fn silent_node_is_down_after_two_and_a_half_pings() {
    for (announced, down_after) in [(60, 150), (u64::from(u32::MAX), 1500)] {
        let net = net();
        let mut node = Raw::dial(&net).await;
        let mut hello = hello("edge-1", 1, 1, 1);
        hello.idle_ping = Some(Duration::from_secs(announced));
        node.send(Kind::Hello(hello)).await;
        assert!(matches!(node.receive().await.unwrap().kind, Kind::Hello(_)));
        sleep(Duration::from_secs(down_after - 1)).await;
        assert!(is_connected(&net), "{announced}");
        sleep(Duration::from_secs(2)).await;
        assert!(!is_connected(&net), "{announced}");
    }
}

/// A node that lost its power comes back as another instance, and must not wait for the end of the silence.
#[tokio::test(start_paused = true)]
async fn restarted_node_replaces_a_silent_one() {
    let (net, metered, _node, _caller) = connected().await;
    metered.break_silently();
    sleep(Duration::from_secs(20)).await;
    let again = Metered::new(&net).peer("edge-1");
    timeout(Duration::from_secs(25), again.connected()).await.unwrap().unwrap();
}

/// As a proxy does when two hubs report one node: the node may have lost its power and be connected to the other hub.
#[tokio::test(start_paused = true)]
async fn watch_of_one_node_finds_that_it_is_silent() {
    let (net, metered, _node, caller) = connected_with(HubBuilder::presence).await;
    metered.break_silently();
    sleep(Duration::from_secs(20)).await;
    assert!(is_connected(&net));
    let mut watch = Watch::new(caller, service_name("echo")).only([peer_id("edge-1")]);
    let asked = Instant::now();
    while !watch.next().await.unwrap().iter().any(|change| matches!(change, Change::Down { .. })) {}
    assert!(asked.elapsed() <= Duration::from_millis(10_100), "{:?}", asked.elapsed());
}

/// A second instance is refused for as long as the first one answers, however often it asks.
#[tokio::test(start_paused = true)]
async fn second_instance_is_refused_while_the_first_answers() {
    let (net, metered, node, _caller) = connected().await;
    let other = Metered::new(&net).peer("edge-1");
    timeout(Duration::from_secs(600), other.connected()).await.unwrap_err();
    assert!(node.state().is_connected());
    assert!(net.hub.stats().fenced > 50, "{:?}", net.hub.stats());
    let pings = metered.received.load(Ordering::Relaxed);
    assert!(pings < 250, "{pings} frames: a challenge costs a ping, and none while frames arrive");
}
