//! The side of the node of `own_kubeedge_cloud.rs`: POSTs of edgecore's serviceBus are calls of a driver.
//!
//! Beside edgecore: `cargo run -p embed --bin own_kubeedge_node -- 9061 vendor.csi unix:///plugins/vendor/csi.sock`.
//! **Each process of the node that can connect to the port commands the driver**: serviceBus has neither TLS nor a password.
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::convert::Infallible;
use std::error::Error;
use std::future::ready;
use std::net::Ipv4Addr;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use csi_proxy::{Call, Dispatcher, Fault, Relay, Replies, bus};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// The longest body that serviceBus passes on (`maxBodySize`).
pub(crate) const MAX_ANSWER: usize = 5_000_000;

/// The answer while a call runs.
const RUNNING: &[u8] = b"running";

/// The node answers after this time in any case. serviceBus waits for 10 s.
pub(crate) const ANSWER: Duration = Duration::from_secs(8);

/// The longest body of a request.
const MAX_REQUEST: usize = bus::MAX_REQUEST + bus::MAX_OVERHEAD;

/// The longest message in an answer.
pub(crate) const MAX_MESSAGE: usize = MAX_ANSWER - bus::MAX_OVERHEAD;

// ANCHOR: embed
/// Answers the POSTs of serviceBus, at the latest after `limit`.
pub(crate) fn router<R: Relay + Clone + 'static>(drivers: R, limit: Duration) -> axum::Router {
    let answer = async move |State(drivers): State<OneAnswer<R>>, body: Body| {
        let request = to_bytes(body, MAX_REQUEST).await.map_err(|error| {
            let expected = format!("expected at most {MAX_REQUEST} bytes");
            (StatusCode::PAYLOAD_TOO_LARGE, format!("body of the request: {error}; {expected}"))
        })?;
        let mut part = Bytes::from_static(RUNNING);
        let send = |sent| {
            part = sent;
            ready(Ok::<_, Infallible>(()))
        };
        let Ok(()) = bus::serve(&drivers, request, sleep(limit), send).await;
        Ok::<_, (StatusCode, String)>(part)
    };
    axum::Router::new().route("/csi", post(answer)).with_state(OneAnswer(drivers))
}
// ANCHOR_END: embed

/// Refuses answers that KubeEdge does not carry.
#[derive(Clone)]
struct OneAnswer<R>(R);

#[async_trait]
impl<R: Relay> Relay for OneAnswer<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let stream =
            |_| Fault::Protocol { reason: "found a stream of answers; expected one answer".to_owned() };
        match self.0.relay(call).await?.into_whole().map_err(stream)? {
            (Some(message), _) if message.len() > MAX_MESSAGE => {
                Err(Fault::ReplyTooLarge { found: message.len() as u64, max: MAX_MESSAGE as u64 })
            }
            (Some(message), outcome) => Ok(Replies::unary(message, outcome)),
            (None, outcome) => Ok(Replies::outcome(outcome)),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, driver, socket] = &arguments[..] else {
        return Err("usage: own_kubeedge_node PORT DRIVER SOCKET".into());
    };
    let drivers = Dispatcher::new().with_driver(driver.parse()?, socket.parse()?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?)).await?;
    println!("answering on {}", listener.local_addr()?);
    axum::serve(listener, router(drivers, ANSWER)).await?;
    Ok(())
}
