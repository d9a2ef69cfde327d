//! Calls over real sessions: two peers and a hub.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::{Raw, driver_name, node};
use csi_proxy::session_relay::SERVICE;
use csi_proxy::{
    Call, CallId, Dispatcher, Fault, MethodPath, NodeId, Outcome, Relay, RelayError, Replies, SessionRelay,
    SessionService, conformance,
};
use edge_transport::link::memory;
use edge_transport::{Hub, Peer, PeerId, PeerSettings, ServiceName};

struct Net {
    hub: Hub,
    near: Peer,
    far: Peer,
}

/// A proxy's peer, a hub and a node's peer that answers with `relay`.
async fn net(node: &str, relay: impl Relay + 'static) -> Net {
    let _ = Raw;
    let (listener, dialer) = memory::listen("hub", 16 << 20);
    let hub = Hub::builder().listener(Box::new(listener)).allow_unauthenticated().start().unwrap();
    let mut settings = PeerSettings::default();
    settings.session.max_frame = 8 << 20;
    let near = Peer::builder(PeerId::new("proxy").unwrap()).dialer(Box::new(dialer.clone()));
    let near = near.settings(settings.clone()).start().unwrap();
    let service = ServiceName::new(SERVICE).unwrap();
    let far = Peer::builder(PeerId::new(node).unwrap()).dialer(Box::new(dialer));
    let far = far.settings(settings).service(service, SessionService::new(relay)).start().unwrap();
    near.connected().await.unwrap();
    far.connected().await.unwrap();
    Net { hub, near, far }
}

/// Keeps the net alive with its relay.
struct Through(SessionRelay, #[allow(dead_code, reason = "kept alive")] Net);

#[async_trait]
impl Relay for Through {
    async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
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
        Err(error) => error.into_fault(),
    }
}

#[tokio::test]
async fn a_relay_over_sessions_conforms() {
    let through = async |far: Arc<dyn Relay>| {
        let net = net(conformance::NODE, far).await;
        Through(SessionRelay::new(net.near.clone()), net)
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
    async fn relay(&self, _: Call) -> Result<Replies, RelayError> {
        self.0.notify_one();
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_lost_under_a_call_and_does_not_come_back_ends_it_as_uncertain() {
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
