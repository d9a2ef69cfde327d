//! The client of the hub's Kubernetes service.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use edge_transport::{CallError, Failure, InvalidName, Peer, ReplyEvent, ReplyStream, ServiceName};
use prost::{DecodeError, Message};
use tokio::sync::Semaphore;

use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{Request, Watch};

/// The maximum number of concurrent requests besides the watch; others wait. A hub refuses more requests of a
/// node.
const MAX_REQUESTS: usize = 16;

/// The maximum wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// A request to the hub failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The agent is starting and has no peer yet.
    #[error("the agent is not connected to its hub yet")]
    NotStarted,
    /// The request was not sent.
    #[error("the hub is not connected: {0}")]
    NotSent(#[from] CallError),
    /// The hub, or its Kubernetes service, replied with a failure.
    #[error("the hub's Kubernetes service failed: {0}")]
    Failed(Failure),
    /// The reply cannot be decoded.
    #[error("cannot decode the hub's reply: {0}")]
    Malformed(#[from] DecodeError),
    /// The reply has no message.
    #[error("the hub ended the request without a reply")]
    Empty,
}

impl RequestError {
    /// Whether a hub may have received the request.
    pub(super) const fn may_be_received(&self) -> bool {
        !matches!(self, Self::NotSent(_) | Self::NotStarted)
    }
}

/// A client of the hub's Kubernetes service. Clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct Hub {
    service: ServiceName,
    /// Set after the volumes were opened: they request secrets here, and the peer serves them.
    peer: Arc<OnceLock<Peer>>,
    slots: Arc<Semaphore>,
}

impl Hub {
    pub(super) fn new() -> Result<Self, InvalidName> {
        let service = ServiceName::new(SERVICE)?;
        let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
        Ok(Self { service, peer: Arc::default(), slots })
    }

    /// Sets the peer that sends the requests.
    pub(super) fn set_peer(&self, peer: Peer) {
        // An agent has one peer.
        let _ = self.peer.set(peer);
    }

    /// Waits until a hub is connected.
    pub(super) async fn connected(&self) {
        if let Some(peer) = self.peer.get() {
            // The next request fails if the peer is closed.
            let _ = peer.connected().await;
        }
    }

    /// Sends a request and waits for its reply.
    pub(super) async fn request<R: Message + Default>(&self, request: Kind) -> Result<R, RequestError> {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let mut replies = self.call(request, Some(REPLY_TIMEOUT)).await?;
        let mut reply = None;
        loop {
            match replies.next().await {
                Some(Ok(ReplyEvent::Message(bytes))) => reply = Some(R::decode(bytes)?),
                Some(Ok(_)) | None => return reply.ok_or(RequestError::Empty),
                Some(Err(failure)) => return Err(RequestError::Failed(failure)),
            }
        }
    }

    /// Starts a watch of the changes after a position.
    pub(super) async fn watch(&self, position: Watch) -> Result<ReplyStream, RequestError> {
        self.open(Kind::Watch(position)).await
    }

    /// Sends a request that stays open until the stream is dropped.
    pub(super) async fn open(&self, request: Kind) -> Result<ReplyStream, RequestError> {
        self.call(request, None).await
    }

    async fn call(&self, request: Kind, remaining: Option<Duration>) -> Result<ReplyStream, RequestError> {
        let peer = self.peer.get().ok_or(RequestError::NotStarted)?;
        let body = Request { request: Some(request) }.encode_to_vec();
        let request = edge_transport::Request::new(self.service.clone(), body);
        Ok(peer.call(peer.hub()?, request.remaining(remaining)).await?)
    }
}
