//! Calls over real sessions: two peers and a hub.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::counting::{CountingDriver, create};
use common::{Raw, driver_name, node};
use csi_proxy::advanced::reachability::NodeStatus;
use csi_proxy::{
    Call, CallId, ClockTerms, Dispatcher, Fault, MethodPath, NodeId, NodeSession, NodeWatch, Outcome,
    Reachability, Relay, Replies, RetryRelay, ServeCsi as _, SessionRelay, conformance,
};
use edge_transport::link::faulty::{self, Direction, Handle, Plan};
use edge_transport::link::memory;
use edge_transport::link::{Dialer, Link, LinkError};
use edge_transport::{Hub, Peer, PeerId};
use tokio::time::Instant;

/// A dialer to the hub whose last link can be cut.
#[derive(Clone)]
struct CuttableDialer(Arc<dyn Dialer>, Arc<Mutex<Option<Handle>>>);

#[async_trait]
impl Dialer for CuttableDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (link, handle) = faulty::wrap(self.0.dial().await?, Plan::new(1));
        *self.1.lock().unwrap() = Some(handle);
        Ok(link)
    }

    fn address(&self) -> &str {
        "a cable"
    }
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    Near,
    Far,
}

struct Net {
    hub: Hub,
    near: Peer,
    far: Peer,
    cables: [CuttableDialer; 2],
}

impl Net {
    /// Cuts a link, and waits until its peer has noticed.
    async fn cut(&self, cut: Cut) {
        let (peer, CuttableDialer(_, last)) = match cut {
            Cut::Near => (&self.near, &self.cables[0]),
            Cut::Far => (&self.far, &self.cables[1]),
        };
        let mut state = peer.watch();
        last.lock().unwrap().as_ref().unwrap().cut(Direction::Both);
        state.wait_for(|state| !state.is_connected()).await.unwrap();
    }
}

/// A proxy's peer, a hub and a node's peer that answers with `relay`.
async fn net(node: &str, relay: impl Relay + 'static) -> Net {
    let _ = Raw;
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(listener).allow_unauthenticated().presence().start().unwrap();
    let cables = [(); 2].map(|()| CuttableDialer(dialer.clone(), Arc::default()));
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(cables[0].clone()));
    let near = near.max_frame(8 << 20).start().unwrap();
    let far = Peer::builder(PeerId::new(node).unwrap()).dialer(Box::new(cables[1].clone()));
    let far = far.max_frame(8 << 20).serve_csi(relay).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    Net { hub, near, far, cables }
}

/// Keeps the net alive with its relay.
struct NetRelay(SessionRelay, #[allow(dead_code, reason = "kept alive")] Net);

#[async_trait]
impl Relay for NetRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        self.0.relay(call).await
    }
}

fn call(node: NodeId, body: impl Into<Bytes>) -> Call {
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    Call::new(CallId::new(), node, driver_name(), method, body.into())
}

async fn fault(relay: &impl Relay, call: Call) -> Fault {
    match relay.relay(call).await {
        Ok(replies) => replies.collect().await.1.fault().unwrap().clone(),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_relay_over_sessions_conforms() {
    let through = async |far: Arc<dyn Relay>| {
        let net = net(conformance::NODE, far).await;
        NetRelay(SessionRelay::new(net.near.clone()), net)
    };
    conformance::check(through).await.unwrap();
}

#[tokio::test]
async fn a_node_without_a_session_is_offline_at_once() {
    let net = net("edge-1", Dispatcher::new()).await;
    let relay = SessionRelay::new(net.near.clone());
    let other = NodeId::new("edge-2").unwrap();
    assert_eq!(fault(&relay, call(other.clone(), "")).await, Fault::NodeOffline { node: other });
    assert_eq!(fault(&relay, call(node(), "")).await, Fault::DriverNotRegistered { driver: driver_name() });
}

#[tokio::test]
async fn a_request_that_does_not_fit_was_never_sent() {
    let net = net("edge-1", Dispatcher::new()).await;
    let relay = SessionRelay::new(net.near.clone());
    let found = fault(&relay, call(node(), vec![0; 9 << 20])).await;
    assert!(matches!(found, Fault::RequestTooLarge { .. }), "{found:?}");
}

/// Never answers.
struct Silent(Arc<tokio::sync::Notify>);

#[async_trait]
impl Relay for Silent {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// A retrying relay, and the reachability of the nodes as presence reports it.
async fn retry(net: &Net) -> (RetryRelay<SessionRelay>, Reachability) {
    let reachability = Reachability::new(Duration::from_secs(5));
    let mut nodes = NodeWatch::new(net.near.clone(), &driver_name(), reachability.clone()).unwrap();
    tokio::spawn(async move { while nodes.next().await.is_some() {} });
    let relay = SessionRelay::new(net.near.clone());
    (RetryRelay::start(relay, reachability.clone(), ClockTerms::default()).await.unwrap(), reachability)
}

#[tokio::test]
async fn call_goes_only_to_its_session() {
    let net = net("edge-1", Dispatcher::new()).await;
    let (relay, (_, reachability)) = (SessionRelay::new(net.near.clone()), retry(&net).await);
    let there = loop {
        if let NodeStatus::Connected(session) = reachability.settled(&node()).await {
            break session;
        }
    };
    let to_session = |session| {
        let mut call = call(node(), "");
        call.session = Some(session);
        call
    };
    let found = fault(&relay, to_session(there)).await;
    assert_eq!(found, Fault::DriverNotRegistered { driver: driver_name() });
    let later = NodeSession { number: there.number + 1, ..there };
    for other in [later, NodeSession { instance: 7, number: 1 }] {
        let found = fault(&relay, to_session(other)).await;
        assert_eq!(found, Fault::WrongSession { node: node() });
    }
}

#[tokio::test(start_paused = true)]
async fn call_gets_its_answer_over_the_next_link() {
    for cut in [Cut::Near, Cut::Far] {
        let directory = tempfile::tempdir().unwrap();
        let (driver, address) = CountingDriver::holding(directory.path());
        let net = net("edge-1", Dispatcher::new().with_driver(driver_name(), address)).await;
        let (relay, reachability) = retry(&net).await;
        let open = tokio::spawn(async move { relay.relay(create("pvc-1")).await.unwrap().collect().await });
        driver.wait_for_executions("CreateVolume pvc-1", 1).await;
        net.cut(cut).await;
        // The answer arrives while no link exists.
        driver.release(1);
        assert!(open.await.unwrap().1.is_ok(), "{cut:?}");
        assert_eq!(driver.executions("CreateVolume pvc-1"), 1, "{cut:?}");
        assert!(matches!(reachability.status(&node()), NodeStatus::Connected(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn closed_node_is_offline_after_its_grace() {
    let net = net("edge-1", Dispatcher::new()).await;
    let (relay, reachability) = retry(&net).await;
    let found = fault(&relay, call(node(), "")).await;
    assert_eq!(found, Fault::DriverNotRegistered { driver: driver_name() });
    net.far.close().await;
    while let NodeStatus::Connected(_) = reachability.status(&node()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for waits in [Duration::from_secs(4)..Duration::from_secs(6), Duration::ZERO..Duration::from_secs(1)] {
        let began = Instant::now();
        assert_eq!(fault(&relay, call(node(), "")).await, Fault::NodeOffline { node: node() });
        assert!(waits.contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

/// A hub that reports no nodes is the cause of each failed call, and the fault says what it needs.
#[tokio::test(start_paused = true)]
async fn hub_without_presence_is_the_cause_of_a_failed_call() {
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let _hub = Hub::builder().listener(listener).allow_unauthenticated().start().unwrap();
    let dialer = CuttableDialer(dialer, Arc::default());
    let proxy = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(dialer)).start().unwrap();
    let relay = RetryRelay::over(proxy, &driver_name(), ClockTerms::default()).await.unwrap();
    let began = Instant::now();
    let fault = fault(&relay, call(node(), "")).await;
    assert!(matches!(&fault, Fault::HubUnreachable { reason } if reason.contains("presence()")), "{fault}");
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

/// A dialer to the preferred hub, which can be closed.
struct ClosableDialer(CuttableDialer, Arc<AtomicBool>);

#[async_trait]
impl Dialer for ClosableDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        if self.1.load(Ordering::Relaxed) { self.0.dial().await } else { Err(LinkError::Lost) }
    }

    fn address(&self) -> &str {
        "the first hub"
    }
}

/// A proxy that fails back to a preferred hub without an interruption has not lost the nodes of the previous hub: the
/// nodes have their full grace after each change.
#[tokio::test(start_paused = true)]
async fn failback_is_not_a_loss_of_nodes() {
    let net = net("edge-1", Dispatcher::new()).await;
    let (listener, dialer) = memory::listen("first", 16 << 20);
    let first = Hub::builder().listener(listener).allow_unauthenticated().presence();
    let _first = first.start().unwrap();
    let (cable, open) = (CuttableDialer(dialer, Arc::default()), Arc::new(AtomicBool::new(false)));
    let proxy = Peer::builder(PeerId::new("other").unwrap()).failback_interval(Duration::from_secs(1));
    let proxy = proxy.dialer(Box::new(ClosableDialer(cable.clone(), Arc::clone(&open))));
    let proxy = proxy.dialer(Box::new(net.cables[0].clone())).start().unwrap();
    let reachability = Reachability::new(Duration::from_secs(5));
    let mut nodes = NodeWatch::new(proxy.clone(), &driver_name(), reachability.clone()).unwrap();
    tokio::spawn(async move { while nodes.next().await.is_some() {} });
    let is_connected = || matches!(reachability.status(&node()), NodeStatus::Connected(_));
    for change in 1..=3 {
        while !is_connected() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        open.store(true, Ordering::Relaxed);
        while is_connected() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = reachability.status(&node());
        assert!(matches!(status, NodeStatus::Reconnecting { .. }), "change {change}: {status:?}");
        open.store(false, Ordering::Relaxed);
        cable.1.lock().unwrap().as_ref().unwrap().cut(Direction::Both);
    }
}

#[tokio::test(start_paused = true)]
async fn permanently_lost_link_ends_call_as_unknown() {
    let asked = Arc::new(tokio::sync::Notify::new());
    let net = net("edge-1", Silent(Arc::clone(&asked))).await;
    let relay = SessionRelay::new(net.near.clone());
    let open = tokio::spawn(async move { fault(&relay, call(node(), "")).await });
    asked.notified().await;
    net.hub.close().await;
    let found = open.await.unwrap();
    assert!(matches!(found, Fault::LinkLost { .. }), "{found:?}");
    assert_eq!(Outcome::from(found).code, csi_proxy::Code::UNAVAILABLE);
    drop(net.far);
}

#[tokio::test]
async fn the_callers_time_is_kept() {
    let net = net("edge-1", Silent(Arc::default())).await;
    let relay = SessionRelay::new(net.near.clone());
    let call = call(node(), "").with_remaining(Duration::from_millis(30));
    let found = fault(&relay, call).await;
    assert_eq!(found, Fault::Deadline { waited: Duration::from_millis(30) });
}
