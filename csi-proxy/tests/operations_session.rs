//! Operations behind a session: an answer counts as delivered when its requester has it, and not before.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::counting::{CountingDriver, create, delete};
use common::{driver_name, in_time};
use csi_proxy::operation::{Counts, Limits};
use csi_proxy::session_relay::SERVICE;
use csi_proxy::{Call, Dispatcher, Fault, MethodPath, Relay as _, RelayError, SessionRelay, SessionService};
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::memory::{self, MemoryDialer};
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::{Hub, Peer, PeerId, PeerSettings, ServiceName};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A way to the hub that can be shut, and opened again.
#[derive(Clone)]
struct Road {
    inner: MemoryDialer,
    open: Arc<watch::Sender<bool>>,
    last: Arc<Mutex<Option<Handle>>>,
}

impl Road {
    fn new(inner: MemoryDialer) -> Self {
        Self { inner, open: Arc::new(watch::Sender::new(true)), last: Arc::default() }
    }

    /// The link is cut, and no other can be made.
    async fn shut(&self, peer: &Peer) {
        self.open.send_replace(false);
        self.last.lock().unwrap().as_ref().unwrap().cut(Direction::Both);
        let mut state = peer.watch();
        in_time(state.wait_for(|state| !state.is_connected())).await.unwrap();
    }

    async fn open(&self, peer: &Peer) {
        self.open.send_replace(true);
        peer.connected().await.unwrap();
    }
}

#[async_trait]
impl Dialer for Road {
    async fn dial(&self) -> Result<Link, LinkError> {
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
        let (link, handle) = faulty::wrap(self.inner.dial().await?, Plan::new(1));
        *self.last.lock().unwrap() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        "a road"
    }
}

struct Net {
    _hub: Hub,
    _directory: tempfile::TempDir,
    near: (Peer, Road),
    far: (Peer, Road),
    relay: SessionRelay,
    dispatcher: Dispatcher,
    driver: CountingDriver,
}

async fn net() -> Net {
    net_with(PeerSettings::default()).await
}

async fn net_with(settings: PeerSettings) -> Net {
    let directory = tempfile::tempdir().unwrap();
    let (driver, address) = CountingDriver::holding(directory.path());
    let mut limits = Limits::default();
    // Longer than anything here is waited for.
    limits.wait = Duration::from_secs(60);
    let dispatcher = Dispatcher::new().with_operation_limits(limits).with_driver(driver_name(), address);
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start().unwrap();
    let roads = [(); 2].map(|()| Road::new(dialer.clone()));
    let [near, far] = roads.clone().map(Box::new);
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(near).settings(settings).start().unwrap();
    let service = ServiceName::new(SERVICE).unwrap();
    let far = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(far);
    let far = far.service(service, SessionService::new(dispatcher.clone())).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    let relay = SessionRelay::new(near.clone());
    let [near_road, far_road] = roads;
    let (near, far) = ((near, near_road), (far, far_road));
    Net { _hub: hub, _directory: directory, near, far, relay, dispatcher, driver }
}

impl Net {
    async fn asked(&self, call: Call) -> Result<bool, Fault> {
        let replies = self.relay.relay(call).await.map_err(RelayError::into_fault)?;
        Ok(replies.collect().await.1.is_ok())
    }

    /// Something that goes the whole way behind all that went before it.
    async fn round_trip(&self) {
        let mut call = create("unknown");
        call.method = MethodPath::new("/csi.v9.Later/Thing").unwrap();
        call.driver = "no-such-driver".parse().unwrap();
        assert!(matches!(self.asked(call).await, Err(Fault::DriverNotRegistered { .. })));
    }

    async fn until(&self, right: impl Fn(Counts) -> bool) {
        in_time(async {
            while !right(self.dispatcher.operation_counts()) {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_session_can_give_nobody_is_there_for_the_retry() {
    let net = net().await;
    let (relay, call) = (net.relay.clone(), create("pvc-1"));
    let asked = tokio::spawn(async move { relay.relay(call).await.map(drop) });
    net.driver.was_told("CreateVolume pvc-1", 1).await;
    asked.abort();
    assert!(asked.await.is_err());
    net.round_trip().await;
    net.driver.let_go(1);
    net.until(|counts| counts.kept == 1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
    net.until(|counts| counts == Counts::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_its_call_waits_for_its_turn_has_nothing_begun() {
    let net = net().await;
    let ask = |call: Call| {
        let relay = net.relay.clone();
        tokio::spawn(async move { relay.relay(call).await.map(drop) })
    };
    let running = ask(delete("v"));
    net.driver.was_told("DeleteVolume v", 1).await;
    let mut grow = delete("v");
    grow.method = MethodPath::new("/csi.v1.Controller/ControllerExpandVolume").unwrap();
    let waits = ask(grow);
    net.until(|counts| counts.waiting == 1).await;
    waits.abort();
    net.until(|counts| counts.waiting == 0).await;
    net.driver.let_go(2);
    running.await.unwrap().unwrap();
    net.until(|counts| counts == Counts::default()).await;
    assert_eq!(net.driver.executions("ControllerExpandVolume v"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_callers_time_is_there_for_the_retry() {
    let net = net().await;
    let call = create("pvc-1").with_remaining(Duration::from_secs(10));
    assert_eq!(net.asked(call).await, Err(Fault::Deadline { waited: Duration::from_secs(10) }));
    sleep(Duration::from_secs(1)).await;
    net.driver.let_go(1);
    net.until(|counts| counts.kept == 1).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
}

/// An answer leaves while a link on its way is cut, and its caller's time ends before there is another.
async fn lost_on_its_way(at_the_node: bool) {
    let net = net().await;
    let (peer, road) = if at_the_node { &net.far } else { &net.near };
    let (relay, call) = (net.relay.clone(), create("pvc-1").with_remaining(Duration::from_secs(10)));
    let asked = tokio::spawn(async move { relay.relay(call).await.map(drop) });
    net.driver.was_told("CreateVolume pvc-1", 1).await;
    road.shut(peer).await;
    net.driver.let_go(1);
    assert!(matches!(asked.await.unwrap(), Err(error) if matches!(error.fault(), Fault::Deadline { .. })));
    let counts = net.dispatcher.operation_counts();
    assert_eq!(counts.kept + counts.sent, 1, "the session had it, and nobody else");
    road.open(peer).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
    net.until(|counts| counts == Counts::default()).await;
    net.driver.let_go(1);
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 2, "what was delivered is not given again");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_leaves_a_node_whose_link_is_cut_is_there_for_the_retry() {
    lost_on_its_way(true).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_leaves_for_a_proxy_whose_link_is_cut_is_there_for_the_retry() {
    lost_on_its_way(false).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_goes_into_a_dead_link_is_there_for_the_retry() {
    for at_the_node in [true, false] {
        let net = net().await;
        let (relay, call) = (net.relay.clone(), create("pvc-1").with_remaining(Duration::from_secs(8)));
        let asked = tokio::spawn(async move { relay.relay(call).await.map(drop) });
        net.driver.was_told("CreateVolume pvc-1", 1).await;
        let (peer, road) = if at_the_node { &net.far } else { &net.near };
        road.last.lock().unwrap().as_ref().unwrap().half_open();
        net.driver.let_go(1);
        net.until(|counts| counts.sent == 1).await;
        assert!(peer.state().is_connected(), "nobody knows yet");
        assert!(
            matches!(asked.await.unwrap(), Err(error) if matches!(error.fault(), Fault::Deadline { .. }))
        );
        let mut state = peer.watch();
        in_time(state.wait_for(|state| !state.is_connected())).await.unwrap();
        peer.connected().await.unwrap();
        net.driver.let_go(1);
        assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
        assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1, "{at_the_node}");
        net.until(|counts| counts == Counts::default()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_came_for_in_time_is_there_for_the_retry_that_comes_later() {
    let net = net().await;
    let (relay, call) = (net.relay.clone(), create("pvc-1"));
    let asked = tokio::spawn(async move { relay.relay(call).await.map(drop) });
    net.driver.was_told("CreateVolume pvc-1", 1).await;
    let (peer, road) = &net.far;
    road.shut(peer).await;
    net.driver.let_go(1);
    assert!(matches!(asked.await.unwrap(), Err(error) if matches!(error.fault(), Fault::LinkLost { .. })));
    sleep(Duration::from_secs(600)).await;
    let counts = net.dispatcher.operation_counts();
    assert_eq!((counts.kept, counts.sent, counts.askers), (1, 0, 0), "the session has given it back");
    road.open(peer).await;
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.driver.executions("CreateVolume pvc-1"), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_an_answer_and_asks_for_the_same_at_once_has_it_done_again() {
    let net = net().await;
    net.driver.let_go(100);
    for times in 1..20 {
        assert_eq!(net.asked(delete("vol-1")).await, Ok(true));
        assert_eq!(net.driver.executions("DeleteVolume vol-1"), times);
    }
}

#[tokio::test(start_paused = true)]
async fn to_a_peer_that_resumes_nothing_an_answer_counts_as_delivered_when_it_is_sent() {
    let mut settings = PeerSettings::default();
    settings.session.resume_window = Duration::ZERO;
    let net = net_with(settings).await;
    net.driver.let_go(1);
    let before = Instant::now();
    assert_eq!(net.asked(create("pvc-1")).await, Ok(true));
    assert_eq!(net.dispatcher.operation_counts(), Counts::default());
    assert_eq!(before.elapsed(), Duration::ZERO);
}
