//! The service `kubernetes` of a session: what nodes ask the hub.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::{PeerId, Reason, ReplySender, Service};
use kube::Client;
use prost::Message;
use tokio::time::MissedTickBehavior;

use super::board::{Board, Listener};
use super::events::{self, Events, PodName};
use super::figures::Figures;
use super::node_name::NodeName;
use super::report::{self, ReportFailure};
use super::secret::{self, Nothing};
use super::statuses::Statuses;
use super::turns::Turns;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{
    Fetched, NodeStatus, Request, SecretAnswer, StatusTaken, TokenAnswer, Watch,
};

/// How often it is looked whether a node that hears nothing is still there.
const LOOK: Duration = Duration::from_secs(10);

/// Answers nodes, each about itself.
#[derive(Clone)]
pub(super) struct NodeService {
    pub(super) client: Client,
    pub(super) board: Board,
    pub(super) turns: Turns,
    pub(super) figures: Figures,
    pub(super) statuses: Statuses,
    pub(super) events: Events,
}

#[async_trait]
impl Service for NodeService {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // In a task of its own: a node's objects are many, and other nodes ask too.
        tokio::spawn(self.clone().answer(source, request.body, replies));
    }
}

impl NodeService {
    async fn answer(self, source: PeerId, request: Bytes, replies: ReplySender) {
        let node = match NodeName::new(source.as_str()) {
            Ok(node) => node,
            Err(cause) => {
                tracing::warn!(from = %source, %cause, "a peer that can be no Node asks for its objects");
                return fail(replies, Reason::Forbidden, cause.to_string()).await;
            }
        };
        let kind = match Request::decode(request) {
            Ok(Request { request: Some(kind) }) => kind,
            Ok(Request { request: None }) => {
                return fail(replies, Reason::Protocol, "this hub has no answer to it").await;
            }
            Err(cause) => return fail(replies, Reason::Protocol, format!("not a request: {cause}")).await,
        };
        // What waits for ever is no turn.
        if let Kind::Watch(watch) = kind {
            return self.feed(node, watch, replies).await;
        }
        let Some(turn) = self.turns.enter(&node) else {
            return fail(replies, Reason::Overloaded, "this node has too many requests under way").await;
        };
        let answer: Bytes = match kind {
            Kind::Watch(_) => return,
            Kind::Status(status) => {
                let _alone = turn.alone().await;
                let _place = turn.place().await;
                let taken = self.report(&node, &status).await;
                self.hear(&node, &status);
                taken.encode_to_vec().into()
            }
            Kind::Secret(query) => {
                let _place = turn.place().await;
                let read = secret::secret(&self.client, &self.board, &node, query).await;
                let (values, fetched, reason) = self.fetched(&node, "secret", read);
                SecretAnswer { fetched, reason, values }.encode_to_vec().into()
            }
            Kind::Token(query) => {
                let _place = turn.place().await;
                let made = secret::tokens(&self.client, &self.board, &node, query).await;
                let (tokens, fetched, reason) = self.fetched(&node, "token", made);
                TokenAnswer { fetched, reason, tokens }.encode_to_vec().into()
            }
        };
        // That the node has left is its own business.
        let _ = replies.message_and_finish(answer, Bytes::new()).await;
    }

    /// Counts and logs what became of a question for something secret, and makes an answer of it.
    fn fetched<T: Default>(
        &self,
        node: &NodeName,
        what: &'static str,
        found: Result<T, Nothing>,
    ) -> (T, i32, String) {
        let (value, fetched, reason) = match found {
            Ok(value) => (value, Fetched::Found, String::new()),
            Err(Nothing { fetched, reason }) => {
                tracing::warn!(%node, ?fetched, "a node got no {what}: {reason}");
                (T::default(), fetched, reason)
            }
        };
        self.figures.fetched(what, fetched);
        (value, fetched.into(), reason)
    }

    /// Writes a status, and keeps it for a Node that is made anew.
    async fn report(&self, node: &NodeName, status: &NodeStatus) -> StatusTaken {
        let report::Written { volumes_in_use, all: written } =
            report::write(&self.client, &self.board, node, status).await;
        if let Err(failure) = &written {
            tracing::warn!(%node, %failure, "a node's status is not written");
        }
        self.figures.reported(node, status, written.is_ok());
        let failure = written.as_ref().map_or_else(ToString::to_string, |_| String::new());
        // What can never be written is not kept.
        if !matches!(written, Err(ReportFailure::OutOfBounds(_))) {
            self.statuses.keep(node, status, written.ok());
        }
        StatusTaken { failure, volumes_in_use }
    }

    /// Has events written of what a node says of its own pods.
    fn hear(&self, node: &NodeName, status: &NodeStatus) {
        let pods = self.board.look(|core| core.pods_of(node));
        let own = pods.iter().map(|pod| {
            let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
            PodName { uid, namespace, name }
        });
        self.events.hear(&self.client, node, status, &own.collect());
    }

    /// Counts what lasts, for ever.
    pub(super) async fn keep_events(self) {
        let mut round = tokio::time::interval(events::ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            self.events.tick(&self.client, |node| self.statuses.listens(node));
        }
    }

    /// A Node has been seen. If it lacks what its node has said, that is written.
    pub(super) async fn saw_node(&self, name: &str, uid: &str) {
        if self.statuses.missing(name, uid).is_none() {
            return;
        }
        let Some(turn) = NodeName::new(name).ok().and_then(|node| self.turns.enter(&node)) else { return };
        let _alone = turn.alone().await;
        let _place = turn.place().await;
        // Meanwhile the node itself may have said it.
        if let Some((node, status)) = self.statuses.missing(name, uid) {
            tracing::info!(%node, uid, "the Node is new: its node's status is written to it");
            self.report(&node, &status).await;
        }
    }

    /// Tells a node its objects, until it has left.
    async fn feed(&self, node: NodeName, has: Watch, mut replies: ReplySender) {
        tracing::info!(%node, revision = has.revision, "a node watches its objects");
        let mut listener = self.board.listen(node, has);
        let (node, number) = (listener.subscription.node.clone(), listener.subscription.generation);
        self.statuses.enter(&node, number);
        let ended = tell(&mut listener, &mut replies).await;
        self.statuses.leave(&node, number);
        tracing::info!(%node, ?ended, "a node watches no more");
        if let Some(reason) = ended {
            fail(replies, Reason::Draining, reason).await;
        }
    }
}

/// Tells a node its objects, until that ends; why, if the node has not left. Changes wait in the core while the node is slow,
/// where they become one.
async fn tell(listener: &mut Listener, replies: &mut ReplySender) -> Option<&'static str> {
    let mut look = tokio::time::interval(LOOK);
    loop {
        let heard = tokio::select! {
            heard = listener.next() => heard,
            _ = look.tick() => {
                if replies.is_abandoned() {
                    return None;
                }
                continue;
            }
        };
        let parts = match heard {
            Ok(parts) => parts,
            Err(ended) => return Some(ended),
        };
        for part in parts {
            let (changed, gone, revision) = (part.changed.len(), part.gone.len(), part.revision);
            tracing::debug!(node = %listener.subscription.node, revision, changed, gone, "a part of a change");
            if replies.message(part.encode_to_vec().into()).await.is_err() {
                return None;
            }
        }
    }
}

async fn fail(replies: ReplySender, reason: Reason, detail: impl Into<String> + Send) {
    // That the node has left is its own business.
    let _ = replies.fail(reason, detail).await;
}
