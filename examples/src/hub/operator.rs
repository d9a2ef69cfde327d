//! What an operator may tell a running hub: the service behind `edge-hub node-gone`.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::hub::Hub;
use edge_transport::{IncomingRequest, PeerId, Reason, ReplySender, Service};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

/// The service of the hub's own name. Its request is the name of a node that is gone for good, with [`UNDO`] before it if that is to
/// be taken back; its messages are lines for people.
pub(super) const SERVICE: &str = "operator";

/// The name, and what lies below it, whose owner is an operator; nobody else may call the service. Over the unix socket root and
/// the hub's own user may take it.
pub(super) const NAME: &str = "operator";

/// How long proxies may take to say what they did.
const PATIENCE: Duration = Duration::from_secs(10);

/// What stands before the name of a node that is not gone for good after all.
pub(super) const UNDO: &str = "undo ";

/// The closing bytes where every proxy has said that it is done, and whoever comes later will be told.
pub(super) const ALL: &[u8] = b"all";

/// The closing bytes where no proxy was there, and the hub forgets it when it ends.
pub(super) const NOBODY: &[u8] = b"nobody";

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
        let (hub, node, undo) = match self.node(&request) {
            Ok(known) => known,
            // Fails only if nobody waits any more, here and below.
            Err((reason, text)) => {
                let _ = replies.fail(reason, text).await;
                return;
            }
        };
        if undo {
            let _ = match hub.retract_gone(&node).await {
                Ok(known) => {
                    tracing::warn!(%node, known, by = %request.source, "an operator says that this node is not gone for good");
                    let line = retracted(&node, known);
                    replies.message_and_finish(line.into(), Bytes::from_static(ALL)).await
                }
                Err(error) => replies.fail(Reason::Protocol, error.to_string()).await,
            };
            return;
        }
        let mut reports = hub.reports();
        // One whose link was just lost watches on when it is back, or begins anew.
        let there: BTreeSet<_> = hub.peers().into_iter().map(|info| info.peer).collect();
        let (mut silent, away): (BTreeSet<_>, BTreeSet<_>) =
            hub.watchers_of(&node).into_iter().partition(|proxy| there.contains(proxy));
        if let Err(error) = hub.declare_gone(&node).await {
            let _ = replies.fail(Reason::Protocol, error.to_string()).await;
            return;
        }
        tracing::warn!(%node, by = %request.source, "an operator says that this node is gone for good");
        let told = silent.len();
        let lines = [format!("told {told} proxies that {node} is gone for good"), later(&hub).to_owned()];
        let names = away.iter().map(|proxy| format!("{proxy}: is away"));
        for line in lines.into_iter().chain(names) {
            if replies.message(line.into()).await.is_err() {
                return;
            }
        }
        let (end, mut failed) = (Instant::now() + PATIENCE, !away.is_empty() && !hub.keeps_gone());
        while !silent.is_empty() {
            let report = match timeout_at(end, reports.recv()).await {
                Ok(Ok(report)) => report,
                // Others' reports were lost, or one that is waited for: then that proxy has not answered.
                Ok(Err(RecvError::Lagged(_))) => continue,
                Ok(Err(RecvError::Closed)) | Err(_) => break,
            };
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
        let closing = match (silent.is_empty() && !failed, told > 0 || hub.keeps_gone()) {
            (true, true) => ALL,
            (true, false) => NOBODY,
            (false, _) => b"",
        };
        let _ = replies.finish(Bytes::from_static(closing)).await;
    }
}

impl Operator {
    fn node(&self, request: &IncomingRequest) -> Result<(Hub, PeerId, bool), (Reason, String)> {
        let hub = self.0.get().ok_or_else(|| (Reason::Draining, "the hub is starting".to_owned()))?;
        let said = String::from_utf8_lossy(&request.body);
        let (name, undo) = said.strip_prefix(UNDO).map_or((&*said, false), |name| (name, true));
        let node = PeerId::new(name).map_err(|error| (Reason::Protocol, error.to_string()))?;
        Ok((hub.clone(), node, undo))
    }
}

/// What becomes of proxies that were not there.
fn later(hub: &Hub) -> &'static str {
    match hub.keeps_gone() {
        true => "a proxy that is away is told when it is back, also after a restart of this hub",
        false => {
            "a proxy that is away is told when it is back, unless this hub was restarted by then: it has no --state-dir"
        }
    }
}

fn retracted(node: &PeerId, known: bool) -> String {
    match known {
        true => format!(
            "{node} is not gone for good any more: no other proxy is told; those that were told find what it has when it comes"
        ),
        false => format!("{node} was not declared gone for good, or has come back since"),
    }
}
