//! Conformance of the relays of this crate, and layers over a failing relay.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{driver_name, framed, node, raw_call};
use csi_proxy::monitor::{Monitored, Monitors};
use csi_proxy::{
    Call, CallId, ClockTerms, Endpoint, Fault, FaultyRelay, InjectedFault, MethodPath, NodeId, NodeSegment,
    NodeSession, Outcome, Reachability, Relay, Replies, Reply, RetryRelay, Router, SocketAddress,
    TopologyRelay, conformance,
};
use tower::{BoxError, ServiceBuilder};

#[tokio::test]
async fn faulty_relay_without_script_conforms() {
    conformance::check(async |far| FaultyRelay::new(far, [])).await.unwrap();
}

/// Time is paused, since the calls that fail on purpose are retried after pauses.
#[tokio::test(start_paused = true)]
async fn retry_relay_conforms() {
    let reachability = Reachability::new(Duration::from_secs(5));
    let hub = reachability.add_hub();
    hub.connected();
    let node = NodeId::new(conformance::NODE).unwrap();
    hub.node_up(&node, NodeSession { instance: 1, number: 1 });
    hub.synced();
    let retry = async |far| RetryRelay::start(far, reachability, ClockTerms::default()).await.unwrap();
    conformance::check(retry).await.unwrap();
}

#[tokio::test]
async fn a_relay_behind_tower_layers_conforms() {
    let layered = async |far| layered(far, Duration::from_secs(30));
    conformance::check(layered).await.unwrap();
}

/// A timeout and a concurrency limit around a relay.
fn layered(far: impl Relay + 'static, waited: Duration) -> impl Relay {
    let layers = ServiceBuilder::new()
        .map_err(move |error: BoxError| match error.downcast::<Fault>() {
            Ok(fault) => *fault,
            Err(_) => Fault::Deadline { waited },
        })
        .concurrency_limit(64)
        .timeout(waited);
    csi_proxy::tower::relay(layers.service(csi_proxy::tower::service(far)))
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_a_relay_is_a_deadline() {
    let waited = Duration::from_secs(30);
    let lost = Fault::LinkLost { reason: "cut".to_owned() };
    let relay = layered(FaultyRelay::new(Silent, [InjectedFault::Lost(lost.clone())]), waited);
    for fault in [lost, Fault::Deadline { waited }] {
        let method = MethodPath::new("/a/b").unwrap();
        let call = Call::new(CallId::new(), node(), driver_name(), method, Bytes::new());
        assert_eq!(relay.relay(call).await.unwrap_err(), fault);
    }
}

struct Silent;

#[async_trait::async_trait]
impl Relay for Silent {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn the_layers_of_an_edge_shim_conform() {
    let segment = NodeSegment::of_driver(node());
    let layers = async |far| {
        let located = TopologyRelay::new(far, segment.clone());
        Monitored::new(located, Monitors::default())
    };
    conformance::check(layers).await.unwrap();
}

/// Answers every call with the same replies.
struct ConstantAnswer(fn() -> Replies);

#[async_trait::async_trait]
impl Relay for ConstantAnswer {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        Ok((self.0)())
    }
}

#[tokio::test]
async fn unary_ok_needs_exactly_one_message() {
    type Answer = fn() -> Replies;
    let answers: [(&str, Answer); 3] = [
        ("no message", || Replies::outcome(Outcome::ok())),
        ("no message, in parts", || Replies::stream(tokio_stream::iter([Reply::End(Outcome::ok())]))),
        ("two messages", || {
            let message = || Reply::Message(Bytes::from_static(b"1"));
            Replies::stream(tokio_stream::iter([message(), message(), Reply::End(Outcome::ok())]))
        }),
    ];
    for (what, answer) in answers {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let address = SocketAddress::new(socket.to_str().unwrap()).unwrap();
        let endpoint = Endpoint::new(driver_name(), Router::fixed(node()), ConstantAnswer(answer));
        let serving = endpoint.serve(address).await.unwrap();
        let seen = raw_call(&socket, "/csi.v1.Controller/CreateVolume", &[], framed(&[])).await.unwrap();
        assert_eq!(seen.code(), Some(14), "{what}: {seen:?}");
        serving.shutdown(Duration::ZERO).await;
    }
}

struct ThreeMessages;

#[async_trait::async_trait]
impl Relay for ThreeMessages {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        let messages = [&b"1"[..], b"2", b"3"].map(|message| Reply::Message(Bytes::from_static(message)));
        let parts = messages.into_iter().chain([Reply::End(Outcome::ok())]);
        Ok(Replies::stream(tokio_stream::iter(parts)))
    }
}

#[tokio::test]
async fn faulty_relay_follows_its_script() {
    let fault = Fault::LinkLost { reason: "cut".to_owned() };
    let script = [
        InjectedFault::Lost(fault.clone()),
        InjectedFault::AnswerLost(fault.clone()),
        InjectedFault::Cut { after: 2, fault: fault.clone() },
        InjectedFault::Pass,
    ];
    let relay = FaultyRelay::new(ThreeMessages, script);
    let mut found = Vec::new();
    for _ in 0..5 {
        let method = MethodPath::new("/a/b").unwrap();
        let call = Call::new(CallId::new(), node(), driver_name(), method, Bytes::new());
        let (messages, outcome) = match relay.relay(call).await {
            Ok(replies) => replies.collect().await,
            Err(error) => (Vec::new(), error.into()),
        };
        found.push((messages.len(), outcome.fault().is_some()));
    }
    assert_eq!(found, [(0, true), (0, true), (2, true), (3, false), (3, false)]);
}
