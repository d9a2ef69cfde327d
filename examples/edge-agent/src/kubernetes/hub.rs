//! Questions to the hub, each with one answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use edge_transport::{CallError, Failure, InvalidName, Peer, ReplyEvent, ReplyStream, ServiceName};
use prost::{DecodeError, Message};
use tokio::sync::Semaphore;

use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{Request, Watch};

/// The most questions that wait for their answer at the same time, but for the one that never ends; others wait. A hub turns
/// away a node that asks too much at once.
const MAX_QUESTIONS: usize = 16;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// The hub has not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// The agent is only starting.
    #[error("the agent is not connected to its hub yet")]
    NotStarted,
    /// The question has not left the agent.
    #[error("the hub is away: {0}")]
    Away(#[from] CallError),
    /// The hub, or its side for Kubernetes, has not answered.
    #[error("the hub does not answer for Kubernetes: {0}")]
    Failed(Failure),
    /// The answer cannot be read.
    #[error("the hub's answer cannot be read: {0}")]
    Malformed(#[from] DecodeError),
    /// There was no answer.
    #[error("the hub ended the question without an answer")]
    Nothing,
}

/// The client of the hub's Kubernetes service. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Hub {
    service: ServiceName,
    /// The volumes, which ask for secrets, are there before the peer, which serves them.
    peer: Arc<OnceLock<Peer>>,
    places: Arc<Semaphore>,
}

impl Hub {
    pub(super) fn new() -> Result<Self, InvalidName> {
        let service = ServiceName::new(SERVICE)?;
        let places = Arc::new(Semaphore::new(MAX_QUESTIONS));
        Ok(Self { service, peer: Arc::default(), places })
    }

    /// From now on questions go over this peer.
    pub(super) fn connect(&self, peer: Peer) {
        // An agent has one peer.
        let _ = self.peer.set(peer);
    }

    /// Waits until a hub is connected.
    pub(super) async fn connected(&self) {
        if let Some(peer) = self.peer.get() {
            // A peer that is closed answers the next question with that.
            let _ = peer.connected().await;
        }
    }

    /// One question, one answer.
    pub(super) async fn ask<A: Message + Default>(&self, question: Kind) -> Result<A, AskError> {
        // It is never closed.
        let _place = self.places.acquire().await;
        let mut replies = self.call(question, Some(PATIENCE)).await?;
        let mut answer = None;
        loop {
            match replies.next().await {
                Some(Ok(ReplyEvent::Message(bytes))) => answer = Some(A::decode(bytes)?),
                Some(Ok(_)) | None => return answer.ok_or(AskError::Nothing),
                Some(Err(failure)) => return Err(AskError::Failed(failure)),
            }
        }
    }

    /// The changes from what the node has, without an end.
    pub(super) async fn watch(&self, watch: Watch) -> Result<ReplyStream, AskError> {
        self.call(Kind::Watch(watch), None).await
    }

    async fn call(&self, question: Kind, remaining: Option<Duration>) -> Result<ReplyStream, AskError> {
        let peer = self.peer.get().ok_or(AskError::NotStarted)?;
        let body = Request { request: Some(question) }.encode_to_vec();
        let request = edge_transport::Request::new(self.service.clone(), body);
        Ok(peer.call(peer.hub()?, request.remaining(remaining)).await?)
    }
}
