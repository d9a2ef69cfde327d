//! What an operator may tell a running hub: the service behind `edge-hub node-gone`.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::hub::Hub;
use edge_transport::{IncomingRequest, PeerId, Reason, ReplySender, Service};
use tokio::time::{Instant, timeout_at};

/// The service of the hub's own name. Its request is the name of a node that is gone for good; its messages are lines for people.
pub(super) const SERVICE: &str = "operator";

/// The name, and what lies below it, whose owner is an operator; nobody else may call the service. Over the unix socket root and
/// the hub's own user may take it.
pub(super) const NAME: &str = "operator";

/// How long proxies may take to say what they did.
const PATIENCE: Duration = Duration::from_secs(10);

/// The closing bytes where every proxy has said that it is done.
pub(super) const ALL: &[u8] = b"all";

/// The service. Knows its hub once that runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Operator(std::sync::Arc<OnceLock<Hub>>);

impl Operator {
    /// Tells it which hub it is in.
    pub(super) fn started(&self, hub: &Hub) {
        let _ = self.0.set(hub.clone());
    }
}

#[async_trait::async_trait]
impl Service for Operator {
    async fn call(&self, request: IncomingRequest, mut replies: ReplySender) {
        let (hub, node) = match self.node(&request) {
            Ok(known) => known,
            // Fails only if nobody waits any more, here and below.
            Err((reason, text)) => {
                let _ = replies.fail(reason, text).await;
                return;
            }
        };
        let mut reports = hub.reports();
        let mut silent: BTreeSet<_> = hub.watchers().into_iter().collect();
        if let Err(error) = hub.declare_gone(&node) {
            let _ = replies.fail(Reason::Protocol, error.to_string()).await;
            return;
        }
        tracing::warn!(%node, by = %request.source, "an operator says that this node is gone for good");
        let line = format!("told {} proxies that {node} is gone for good", silent.len());
        if replies.message(line.into()).await.is_err() {
            return;
        }
        let (end, mut failed) = (Instant::now() + PATIENCE, false);
        while !silent.is_empty() {
            let Ok(Ok(report)) = timeout_at(end, reports.recv()).await else { break };
            if report.peer != node || !silent.remove(&report.from) {
                continue;
            }
            failed |= !report.done;
            if replies.message(format!("{}: {}", report.from, report.words).into()).await.is_err() {
                return;
            }
        }
        for proxy in &silent {
            if replies.message(format!("{proxy}: has not answered").into()).await.is_err() {
                return;
            }
        }
        let closing = if silent.is_empty() && !failed { Bytes::from_static(ALL) } else { Bytes::new() };
        let _ = replies.finish(closing).await;
    }
}

impl Operator {
    fn node(&self, request: &IncomingRequest) -> Result<(Hub, PeerId), (Reason, String)> {
        let hub = self.0.get().ok_or_else(|| (Reason::Draining, "the hub is starting".to_owned()))?;
        let name = String::from_utf8_lossy(&request.body);
        let node = PeerId::new(name).map_err(|error| (Reason::Protocol, error.to_string()))?;
        Ok((hub.clone(), node))
    }
}
