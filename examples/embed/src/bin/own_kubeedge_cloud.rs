//! A CSI socket in the cloud whose calls are messages of KubeEdge 1.23. `own_kubeedge_node.rs` is the side of the node.
//!
//! cloudcore's module `router` makes a message of each POST that it receives, and sends it over the websocket of the node.
//! edgecore's module `serviceBus` makes a POST to a port of the node of it, and the answer returns as a message. Both are off
//! by default: `modules.router: {enable: true, address: 127.0.0.1}` and `modules.serviceBus: {enable: true}`. The rule is:
//!
//! ```yaml
//! apiVersion: rules.kubeedge.io/v1
//! kind: RuleEndpoint
//! metadata: {name: csi-cloud, namespace: default}
//! spec: {ruleEndpointType: rest}
//! ---
//! apiVersion: rules.kubeedge.io/v1
//! kind: RuleEndpoint
//! metadata: {name: csi-node, namespace: default}
//! spec: {ruleEndpointType: servicebus, properties: {service_port: "9061"}}
//! ---
//! apiVersion: rules.kubeedge.io/v1
//! kind: Rule
//! metadata: {name: csi, namespace: default}
//! spec: {source: csi-cloud, sourceResource: {path: /csi}, target: csi-node, targetResource: {path: /csi}}
//! ```
//!
//! Beside cloudcore:
//! `cargo run -p embed --bin own_kubeedge_cloud -- 127.0.0.1:9443 /default/csi edge-1 vendor.csi unix:///csi/csi.sock`.
//! **Each process that can connect to the router commands the driver**: the router has neither TLS nor a password.
//!
//! Limits of KubeEdge, and what this example does about them:
//!
//! - serviceBus ends a POST after 10 s, and its report does not arrive at the router. So the node answers `RUNNING` after
//!   8 s, and the cloud posts the same call again. A change continues meanwhile. A read begins again, so one that takes longer
//!   than 8 s ends with its deadline.
//! - The router repeats a POST twice if the answer is not 200, or if none arrives in `restTimeout` (60 s). So the node always
//!   answers 200, and the dispatcher begins a call once. A node whose connection is lost, but not yet its session, costs a call
//!   three times `restTimeout`, or its deadline.
//! - serviceBus cuts an answer after 5,000,000 bytes. So a longer one is `ReplyTooLarge`.
//! - A POST has one answer. So a method with a stream of answers is refused before it is sent.
//! - The router never frees a POST whose client has left. So a POST ends after its caller, and no call is cancelled.
//! - At log level 4 cloudcore and edgecore log the payloads, which have the secrets of calls. `seal.rs` of nats-bus seals them.
//! - edgecore sends at most `messageQPS` messages in a second, 30 by default. Further answers wait.
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode, header::HOST};
use csi_proxy::{Call, Endpoint, Fault, NodeId, Relay, Replies, Router, bus};
use futures_util::stream;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The router answers after this time in any case: three times its default `restTimeout`, and two pauses of 1 s.
const ROUTER: Duration = Duration::from_secs(190);

/// The longest body that serviceBus passes on (`maxBodySize`).
const MAX_ANSWER: usize = 5_000_000;

/// The answer of the node while a call runs. The payloads of `csi_proxy::bus` begin with another byte.
const RUNNING: &[u8] = b"running";

/// The only service whose methods have a stream of answers.
const STREAMS: &str = "csi.v1.SnapshotMetadata";

/// What the router reports of an attempt that it has not sent.
const NOT_SENT: [&str; 2] = ["cloudcore doesn't have session for node:", "failed to get node:"];

/// Posts calls to the router of cloudcore.
pub(crate) struct KubeEdgeRelay {
    /// The router's `host:port`.
    router: String,
    /// `/NAMESPACE/PATH` of the rule.
    rule: String,
}

// ANCHOR: embed
#[async_trait]
impl Relay for KubeEdgeRelay {
    async fn relay(&self, mut call: Call) -> Result<Replies, Fault> {
        if call.method.service() == STREAMS {
            let reason = format!("{} has a stream of answers; KubeEdge passes one", call.method);
            return Err(Fault::Forbidden { reason });
        }
        let (begun, limit) = (Instant::now(), call.remaining);
        loop {
            let part = self.post(&call.node, bus::request(&call)?).await?;
            if part != RUNNING {
                return bus::replies(stream::iter([Ok(part)]), || ()).await;
            }
            // The same call: the dispatcher joins the running operation.
            call.remaining = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if call.remaining == Some(Duration::ZERO) {
                return Err(Fault::Deadline { waited: begun.elapsed() });
            }
        }
    }
}
// ANCHOR_END: embed

impl KubeEdgeRelay {
    pub(crate) fn new(router: impl ToString, rule: &str) -> Self {
        Self { router: router.to_string(), rule: rule.to_owned() }
    }

    /// Posts a request to a node. Dropping the future does not end a POST that is sent, which the router would never free.
    async fn post(&self, node: &NodeId, request: Bytes) -> Result<Bytes, Fault> {
        let from = |what: &str| format!("the router of cloudcore at {}: {what}", self.router);
        let unreachable = |error: &dyn Error| Fault::HubUnreachable { reason: from(&error.to_string()) };
        let lost = |what: &str| Fault::LinkLost { reason: from(what) };
        let stream = TcpStream::connect(&self.router).await.map_err(|error| unreachable(&error))?;
        let (mut client, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
        let post = Request::post(format!("/{node}{}", self.rule)).header(HOST, &self.router);
        let post = post.body(Body::from(request)).map_err(|error| unreachable(&error))?;
        tokio::spawn(connection);
        let answer = tokio::spawn(timeout(ROUTER, async move {
            let (head, body) =
                client.send_request(post).await.map_err(|error| error.to_string())?.into_parts();
            let body = to_bytes(Body::new(body), MAX_ANSWER).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((head.status, body))
        }));
        let answer = answer.await.map_err(|error| lost(&error.to_string()))?;
        let answer = answer.map_err(|_| lost(&format!("no answer within {ROUTER:?}")))?;
        let (status, body) = answer.map_err(|error| lost(&error))?;
        if status == StatusCode::OK && !body.is_empty() {
            return Ok(body);
        }
        let said = String::from_utf8_lossy(&body);
        // A line for each attempt.
        let mut attempts = said.lines().filter(|line| line.starts_with('#')).peekable();
        let is_sent = |line: &str| !NOT_SENT.iter().any(|reason| line.contains(reason));
        if attempts.peek().is_some() && !attempts.any(is_sent) {
            return Err(Fault::NodeOffline { node: node.clone() });
        }
        let said: String = said.chars().take(300).collect();
        let expected = format!("expected 200 and an answer; check the Rule for {}", self.rule);
        Err(lost(&format!("found {status} and {said:?}; {expected}")))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [router, rule, node, driver, socket] = &arguments[..] else {
        return Err("usage: own_kubeedge_cloud ROUTER RULE NODE DRIVER SOCKET".into());
    };
    let relay = KubeEdgeRelay::new(router, rule);
    let endpoint = Endpoint::new(driver.parse()?, Router::fixed(node.parse()?), relay);
    let serving = endpoint.serve(socket.parse()?).await?;
    println!("serving {}", serving.address());
    tokio::signal::ctrl_c().await?;
    serving.shutdown(Duration::from_secs(30)).await;
    Ok(())
}
