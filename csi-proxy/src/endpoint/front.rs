//! Where a question goes: answered here, refused here, or relayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use futures_util::StreamExt as _;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::EndpointSettings;
use crate::call::{Call, CallId, Metadata, MethodPath};
use crate::code::Code;
use crate::fault::Fault;
use crate::observe::{Abandoned, Observation};
use crate::outcome::Outcome;
use crate::relay::Relay;
use crate::replies::{Replies, Reply};
use crate::router::{Route, RouteError, Router};
use crate::startup::{self, Learner, Subject, View};

const NODE_SERVICE: &str = "csi.v1.Node";

/// The time that a background question gives the driver.
const ASKING: Duration = Duration::from_secs(10);

/// A call before its node is chosen.
pub(super) struct Question {
    pub(super) method: MethodPath,
    pub(super) metadata: Metadata,
    pub(super) body: Bytes,
    /// When the caller stops waiting.
    pub(super) end: Instant,
    /// Why the answer is not read to its end, if it is not.
    pub(super) abandoned: Abandoned,
}

/// What stands behind every connection of an endpoint.
pub(super) struct Front {
    driver: DriverName,
    router: Router,
    relay: Arc<dyn Relay>,
    relay_node_calls: bool,
    learner: Arc<Learner>,
    first_answer: Duration,
}

impl Front {
    pub(super) fn new(
        driver: DriverName,
        router: Router,
        relay: Arc<dyn Relay>,
        settings: &EndpointSettings,
    ) -> Self {
        let subject = Subject { driver: driver.clone(), node: router.only_node().cloned() };
        let learner = Arc::new(Learner::new(subject, settings.facts.clone()));
        let EndpointSettings { relay_node_calls, first_answer, .. } = *settings;
        Self { driver, router, relay, relay_node_calls, learner, first_answer }
    }

    pub(super) fn refresh(&self) {
        self.learner.refresh();
    }

    pub(super) fn startup(&self) -> View {
        View::new(Arc::clone(&self.learner))
    }

    /// Keeps what is to be kept for the next start.
    pub(super) async fn settle(&self) {
        self.learner.settle().await;
    }

    /// Starts to learn what is answered locally.
    pub(super) fn learn(self: &Arc<Self>) -> JoinHandle<()> {
        let front = Arc::clone(self);
        tokio::spawn(async move { front.learner.run(|question| front.ask(question)).await })
    }

    async fn ask(&self, question: startup::Question) -> Result<Bytes, Outcome> {
        let method = MethodPath::new(question.path())
            .map_err(|error| Fault::Protocol { reason: error.to_string() })?;
        let (metadata, abandoned) = (Metadata::default(), Abandoned::default());
        let question =
            Question { method, metadata, body: Bytes::new(), end: Instant::now() + ASKING, abandoned };
        let call = self.address(question).await?;
        let (messages, outcome) =
            self.relay.relay(call).await.unwrap_or_else(Replies::outcome).collect().await;
        match messages.into_iter().next() {
            Some(message) if outcome.is_ok() => Ok(message),
            _ => Err(outcome),
        }
    }

    pub(super) async fn answer(&self, question: Question) -> Replies {
        if let Some(known) = startup::Question::from_path(question.method.as_str()) {
            return self.learner.answer(known, self.first_answer.min(left(question.end))).await;
        }
        if question.method.service() == NODE_SERVICE && !self.relay_node_calls {
            let text = "Node calls mount volumes and mean nothing on another host; make them on the node's own socket";
            return Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text));
        }
        let (method, abandoned) = (question.method.clone(), question.abandoned.clone());
        let call = match self.address(question).await {
            Ok(call) => call,
            Err(outcome) => {
                tracing::warn!(%method, driver = %self.driver, code = %outcome.code, message = %outcome.loggable(), "no way for a call");
                return Replies::outcome(outcome);
            }
        };
        let observation = Observation::start("endpoint", &call).abandoned_by(abandoned);
        let answer = self.relay.relay(call).await;
        let answer = if method.is_unary() { answer.map(one_message) } else { answer };
        observation.answered(answer).unwrap_or_else(Replies::outcome)
    }

    /// The call that a question becomes once its node is chosen.
    async fn address(&self, question: Question) -> Result<Call, Outcome> {
        let Question { method, metadata, body, end, .. } = question;
        let node = self.router.route(&method, &body).await.map_err(|error| match error {
            RouteError::Fault(fault) => fault.into(),
            RouteError::Answered(outcome) => *outcome,
        })?;
        let call = Call::new(CallId::new(), node, self.driver.clone(), method, body);
        // Now, since choosing may have taken its time.
        Ok(call.with_remaining(left(end)).with_metadata(metadata))
    }
}

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Holds the answer to a unary method to its form. Callers make final codes of an OK without a message or with two.
fn one_message(answer: Replies) -> Replies {
    let broken = |found: &str| {
        let reason = format!("an OK answer to a unary method has exactly one message; this one has {found}");
        Outcome::from(Fault::Protocol { reason })
    };
    match answer.into_whole() {
        Ok((None, outcome)) if outcome.is_ok() => Replies::outcome(broken("none")),
        Ok((message, outcome)) => Replies::whole(message, outcome),
        Err(parts) => Replies::stream(parts.enumerate().map(move |(at, part)| match part {
            Reply::End(outcome) if at == 0 && outcome.is_ok() => Reply::End(broken("none")),
            Reply::Message(_) if at > 0 => Reply::End(broken("more")),
            part => part,
        })),
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("driver", &self.driver).finish_non_exhaustive()
    }
}
