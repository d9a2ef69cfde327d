//! Conformance tests of the [`Relay`] contract, for a custom relay.
//!
//! ```
//! use std::sync::Arc;
//! use csi_proxy::{FaultyRelay, conformance};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), conformance::Violation> {
//! // `far` replaces the dispatcher on the node: connect the far side of your relay to it, and return its near side.
//! conformance::check(async |far| FaultyRelay::new(far, [])).await
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::{DriverName, Method};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::call::{Call, CallId, Fault, Metadata, MethodPath, NodeId, Outcome, Replies, Reply};
use crate::relay::Relay;
use csi_proto::Code;

/// The node of all calls of the suite.
pub const NODE: &str = "conformance-node";

/// The timeout of one call.
const TIMEOUT: Duration = Duration::from_secs(30);

const LARGE: usize = 4 * 1024 * 1024;
const CONCURRENT_CALLS: u32 = 64;
const STREAMED: u32 = 500;

/// A violation of the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{case}: {found}")]
#[non_exhaustive]
pub struct Violation {
    /// The rule of the contract that is broken.
    pub case: &'static str,
    /// The outcome or messages that break the rule.
    pub found: String,
}

/// Runs every case against one relay. `connect` is called once: it receives the far end and returns a relay to it.
///
/// # Errors
/// The first broken rule.
pub async fn check<R: Relay + 'static>(
    connect: impl AsyncFnOnce(Arc<dyn Relay>) -> R,
) -> Result<(), Violation> {
    let far = FarEnd::default();
    let (started, release, done) = (far.started.clone(), far.release.clone(), far.done.clone());
    let relay = Arc::new(connect(Arc::new(far)).await);
    let of_later_version = "/csi.v1.Controller/MethodOfALaterVersion";
    let methods = [Method::CreateVolume.path(), Method::GetMetadataAllocated.path(), of_later_version];
    for method in methods {
        bodies_pass(&*relay, method).await?;
        statuses_pass(&*relay, method).await?;
        faults_keep_their_kind(&*relay, method).await?;
    }
    streams_pass(&*relay).await?;
    many_at_once(&relay).await?;

    let case = "a cancelled call ends the wait, not the work, and affects no other call";
    let waiting = {
        let relay = Arc::clone(&relay);
        tokio::spawn(
            async move { answer(case, &*relay, "hang", Method::CreateVolume.path(), Bytes::new()).await },
        )
    };
    within(case, started.notified()).await?;
    waiting.abort();
    let _ = waiting.await;
    bodies_pass(&*relay, Method::CreateVolume.path()).await?;
    release.notify_one();
    within(case, done.notified()).await
}

async fn bodies_pass(relay: &dyn Relay, method: &str) -> Result<(), Violation> {
    let case = "a body and a message pass byte for byte";
    let large: Bytes = (0..LARGE).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
    for body in [Bytes::new(), Bytes::from_static(&[0, 0xff, 0xf8, 0x7f, 1]), large] {
        let (messages, outcome) = answer(case, relay, "echo", method, body.clone()).await?;
        expect(case, outcome == Outcome::ok(), || format!("{method}: {outcome:?}"))?;
        let found = || format!("{method}: sent {} bytes, received {:?}", body.len(), lengths(&messages));
        expect(case, messages == [body.clone()], found)?;
    }
    Ok(())
}

async fn statuses_pass(relay: &dyn Relay, method: &str) -> Result<(), Violation> {
    let case = "a status of the driver passes unchanged, with code, message, details and trailers";
    for code in Code::ALL.into_iter().skip(1) {
        let body = Bytes::copy_from_slice(&code.number().to_be_bytes());
        let (messages, outcome) = answer(case, relay, "fail", method, body).await?;
        let expected = failure(code);
        expect(case, outcome == expected && messages.is_empty(), || {
            format!("{method}: {outcome:?}; expected {expected:?}")
        })?;
    }
    Ok(())
}

async fn faults_keep_their_kind(relay: &dyn Relay, method: &str) -> Result<(), Violation> {
    let case = "a fault at the far end is a fault at the near end";
    let (_, outcome) = answer(case, relay, "fault", method, Bytes::new()).await?;
    let expected = Some(&link_lost()).cloned();
    expect(case, outcome.fault().cloned() == expected, || format!("{method}: {outcome:?}"))
}

async fn streams_pass(relay: &dyn Relay) -> Result<(), Violation> {
    let case = "a stream passes in order and ends as the driver ended it";
    let method = Method::GetMetadataAllocated.path();
    let (messages, outcome) = answer(case, relay, "stream", method, Bytes::new()).await?;
    let expected: Vec<_> = (0..STREAMED).map(numbered).collect();
    expect(case, messages == expected, || {
        format!("found {} messages; expected {STREAMED} in order", messages.len())
    })?;
    expect(case, outcome == failure(Code::OUT_OF_RANGE), || format!("{outcome:?}"))
}

async fn many_at_once<R: Relay + 'static>(relay: &Arc<R>) -> Result<(), Violation> {
    let case = "concurrent calls each get their own answer";
    let mut calls = JoinSet::new();
    for number in 0..CONCURRENT_CALLS {
        let relay = Arc::clone(relay);
        calls.spawn(async move {
            let body = numbered(number);
            let found = answer(case, &*relay, "echo", Method::CreateVolume.path(), body.clone()).await?;
            expect(case, found == (vec![body], Outcome::ok()), || format!("call {number}: {:?}", found.1))
        });
    }
    while let Some(call) = calls.join_next().await {
        call.map_err(|error| Violation { case, found: error.to_string() })??;
    }
    Ok(())
}

async fn answer(
    case: &'static str,
    relay: &dyn Relay,
    driver: &str,
    method: &str,
    body: Bytes,
) -> Result<(Vec<Bytes>, Outcome), Violation> {
    let broken = |found: String| Violation { case, found };
    let driver = DriverName::new(driver).map_err(|error| broken(error.to_string()))?;
    let node = NodeId::new(NODE).map_err(|error| broken(error.to_string()))?;
    let method = MethodPath::new(method).map_err(|error| broken(error.to_string()))?;
    let call = Call::new(CallId::new(), node, driver, method, body).with_remaining(TIMEOUT);
    within(case, async {
        match relay.relay(call).await {
            Ok(replies) => replies.collect().await,
            Err(error) => (Vec::new(), error.into()),
        }
    })
    .await
}

async fn within<T>(case: &'static str, future: impl Future<Output = T>) -> Result<T, Violation> {
    let late = |_| Violation { case, found: format!("no result within {TIMEOUT:?}") };
    tokio::time::timeout(TIMEOUT, future).await.map_err(late)
}

fn expect(case: &'static str, holds: bool, found: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { case, found: found() }) }
}

fn lengths(messages: &[Bytes]) -> Vec<usize> {
    messages.iter().map(Bytes::len).collect()
}

fn numbered(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn failure(code: Code) -> Outcome {
    let mut trailers = Metadata::default();
    // A short entry of plain characters is always valid.
    let _ = trailers.insert("x-vendor-bin", "AAEC");
    Outcome::from_driver(code, "größe: 50% von 盤\n".repeat(100))
        .with_details(vec![0, 1, 0xff])
        .with_trailers(trailers)
}

fn link_lost() -> Fault {
    Fault::LinkLost { reason: "reported by the far end".to_owned() }
}

/// Replaces a dispatcher. The name of the driver selects its behaviour.
#[derive(Default)]
struct FarEnd {
    started: Arc<Notify>,
    release: Arc<Notify>,
    done: Arc<Notify>,
}

#[async_trait]
impl Relay for FarEnd {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match call.driver.as_ref() {
            "echo" => Ok(Replies::unary(call.body, Outcome::ok())),
            "fail" => {
                let number = <[u8; 4]>::try_from(&*call.body).map(u32::from_be_bytes);
                Ok(Replies::outcome(failure(Code::new(number.unwrap_or_default()))))
            }
            "stream" => {
                let end = Reply::End(failure(Code::OUT_OF_RANGE));
                let parts = (0..STREAMED).map(|number| Reply::Message(numbered(number))).chain([end]);
                Ok(Replies::stream(futures_util::stream::iter(parts)))
            }
            "hang" => {
                // In a separate task, as in a dispatcher.
                let (started, release, done) =
                    (self.started.clone(), self.release.clone(), self.done.clone());
                let work = tokio::spawn(async move {
                    started.notify_one();
                    release.notified().await;
                    done.notify_one();
                });
                let _ = work.await;
                Ok(Replies::outcome(Outcome::ok()))
            }
            _ => Err(link_lost()),
        }
    }
}
