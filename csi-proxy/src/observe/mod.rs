//! What the operator sees of a call: one line a hop, joined by the call's id. Never a body.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use csi_proto::DriverName;
use futures_core::Stream;
use tokio::time::Instant;

use crate::call::{Call, CallId, Fault, MethodPath, NodeId, Origin, Outcome, Replies, Reply};

/// Why the answer to a call is not read to its end: told by whoever stops, before the answer is dropped. If nobody tells, the
/// caller has left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Abandoned(Arc<OnceLock<Fault>>);

impl Abandoned {
    pub(crate) fn because(&self, fault: &Fault) {
        // The first reason is the reason.
        let _ = self.0.set(fault.clone());
    }
}

/// A call that is under way at a hop: `endpoint` or `dispatcher`.
///
/// Logs the call's start, its success and a caller that left at debug, its failure at warn. Of a driver's failure the log has the
/// code and how long the message is, since drivers repeat requests in their messages, secrets and all. With the feature `metrics`
/// the call is also counted and timed.
#[derive(Debug)]
pub(crate) struct Observation {
    hop: &'static str,
    id: CallId,
    node: NodeId,
    driver: DriverName,
    method: MethodPath,
    since: Instant,
    abandoned: Option<Abandoned>,
    ended: bool,
}

impl Observation {
    pub(crate) fn start(hop: &'static str, call: &Call) -> Self {
        tracing::debug!(
            hop, call = %call.id, method = %call.method, node = %call.node, driver = %call.driver,
            remaining = ?call.remaining, bytes = call.body.len(), "call"
        );
        let Call { id, node, driver, method, .. } = call;
        let (node, driver, method) = (node.clone(), driver.clone(), method.clone());
        Self { hop, id: *id, node, driver, method, since: Instant::now(), abandoned: None, ended: false }
    }

    /// Says where to look for the reason if the answer is not read to its end.
    pub(crate) fn abandoned_by(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = Some(abandoned);
        self
    }

    /// Follows the answer to its end.
    pub(crate) fn answered(mut self, answer: Result<Replies, Fault>) -> Result<Replies, Fault> {
        match answer.map(Replies::into_whole) {
            Err(error) => {
                self.end(&error.clone().into());
                Err(error)
            }
            Ok(Ok((message, outcome))) => {
                self.end(&outcome);
                Ok(Replies::whole(message, outcome))
            }
            Ok(Err(parts)) => Ok(Replies::stream(Observed { parts, observation: self })),
        }
    }

    fn end(&mut self, outcome: &Outcome) {
        self.ended = true;
        let taken = self.since.elapsed();
        let Self { hop, id, node, driver, method, .. } = self;
        #[cfg(feature = "metrics")]
        crate::metrics::record(hop, driver, method, outcome, taken);
        if outcome.is_ok() {
            tracing::debug!(hop, call = %id, ?taken, "answered");
            return;
        }
        let origin = match &outcome.origin {
            Origin::Driver => "driver",
            Origin::Endpoint => "endpoint",
            Origin::Relay(fault) => fault.kind(),
        };
        if let Some(Fault::CallerGone) = outcome.fault() {
            tracing::debug!(
                hop, call = %id, %method, %node, %driver, code = %outcome.code, origin, ?taken,
                "nobody waits for the answer any more"
            );
            return;
        }
        tracing::warn!(
            hop, call = %id, %method, %node, %driver, code = %outcome.code, origin, message = %outcome.loggable(), ?taken,
            "call failed"
        );
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if !self.ended {
            let told = self.abandoned.as_ref().and_then(|Abandoned(told)| told.get().cloned());
            self.end(&told.unwrap_or(Fault::CallerGone).into());
        }
    }
}

struct Observed {
    parts: Replies,
    observation: Observation,
}

impl Stream for Observed {
    type Item = Reply;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        let part = ready!(Pin::new(&mut self.parts).poll_next(cx));
        if let Some(Reply::End(outcome)) = &part {
            self.observation.end(outcome);
        }
        Poll::Ready(part)
    }
}

#[cfg(test)]
mod tests;
