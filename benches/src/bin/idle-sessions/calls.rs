//! Calls random connected nodes at a constant rate.

use std::time::Duration;

use bytes::Bytes;
use edge_transport::peer::{ReplyEvent, ReplySender, Service};
use edge_transport::{Peer, PeerId, Request, ServiceName};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// The time between two calls.
const INTERVAL: Duration = Duration::from_millis(10);

/// The timeout of a call; it counts as failed afterwards.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How many random nodes are tried for one that is connected.
const TRIES: usize = 1000;

/// The highest latency of the histogram, in microseconds.
const MAX_LATENCY_MICROS: u64 = 60_000_000;

/// Answers each request with its body.
pub(super) struct Echo;

impl Echo {
    /// The name of the service.
    pub(super) fn name() -> Result<ServiceName, edge_transport::InvalidName> {
        ServiceName::new("echo")
    }
}

#[async_trait::async_trait]
impl Service for Echo {
    async fn call(&self, _: PeerId, request: Request, replies: ReplySender) {
        // Fails only if the caller has cancelled.
        let _ = replies.send_and_finish(request.body, Bytes::new()).await;
    }
}

/// The calls since the last report.
struct Tally {
    latencies: Histogram<u64>,
    failed: u64,
}

impl Tally {
    #[allow(clippy::expect_used, reason = "the bounds are constants that the histogram accepts")]
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, MAX_LATENCY_MICROS, 3).expect("valid bounds");
        Self { latencies, failed: 0 }
    }

    fn count(&mut self, latency: Option<Duration>) {
        match latency {
            Some(latency) => {
                let micros = u64::try_from(latency.as_micros()).unwrap_or(MAX_LATENCY_MICROS);
                self.latencies.saturating_record(micros);
            }
            None => self.failed += 1,
        }
    }
}

/// Calls nodes until `until` completes, and returns the figures: latencies in milliseconds.
pub(super) async fn run<T>(
    caller: &Peer,
    nodes: &[Peer],
    until: impl Future<Output = T>,
) -> Result<(Value, T), edge_transport::InvalidName> {
    let service = Echo::name()?;
    let mut tally = Tally::new();
    let mut open = JoinSet::new();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(until);
    let ended = loop {
        tokio::select! {
            ended = &mut until => break ended,
            Some(called) = open.join_next() => tally.count(called.ok().flatten()),
            _ = ticks.tick() => {
                if let Some(node) = connected(caller, nodes) {
                    open.spawn(call(caller.clone(), node.name().clone(), service.clone()));
                }
            }
        }
    };
    while let Some(called) = open.join_next().await {
        tally.count(called.ok().flatten());
    }
    let millis = |quantile| tally.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let figures = json!({
        "calls": tally.latencies.len(),
        "failed": tally.failed,
        "p50": millis(0.5),
        "p99": millis(0.99),
    });
    Ok((figures, ended))
}

/// Returns a random connected node, if the caller is connected too.
fn connected<'a>(caller: &Peer, nodes: &'a [Peer]) -> Option<&'a Peer> {
    if nodes.is_empty() || !caller.state().is_connected() {
        return None;
    }
    let mut tried = (0..TRIES).map(|_| &nodes[fastrand::usize(..nodes.len())]);
    tried.find(|node| node.state().is_connected())
}

/// Returns the latency of a call, or `None` if it failed.
async fn call(caller: Peer, node: PeerId, service: ServiceName) -> Option<Duration> {
    let started = Instant::now();
    let request = Request::new(service, Bytes::from_static(&[0; 100])).remaining(CALL_TIMEOUT);
    let answered = async {
        let mut replies = caller.call(node, request).await.ok()?;
        let mut is_answered = false;
        while let Some(event) = replies.next().await {
            match event.ok()? {
                ReplyEvent::Message(_) => is_answered = true,
                ReplyEvent::Finished(_) => return is_answered.then_some(()),
                _ => {}
            }
        }
        None
    };
    timeout(CALL_TIMEOUT, answered).await.ok().flatten()?;
    Some(started.elapsed())
}
