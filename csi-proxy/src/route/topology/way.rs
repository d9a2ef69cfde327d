//! The way from a question to the nodes: as many calls as it takes.

use bytes::Bytes;
use csi_proto::DriverName;
use tokio::time::Instant;

use crate::call::{Call, CallId, Metadata, MethodPath, NodeId};
use crate::fault::Fault;
use crate::observe::{Abandoned, Observation};
use crate::outcome::Outcome;
use crate::relay::Relay;
use crate::replies::Replies;

/// A whole unary answer: a message if and only if it is OK.
pub(super) type Answer = (Option<Bytes>, Outcome);

/// A question that has no node yet, and what carries it.
pub(crate) struct Way<'a> {
    pub(crate) relay: &'a dyn Relay,
    pub(crate) driver: &'a DriverName,
    pub(crate) metadata: &'a Metadata,
    /// When the caller stops waiting.
    pub(crate) end: Instant,
    /// Why the answer is not read to its end, if it is not.
    pub(crate) abandoned: &'a Abandoned,
}

impl<'a> Way<'a> {
    /// The same for a caller who waits until then, at most.
    pub(super) fn until(&self, end: Instant) -> Self {
        let Self { relay, driver, metadata, abandoned, .. } = *self;
        Self { relay, driver, metadata, end: self.end.min(end), abandoned }
    }

    /// Calls a node.
    pub(super) async fn relay(&self, node: &NodeId, method: &MethodPath, body: Bytes) -> Replies {
        let call = Call::new(CallId::new(), node.clone(), self.driver.clone(), method.clone(), body)
            .with_remaining(self.end.saturating_duration_since(Instant::now()))
            .with_metadata(self.metadata.clone());
        let observation = Observation::start("endpoint", &call).abandoned_by(self.abandoned.clone());
        let answer = self.relay.relay(call).await;
        observation.answered(answer).unwrap_or_else(Replies::outcome)
    }
}

/// The answer to a unary method, once it is whole.
pub(super) async fn whole(replies: Replies) -> Answer {
    let (messages, outcome) = replies.collect().await;
    if !outcome.is_ok() {
        return (None, outcome);
    }
    match <[Bytes; 1]>::try_from(messages) {
        Ok([message]) => (Some(message), outcome),
        Err(messages) => {
            let found = messages.len();
            let reason =
                format!("an OK answer to a unary method has exactly one message; this one has {found}");
            (None, Fault::Protocol { reason }.into())
        }
    }
}
