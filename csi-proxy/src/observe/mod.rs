//! The logs of a call: one line per stage, with the id of the call. Bodies are never logged.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use csi_proto::DriverName;
use futures_core::Stream;
use tokio::time::Instant;

use crate::call::{Call, CallId, Fault, MethodPath, NodeId, Origin, Outcome, Replies, Reply};
use crate::log_limit::LogLimit;

/// Why the answer to a call is not read to its end: set by the component that stops reading, before it drops the
/// answer. If unset, the caller has cancelled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Abandoned(Arc<OnceLock<Fault>>);

impl Abandoned {
    pub(crate) fn because(&self, fault: &Fault) {
        // Keeps the first reason.
        let _ = self.0.set(fault.clone());
    }
}

/// A running call at a stage: `endpoint` or `dispatcher`.
///
/// Logs the start of a call, its success and its cancellation at debug, its failure at warn, or at debug beyond a
/// [limit](Observation::limited_by). Of a failure of the
/// driver it logs the code and the length of the message, since drivers repeat requests in messages, including
/// secrets. With the feature `metrics` the call is also counted and timed.
#[derive(Debug)]
pub(crate) struct Observation {
    stage: &'static str,
    id: CallId,
    node: NodeId,
    driver: DriverName,
    method: MethodPath,
    since: Instant,
    abandoned: Option<Abandoned>,
    warnings: Option<Arc<LogLimit>>,
    ended: bool,
}

impl Observation {
    pub(crate) fn start(stage: &'static str, call: &Call) -> Self {
        tracing::debug!(
            stage, call = %call.id, method = %call.method, node = %call.node, driver = %call.driver,
            remaining = ?call.remaining, bytes = call.body.len(), "call"
        );
        let Call { id, node, driver, method, .. } = call;
        let (node, driver, method) = (node.clone(), driver.clone(), method.clone());
        Self {
            stage,
            id: *id,
            node,
            driver,
            method,
            since: Instant::now(),
            abandoned: None,
            warnings: None,
            ended: false,
        }
    }

    /// Sets the reason to report if the answer is not read to its end.
    pub(crate) fn abandoned_by(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = Some(abandoned);
        self
    }

    /// Limits the warnings of calls that other hosts make: they can fail calls at will.
    pub(crate) fn limited_by(mut self, warnings: &Arc<LogLimit>) -> Self {
        self.warnings = Some(Arc::clone(warnings));
        self
    }

    /// Returns the answer, and logs its end when it is read.
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
        let Self { stage, id, node, driver, method, .. } = self;
        #[cfg(feature = "metrics")]
        crate::metrics::record(stage, driver, method, outcome, taken);
        if outcome.is_ok() {
            tracing::debug!(stage, call = %id, ?taken, "answered");
            return;
        }
        let origin = match &outcome.origin {
            Origin::Driver => "driver",
            Origin::Endpoint => "endpoint",
            Origin::Relay(fault) => fault.kind(),
        };
        if let Some(Fault::Cancelled) = outcome.fault() {
            tracing::debug!(
                stage, call = %id, %method, %node, %driver, code = %outcome.code, origin, ?taken,
                "call cancelled"
            );
            return;
        }
        let message = outcome.redacted_message();
        if self.warnings.as_ref().is_none_or(|warnings| warnings.permits(std::time::Instant::now())) {
            tracing::warn!(
                stage, call = %id, %method, %node, %driver, code = %outcome.code, origin, message = %message, ?taken,
                "call failed"
            );
        } else {
            tracing::debug!(
                stage, call = %id, %method, %node, %driver, code = %outcome.code, origin, message = %message, ?taken,
                "call failed"
            );
        }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if !self.ended {
            let reason = self.abandoned.as_ref().and_then(|Abandoned(reason)| reason.get().cloned());
            self.end(&reason.unwrap_or(Fault::Cancelled).into());
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
pub(crate) mod tests;
