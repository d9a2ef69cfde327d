//! The conformance suite finds each kind of broken relay, and accepts what it documents.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::conformance::{self, Violation};
use csi_proxy::{Call, CallId, Code, Fault, Metadata, Outcome, Relay, Replies, Reply, bus};
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

type Far = Arc<dyn Relay>;

/// Changes a call before it passes it on.
struct Changes(Far, fn(&mut Call));

#[async_trait]
impl Relay for Changes {
    async fn relay(&self, mut call: Call) -> Result<Replies, Fault> {
        (self.1)(&mut call);
        self.0.relay(call).await
    }
}

async fn found(change: fn(&mut Call)) -> Violation {
    conformance::check(async |far| Changes(far, change)).await.unwrap_err()
}

const HEADER: &str = "a call keeps its id, node, method, metadata, remaining time and fence";

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_drops_the_remaining_time() {
    let dropped = found(|call| call.remaining = None).await;
    assert!(dropped.case == HEADER && dropped.found.starts_with("remaining time: None"), "{dropped}");
    let longer = found(|call| call.remaining = call.remaining.map(|left| left * 2)).await;
    assert!(longer.case == HEADER && longer.found.starts_with("remaining time"), "{longer}");
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_drops_metadata() {
    let found = found(|call| call.metadata = Metadata::default()).await;
    assert!(found.case == HEADER && found.found.starts_with("metadata"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_drops_the_fence() {
    let found = found(|call| call.fence = None).await;
    assert!(found.case == HEADER && found.found.starts_with("fence"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_changes_the_node() {
    let found = found(|call| call.node = "another".parse().unwrap()).await;
    assert!(found.case == HEADER && found.found == "node: another", "{found}");
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_changes_the_id() {
    let found = found(|call| call.id = CallId::new()).await;
    assert!(found.case == HEADER && found.found.contains("another id"), "{found}");
}

/// Delivers every call twice, at once or one after the other.
struct Twice {
    far: Far,
    at_once: bool,
}

#[async_trait]
impl Relay for Twice {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if self.at_once {
            let (first, _) = tokio::join!(self.far.relay(call.clone()), self.far.relay(call));
            return first;
        }
        drop(self.far.relay(call.clone()).await);
        self.far.relay(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_delivers_twice() {
    for at_once in [false, true] {
        let found = conformance::check(async |far| Twice { far, at_once }).await.unwrap_err();
        assert!(found.case == "a call arrives once unless the bus is cut", "{found}");
        assert!(found.found.starts_with("2 copies of"), "{found}");
    }
}

/// Keeps the body of each call, and may send an old one.
struct Keeps {
    far: Far,
    bodies: Mutex<Vec<Bytes>>,
    replays: bool,
}

#[async_trait]
impl Relay for Keeps {
    async fn relay(&self, mut call: Call) -> Result<Replies, Fault> {
        {
            let mut bodies = self.bodies.lock().unwrap();
            bodies.push(call.body.clone());
            if self.replays {
                call.body = bodies[0].clone();
            }
        }
        self.far.relay(call).await
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_keeps_bodies() {
    let keeps = |replays| async move |far| Keeps { far, bodies: Mutex::default(), replays };
    let found = conformance::check(keeps(false)).await.unwrap_err();
    assert_eq!(found.case, "the body of a call is dropped when the call ends");
    let found = conformance::check(keeps(true)).await.unwrap_err();
    assert_eq!(found.case, "a body and a message pass byte for byte");
}

/// Reads the whole answer before it passes a part of it on.
struct Buffers(Far);

#[async_trait]
impl Relay for Buffers {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let (messages, outcome) = self.0.relay(call).await?.collect().await;
        let parts = messages.into_iter().map(Reply::Message).chain([Reply::End(outcome)]);
        Ok(Replies::stream(tokio_stream::iter(parts)))
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_buffers_whole_streams() {
    let found = conformance::check(async |far| Buffers(far)).await.unwrap_err();
    assert_eq!(found.case, "a message of a stream passes while the driver still produces the next one");
}

/// Passes the outcome and the first message on.
struct Unary(Far, fn(Outcome) -> Outcome);

#[async_trait]
impl Relay for Unary {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let (messages, outcome) = self.0.relay(call).await?.collect().await;
        let outcome = (self.1)(outcome);
        Ok(match messages.into_iter().next() {
            Some(message) => Replies::unary(message, outcome),
            None => Replies::outcome(outcome),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_changes_statuses() {
    let drops_details = |outcome: Outcome| match outcome.is_ok() {
        true => outcome,
        false => outcome.with_details(Bytes::new()),
    };
    let makes_one_up = |outcome: Outcome| match outcome.is_ok() {
        true => outcome,
        false => Outcome::from_driver(Code::INTERNAL, "made up"),
    };
    for change in [drops_details, makes_one_up] as [fn(Outcome) -> Outcome; 2] {
        let found = conformance::check(async |far| Unary(far, change)).await.unwrap_err();
        assert!(found.case.starts_with("a status of the driver"), "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_relay_that_cuts_streams_short() {
    let found = conformance::check(async |far| Unary(far, |outcome| outcome)).await.unwrap_err();
    assert!(found.case.starts_with("a stream passes") && found.found.contains("1 messages"), "{found}");
    let unary = conformance::check(async |far| Unary(far, |outcome| outcome)).unary_only();
    let found = unary.await.unwrap_err();
    assert!(found.case.starts_with("a relay for unary calls refuses a stream"), "{found}");
}

/// Refuses streams, as a relay for unary calls only must.
struct RefusesStreams(Far);

#[async_trait]
impl Relay for RefusesStreams {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match call.method.service() {
            "csi.v1.SnapshotMetadata" => Err(Fault::Forbidden { reason: "no streams".to_owned() }),
            _ => self.0.relay(call).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_unary_relay_conforms_if_checked_as_one() {
    conformance::check(async |far| RefusesStreams(far)).unary_only().await.unwrap();
    let found = conformance::check(async |far| RefusesStreams(far)).await.unwrap_err();
    assert!(found.case.starts_with("a stream passes") && found.found.contains("`unary_only()`"), "{found}");
}

// A bus that can be cut.

/// A payload, and the topic for its answer.
type Payload = (String, Bytes);

/// An in-memory bus. A cut loses what is under way.
#[derive(Clone)]
struct Bus {
    topics: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Payload>>>>,
    cuts: watch::Sender<u64>,
    /// What a call that is cut ends with; nothing for a bus that forgets its callers.
    ends_with: Option<Fault>,
}

impl Bus {
    fn new(ends_with: Option<Fault>) -> Self {
        Self { topics: Arc::default(), cuts: watch::Sender::default(), ends_with }
    }

    fn subscribe(&self, topic: &str) -> mpsc::UnboundedReceiver<Payload> {
        let (sender, payloads) = mpsc::unbounded_channel();
        self.topics.lock().unwrap().insert(topic.to_owned(), sender);
        payloads
    }

    fn topic(&self, topic: &str) -> Option<mpsc::UnboundedSender<Payload>> {
        self.topics.lock().unwrap().get(topic).cloned()
    }

    /// Serves the far end until the node has subscribed.
    fn node(&self, far: Far) {
        let mut requests = self.subscribe(conformance::NODE);
        let bus = self.clone();
        tokio::spawn(async move {
            while let Some((inbox, request)) = requests.recv().await {
                let (bus, far) = (bus.clone(), Arc::clone(&far));
                tokio::spawn(async move {
                    let Some(caller) = bus.topic(&inbox) else { return };
                    let cut = *bus.cuts.borrow();
                    let send = |part| {
                        let is_there = *bus.cuts.borrow() == cut;
                        std::future::ready(match is_there {
                            true => caller.send((String::new(), part)),
                            false => Ok(()),
                        })
                    };
                    let _ = bus::serve(&*far, request, caller.closed(), send).await;
                });
            }
        });
    }
}

#[async_trait]
impl Relay for Bus {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let inbox = CallId::new().to_string();
        let parts = UnboundedReceiverStream::new(self.subscribe(&inbox)).map(|(_, part)| Ok(part));
        let mut cuts = self.cuts.subscribe();
        let node =
            self.topic(call.node.as_str()).ok_or_else(|| Fault::NodeOffline { node: call.node.clone() })?;
        node.send((inbox, bus::request(&call)?)).map_err(|_| lost())?;
        let ends_with = self.ends_with.clone();
        let cut = async move {
            let _ = cuts.changed().await;
            match ends_with {
                Some(fault) => Err(fault),
                None => std::future::pending().await,
            }
        };
        bus::replies(futures_util::stream::select(parts, futures_util::stream::once(cut)), || ()).await
    }
}

fn lost() -> Fault {
    Fault::LinkLost { reason: "cut".to_owned() }
}

async fn cut(ends_with: Option<Fault>) -> Result<(), Violation> {
    let bus = Bus::new(ends_with);
    let near = bus.clone();
    let connect = async move |far| {
        near.node(far);
        near
    };
    conformance::check(connect).with_faults(async || bus.cuts.send_modify(|cuts| *cuts += 1)).await
}

#[tokio::test(start_paused = true)]
async fn a_bus_that_is_cut_conforms() {
    cut(Some(lost())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn finds_a_bus_that_forgets_its_callers() {
    let found = cut(None).await.unwrap_err();
    assert!(found.case.starts_with("a call that is cut ends") && found.found.contains("30s"), "{found}");
}

/// The driver has executed the call: a placement would be released, and a volume leak.
#[tokio::test(start_paused = true)]
async fn finds_a_bus_that_claims_that_nothing_was_sent() {
    let offline = Fault::NodeOffline { node: conformance::NODE.parse().unwrap() };
    let found = cut(Some(offline)).await.unwrap_err();
    assert!(found.case.starts_with("a call that is cut ends"), "{found}");
}

/// Ends a stream that is cut as if it were whole.
struct EndsCutStreams(Bus);

#[async_trait]
impl Relay for EndsCutStreams {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let answer = self.0.relay(call).await?;
        Ok(Replies::stream(answer.map(|part| match part {
            Reply::End(outcome) if outcome.fault() == Some(&lost()) => Reply::End(Outcome::ok()),
            part => part,
        })))
    }
}

#[tokio::test(start_paused = true)]
async fn finds_a_bus_that_ends_cut_streams_with_success() {
    let bus = Bus::new(Some(lost()));
    let near = bus.clone();
    let connect = async move |far| {
        near.node(far);
        EndsCutStreams(near)
    };
    let checked = conformance::check(connect).with_faults(async || {
        bus.cuts.send_modify(|cuts| *cuts += 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    });
    let found = checked.await.unwrap_err();
    assert!(found.case.starts_with("a stream that is cut ends"), "{found}");
}
