//! Where a question goes: answered here, refused here, or relayed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::{DriverName, Method};
use futures_util::StreamExt as _;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{EndpointSettings, place};
use crate::call::{Call, CallId, Metadata, MethodPath, NodeId};
use crate::fault::Fault;
use crate::observe::{Abandoned, Observation};
use crate::outcome::Outcome;
use crate::relay::Relay;
use crate::replies::{Replies, Reply};
use crate::route::{Chosen, Inquiry, RouteError, Router, Way};
use crate::startup::{self, Learner, Subject, View};
use csi_proto::Code;

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
    stands_for_node: bool,
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
        let EndpointSettings { relay_node_calls, stands_for_node, first_answer, .. } = *settings;
        let learner = Arc::new(Learner::new(subject, settings.facts.clone(), stands_for_node));
        Self { driver, router, relay, relay_node_calls, stands_for_node, learner, first_answer }
    }

    pub(super) fn refresh(&self) {
        if let Some(topology) = self.router.by_topology() {
            topology.refresh();
        }
        self.learner.refresh();
    }

    pub(super) fn online(&self) {
        self.learner.online();
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
        tokio::spawn(async move {
            let survey = async {
                if let Some(topology) = front.router.by_topology() {
                    topology.run(&*front.relay).await;
                }
            };
            // What was asked before a node came online was asked in vain.
            let hastened = async {
                if let Some(topology) = front.router.by_topology() {
                    loop {
                        topology.comes_online().await;
                        front.learner.online();
                    }
                }
            };
            tokio::join!(survey, hastened, front.learner.run(|question| front.ask(question)));
        })
    }

    async fn ask(&self, asked: startup::Question) -> Result<Bytes, Outcome> {
        let method =
            MethodPath::new(asked.path()).map_err(|error| Fault::Protocol { reason: error.to_string() })?;
        let (metadata, abandoned) = (Metadata::default(), Abandoned::default());
        let end = Instant::now() + ASKING;
        let node = match self.router.choose(&method, &Bytes::new()).await.map_err(refused)? {
            Chosen::Node(node) => node,
            Chosen::Topology(topology) => {
                return topology.startup(&self.way(&metadata, end, &abandoned), asked).await;
            }
        };
        let call = self.address(node, Question { method, metadata, body: Bytes::new(), end, abandoned });
        let (messages, outcome) =
            self.relay.relay(call).await.unwrap_or_else(Replies::outcome).collect().await;
        match messages.into_iter().next() {
            Some(message) if outcome.is_ok() => Ok(message),
            _ => Err(outcome),
        }
    }

    pub(super) async fn answer(&self, question: Question) -> Replies {
        let known = startup::Question::from_path(question.method.as_str());
        let is_local = |known: &startup::Question| match known {
            startup::Question::NodeInfo => self.stands_for_node,
            // Who makes node calls here hears the node itself.
            startup::Question::NodeCapabilities => !self.relay_node_calls,
            _ => true,
        };
        if let Some(known) = known.filter(is_local) {
            return self.learner.answer(known, self.first_answer.min(left(question.end))).await;
        }
        if question.method.service() == NODE_SERVICE && !self.relay_node_calls {
            let text = "Node calls mount volumes and mean nothing on another host; make them on the node's own socket";
            return Replies::outcome(Outcome::from_endpoint(Code::UNIMPLEMENTED, text));
        }
        let (method, abandoned) = (question.method.clone(), question.abandoned.clone());
        let node = match self.router.choose(&method, &question.body).await {
            Ok(Chosen::Node(node)) => node,
            Ok(Chosen::Topology(topology)) => {
                let Question { method, metadata, body, end, abandoned } = question;
                return topology
                    .answer(&self.way(&metadata, end, &abandoned), Inquiry { method, body })
                    .await;
            }
            Err(error) => {
                let outcome = refused(error);
                tracing::warn!(%method, driver = %self.driver, code = %outcome.code, message = %outcome.loggable(), "no way for a call");
                return Replies::outcome(outcome);
            }
        };
        let call = self.address(node, question);
        let observation = Observation::start("endpoint", &call).abandoned_by(abandoned);
        let answer = self.relay.relay(call).await;
        let answer = if method.is_unary() { answer.map(one_message) } else { answer };
        let answer =
            if self.stands_for_node { answer.map(|replies| self.placed(&method, replies)) } else { answer };
        observation.answered(answer).unwrap_or_else(Replies::outcome)
    }

    /// A new volume says where it is: where its node is, if the driver has not said it.
    fn placed(&self, method: &MethodPath, answer: Replies) -> Replies {
        match self
            .learner
            .place()
            .filter(|_| Method::from_path(method.as_str()) == Some(Method::CreateVolume))
        {
            Some(place) => place::placed(answer, place),
            None => answer,
        }
    }

    /// The call that a question becomes once its node is chosen.
    fn address(&self, node: NodeId, question: Question) -> Call {
        let Question { method, metadata, body, end, .. } = question;
        let call = Call::new(CallId::new(), node, self.driver.clone(), method, body);
        // Now, since choosing may have taken its time.
        call.with_remaining(left(end)).with_metadata(metadata)
    }

    fn way<'a>(&'a self, metadata: &'a Metadata, end: Instant, abandoned: &'a Abandoned) -> Way<'a> {
        Way { relay: &*self.relay, driver: &self.driver, metadata, end, abandoned }
    }
}

fn refused(error: RouteError) -> Outcome {
    match error {
        RouteError::Fault(fault) => fault.into(),
        RouteError::Answered(outcome) => *outcome,
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
