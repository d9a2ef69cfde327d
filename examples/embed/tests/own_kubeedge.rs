//! The relay through an imitation of cloudcore's router and edgecore's serviceBus.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use csi_proxy::{Call, CallId, Fault, MethodPath, NodeId, Outcome, Relay, Replies, conformance};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

#[allow(dead_code, reason = "the tests do not start the program")]
#[path = "../src/bin/own_kubeedge_cloud.rs"]
mod cloud;
#[allow(dead_code, reason = "the tests do not start the program")]
#[path = "../src/bin/own_kubeedge_node.rs"]
mod node;

use cloud::KubeEdgeRelay;
use node::MAX_ANSWER;

const RULE: &str = "/default/csi";

/// What the router reports of a node without a session.
const NO_SESSION: &str = "cloudcore doesn't have session for node:edge-1";

/// What the router reports of an attempt without an answer in time.
const TIMEOUT: &str = "wait to get response time out";

/// cloudcore and edgecore.
#[derive(Clone)]
struct KubeEdge {
    /// The node's address.
    node: String,
    /// The reports of the first attempts, the first one last. An empty one is an answer without a body. Later
    /// attempts pass.
    reports: Arc<Mutex<Vec<&'static str>>>,
    /// Notified when a POST has ended with an answer.
    ended: Arc<Notify>,
    /// Loses all answers under way when it changes.
    cut: watch::Sender<()>,
}

impl KubeEdge {
    /// As `httpHandler` of the router: three attempts, and the reports of all if none passes.
    async fn post(State(this): State<Self>, request: Request) -> (StatusCode, Bytes) {
        let (head, body) = request.into_parts();
        if !head.uri.path().ends_with(RULE) {
            return (StatusCode::NOT_FOUND, "Request error".into());
        }
        let body = to_bytes(body, 12 << 20).await.unwrap();
        let mut failed = "All attempts fail:".to_owned();
        for number in 1..=3 {
            let report = this.reports.lock().unwrap().pop();
            let answer = match report {
                Some("") => Ok(Bytes::new()),
                Some(report) => Err(report.to_owned()),
                None => this.attempt(body.clone()).await,
            };
            match answer {
                Ok(answer) => {
                    this.ended.notify_one();
                    return (StatusCode::OK, answer);
                }
                Err(report) => failed.push_str(&format!("\n#{number}: {report}")),
            }
        }
        (StatusCode::INTERNAL_SERVER_ERROR, failed.into())
    }

    /// As serviceBus: its own reports are lost, and a long answer is cut.
    async fn attempt(&self, body: Bytes) -> Result<Bytes, String> {
        let mut cut = self.cut.subscribe();
        let answer = async {
            let stream = TcpStream::connect(&self.node).await.ok()?;
            let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            tokio::spawn(connection);
            let answer =
                client.send_request(Request::post("/csi").body(Body::from(body)).ok()?).await.ok()?;
            let status = answer.status();
            Some((status, to_bytes(Body::new(answer.into_body()), usize::MAX).await.ok()?))
        };
        let answer = tokio::select! {
            answer = answer => answer,
            _ = cut.changed() => None,
        };
        match answer {
            Some((StatusCode::OK, mut answer)) => Ok(answer.split_to(answer.len().min(MAX_ANSWER))),
            Some((_, answer)) => Err(String::from_utf8_lossy(&answer).into_owned()),
            None => Err(TIMEOUT.to_owned()),
        }
    }
}

async fn serve(router: axum::Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Connects a relay to `far`, whose calls may take `limit`.
async fn through(far: impl Relay + Clone + 'static, limit: Duration) -> (KubeEdgeRelay, KubeEdge) {
    through_rule(far, limit, RULE).await
}

async fn through_rule(
    far: impl Relay + Clone + 'static,
    limit: Duration,
    rule: &str,
) -> (KubeEdgeRelay, KubeEdge) {
    let node = serve(node::router(far, limit)).await;
    let (reports, ended, cut) = (Arc::default(), Arc::default(), watch::Sender::new(()));
    let kubeedge = KubeEdge { node, reports, ended, cut };
    let router = axum::Router::new().fallback(KubeEdge::post).with_state(kubeedge.clone());
    (KubeEdgeRelay::new(serve(router).await, rule), kubeedge)
}

/// A driver whose first answer to a method waits for a release.
#[derive(Clone, Default)]
struct Driver {
    calls: Arc<Mutex<Vec<Call>>>,
    begun: Arc<Notify>,
    release: Arc<Notify>,
}

#[async_trait]
impl Relay for Driver {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let is_first = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(call.clone());
            calls.len() == 1
        };
        if is_first && call.body == "wait" {
            self.begun.notify_one();
            self.release.notified().await;
        }
        let message = if call.body == "large" { vec![0; MAX_ANSWER].into() } else { call.body };
        Ok(Replies::unary(message, Outcome::ok()))
    }
}

fn call(body: &'static str) -> Call {
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    let node: NodeId = "edge-1".parse().unwrap();
    Call::new(CallId::new(), node, "d".parse().unwrap(), method, Bytes::from_static(body.as_bytes()))
        .with_remaining(Duration::from_secs(60))
}

#[tokio::test]
async fn the_relay_conforms() {
    let cut = watch::Sender::new(());
    let relay = async |far| {
        let (relay, kubeedge) = through(far, node::ANSWER).await;
        let mut from = cut.subscribe();
        tokio::spawn(async move {
            while from.changed().await.is_ok() {
                kubeedge.cut.send_replace(());
            }
        });
        relay
    };
    conformance::check(relay).unary_only().with_faults(async || cut.send_replace(())).await.unwrap();
}

#[tokio::test]
async fn a_running_call_is_asked_for_again_with_the_rest_of_its_time() {
    let driver = Driver::default();
    let (relay, _) = through(driver.clone(), Duration::from_millis(20)).await;
    let answer = relay.relay(call("wait")).await.unwrap().collect().await;
    assert_eq!(answer, (vec![Bytes::from_static(b"wait")], Outcome::ok()));
    let calls = driver.calls.lock().unwrap();
    assert_eq!((calls.len(), calls[0].id), (2, calls[1].id));
    assert!(calls[1].remaining < calls[0].remaining);
}

#[tokio::test]
async fn a_call_without_time_is_not_asked_for_again() {
    let (relay, _) = through(Driver::default(), Duration::from_millis(20)).await;
    let found = relay.relay(call("wait").with_remaining(Duration::from_millis(1))).await.unwrap_err();
    assert!(matches!(found, Fault::Deadline { .. }), "{found:?}");
}

#[tokio::test]
async fn a_node_is_offline_only_if_no_attempt_was_sent() {
    for (reports, expected) in [
        ([NO_SESSION; 3], "node_offline"),
        ([NO_SESSION, NO_SESSION, TIMEOUT], "link_lost"),
        // The router answers so if it fails itself.
        ([""; 3], "link_lost"),
    ] {
        let driver = Driver::default();
        let (relay, kubeedge) = through(driver.clone(), node::ANSWER).await;
        *kubeedge.reports.lock().unwrap() = reports.into();
        let found = relay.relay(call("x")).await.unwrap_err();
        assert_eq!((found.kind(), driver.calls.lock().unwrap().len()), (expected, 0), "{found}");
    }
}

#[tokio::test]
async fn a_repeated_post_gets_the_answer() {
    let (relay, kubeedge) = through(Driver::default(), node::ANSWER).await;
    *kubeedge.reports.lock().unwrap() = vec![TIMEOUT, NO_SESSION];
    let answer = relay.relay(call("x")).await.unwrap().collect().await;
    assert_eq!(answer, (vec![Bytes::from_static(b"x")], Outcome::ok()));
}

#[tokio::test]
async fn an_answer_that_would_be_cut_is_refused() {
    let (relay, _) = through(Driver::default(), node::ANSWER).await;
    let found = relay.relay(call("large")).await.unwrap_err();
    let expected = Fault::ReplyTooLarge { found: MAX_ANSWER as u64, max: node::MAX_MESSAGE as u64 };
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_stream_is_refused_before_it_is_sent() {
    let driver = Driver::default();
    let (relay, _) = through(driver.clone(), node::ANSWER).await;
    let mut stream = call("x");
    stream.method = MethodPath::new("/csi.v1.SnapshotMetadata/GetMetadataDelta").unwrap();
    let found = relay.relay(stream).await.unwrap_err();
    assert_eq!((found.kind(), driver.calls.lock().unwrap().len()), ("forbidden", 0), "{found}");
}

#[tokio::test]
async fn a_missing_rule_and_a_missing_router_are_named() {
    let (relay, _) = through_rule(Driver::default(), node::ANSWER, "/default/other").await;
    let found = relay.relay(call("x")).await.unwrap_err().to_string();
    assert!(found.contains("404") && found.contains("check the Rule for /default/other"), "{found}");
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let found = KubeEdgeRelay::new(free, RULE).relay(call("x")).await.unwrap_err();
    assert_eq!(found.kind(), "hub_unreachable");
    assert!(found.to_string().contains(&free.to_string()), "{found}");
}

/// cloudcore leaks a goroutine for each POST whose client has left.
#[tokio::test]
async fn a_post_ends_although_its_caller_has_left() {
    let driver = Driver::default();
    let (relay, kubeedge) = through(driver.clone(), node::ANSWER).await;
    tokio::select! {
        _ = relay.relay(call("wait")) => unreachable!("the driver waits"),
        () = driver.begun.notified() => {}
    }
    driver.release.notify_one();
    timeout(Duration::from_secs(10), kubeedge.ended.notified()).await.unwrap();
}
