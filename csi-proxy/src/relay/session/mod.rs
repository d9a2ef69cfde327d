//! Calls over a session of `edge_transport`: the near side and the far side.
//!
//! A call is a request to the service [`CSI_SERVICE`] of the peer that has the node's name: its metadata is the
//! [`CallHeader`](crate::call::wire), its body the call's body. The answer's messages are messages, its end the closing bytes.

mod nodes;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::frame::MAX_CLOSING;
use edge_transport::{
    CallError, Failure, InvalidName, Peer, PeerId, Reason, ReplyEvent, ReplySender, ReplyStream, Request,
    Service, ServiceName, SessionId,
};
use futures_util::{StreamExt, stream};

pub use self::nodes::NodeWatch;
use crate::call::{Call, Fault, NodeId, NodeSession, Outcome, Replies, Reply};
use crate::relay::Relay;

/// The name under which a node's peer answers CSI calls.
pub const CSI_SERVICE: &str = "csi";

impl TryFrom<&NodeId> for PeerId {
    type Error = InvalidName;

    fn try_from(node: &NodeId) -> Result<Self, InvalidName> {
        Self::new(node.as_str())
    }
}

impl From<SessionId> for NodeSession {
    fn from(session: SessionId) -> Self {
        let SessionId { instance, number } = session;
        Self { instance, number }
    }
}

/// The near side: carries calls to the peer that has the node's name, on the session that they are addressed to, if any.
///
/// One attempt each: a [`RetryRelay`](crate::RetryRelay) around it sends a call again. Dropping the answer, or the future, cancels the
/// request.
#[derive(Debug, Clone)]
pub struct SessionRelay {
    peer: Peer,
}

impl SessionRelay {
    /// A relay over the sessions of this peer.
    #[must_use]
    pub fn new(peer: Peer) -> Self {
        Self { peer }
    }
}

#[async_trait]
impl Relay for SessionRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let way = Way::of(&call);
        let name = |error: InvalidName| Fault::Protocol { reason: error.to_string() };
        let target = PeerId::try_from(&call.node).map_err(name)?;
        let service = ServiceName::new(CSI_SERVICE).map_err(name)?;
        let session = call.session.map(|NodeSession { instance, number }| SessionId { instance, number });
        let request = Request::new(service, call.body.clone())
            .metadata(call.encode_header())
            .remaining(call.remaining)
            .to_session(session);
        let mut answer = self.peer.call(target, request).await.map_err(|error| way.not_sent(error))?;
        match next(&mut answer, &way).await {
            Reply::End(outcome) => match outcome.fault() {
                Some(fault) => Err(fault.clone()),
                None => Ok(Replies::outcome(outcome)),
            },
            first => Ok(parts(first, answer, way)),
        }
    }
}

/// What the words for a failure need to know of the call.
#[derive(Debug, Clone)]
struct Way {
    node: NodeId,
    driver: csi_proto::DriverName,
    remaining: Option<Duration>,
}

impl Way {
    fn of(call: &Call) -> Self {
        Self { node: call.node.clone(), driver: call.driver.clone(), remaining: call.remaining }
    }

    fn not_sent(&self, error: CallError) -> Fault {
        match error {
            CallError::TooLarge { found, max } => {
                Fault::RequestTooLarge { found: found as u64, max: max as u64 }
            }
            CallError::Deadline => self.late(),
            CallError::Draining { reason } => Fault::Draining { what: format!("the session ({reason})") },
            CallError::Closed => Fault::Draining { what: "the session".to_owned() },
            CallError::NotConnected { last_error } => {
                Fault::HubUnreachable { reason: last_error.unwrap_or_else(|| "not connected yet".to_owned()) }
            }
            // The fence has more ranges than fit, since many calls are open.
            CallError::MetadataTooLarge { max, .. } => {
                Fault::Overloaded { what: "the header of the call".to_owned(), max: max as u64 }
            }
            other => Fault::Protocol { reason: other.to_string() },
        }
    }

    fn failed(&self, failure: &Failure) -> Fault {
        let detail = || failure.detail().to_owned();
        match failure.reason() {
            Reason::PeerOffline => Fault::NodeOffline { node: self.node.clone() },
            Reason::WrongSession => Fault::WrongSession { node: self.node.clone() },
            Reason::NoSuchService => Fault::DriverNotRegistered { driver: self.driver.clone() },
            Reason::LinkLost => Fault::LinkLost { reason: detail() },
            Reason::Draining => Fault::Draining { what: detail() },
            Reason::Deadline => self.late(),
            // Request or answer: it cannot be told, so it does not count as never sent.
            Reason::TooLarge => Fault::FrameTooLarge { reason: detail() },
            Reason::Overloaded => Fault::Overloaded { what: detail(), max: 0 },
            Reason::Forbidden => Fault::Forbidden { reason: detail() },
            Reason::ServiceLost => Fault::ServiceLost { what: "the node's dispatcher".to_owned() },
            _ => Fault::Protocol { reason: failure.to_string() },
        }
    }

    fn late(&self) -> Fault {
        Fault::Deadline { waited: self.remaining.unwrap_or_default() }
    }
}

async fn next(answer: &mut ReplyStream, way: &Way) -> Reply {
    let lost = || Fault::ServiceLost { what: "the session".to_owned() };
    Reply::End(match answer.next().await {
        Some(Ok(ReplyEvent::Message(message))) => return Reply::Message(message),
        Some(Ok(ReplyEvent::Finished(closing))) => Outcome::decode(closing)
            .unwrap_or_else(|error| Fault::Protocol { reason: format!("closing of a call: {error}") }.into()),
        Some(Err(failure)) => way.failed(&failure).into(),
        Some(Ok(_)) => Fault::Protocol { reason: "a part of an answer that is not known".to_owned() }.into(),
        None => lost().into(),
    })
}

fn parts(first: Reply, answer: ReplyStream, way: Way) -> Replies {
    let rest = stream::unfold(Some((answer, way)), |state| async move {
        let (mut answer, way) = state?;
        let part = next(&mut answer, &way).await;
        let more = matches!(part, Reply::Message(_)).then_some((answer, way));
        Some((part, more))
    });
    Replies::stream(stream::iter([first]).chain(rest))
}

/// The far side: gives the calls of other peers to a relay, usually a [`Dispatcher`](crate::Dispatcher).
#[derive(Debug, Clone)]
pub struct SessionService<R> {
    relay: R,
}

impl<R: Relay> SessionService<R> {
    /// A service to register as [`CSI_SERVICE`].
    #[must_use]
    pub fn new(relay: R) -> Self {
        Self { relay }
    }
}

#[async_trait]
impl<R: Relay + 'static> Service for SessionService<R> {
    async fn call(&self, _source: PeerId, request: Request, mut replies: ReplySender) {
        let Request { metadata, body, remaining, .. } = request;
        let answer = match Call::decode(metadata, body) {
            Ok(mut call) => {
                call.remaining = remaining;
                // What waits for its turn is not to be begun for nobody. What has begun goes on.
                tokio::select! {
                    biased;
                    answer = self.relay.relay(call) => answer.unwrap_or_else(Replies::outcome),
                    () = replies.abandoned() => Replies::outcome(Fault::CallerGone),
                }
            }
            Err(error) => Replies::outcome(Fault::Protocol { reason: format!("header of a call: {error}") }),
        };
        // Fails only if nobody waits for the answer any more, and then another copy of the call gets it.
        let _ = send(answer, replies).await;
    }
}

async fn send(answer: Replies, mut to: ReplySender) -> Result<(), edge_transport::CallerGone> {
    let mut parts = match answer.into_whole() {
        Ok((Some(message), outcome)) => return to.message_and_finish(message, closing(&outcome)).await,
        Ok((None, outcome)) => return to.finish(closing(&outcome)).await,
        Err(parts) => parts,
    };
    loop {
        match parts.next().await {
            Some(Reply::Message(message)) => to.message(message).await?,
            Some(Reply::End(outcome)) => return to.finish(closing(&outcome)).await,
            None => return Ok(()),
        }
    }
}

fn closing(outcome: &Outcome) -> Bytes {
    outcome.encode_within(MAX_CLOSING)
}
