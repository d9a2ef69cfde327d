//! Frames: what peers and hubs say to each other, and how it lies on the wire.
//!
//! A frame is a varint, a header of that many bytes (`edge.session.v1.Header` of the published schema), and a body that the
//! transport never looks at. [`decode`] and [`encode`] translate between the wire and [`Frame`], whose types cannot hold a
//! bad value; bodies are slices of what was received and are never copied.

mod codec;
mod failure;
mod wire;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

pub use codec::{DecodeError, Encoder, decode, encode};
pub use failure::{Failure, Reason};
pub use wire::{Lane, WireFrame};

use crate::name::{PeerId, ServiceName, SessionId};
use crate::token::Token;

/// The protocol version that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest header in bytes.
pub const MAX_HEADER: usize = 64 * 1024;

/// Largest metadata of a request in bytes. It travels in the header.
pub const MAX_METADATA: usize = 48 * 1024;

/// Most closing bytes of a call. They travel in the header.
pub const MAX_CLOSING: usize = 48 * 1024;

/// Longest reason or detail in bytes; a longer one is cut.
pub const MAX_TEXT: usize = 1024;

/// Most services that a hello may name.
pub const MAX_SERVICES: usize = 256;

/// Most features that a hello may name, each of at most 64 bytes; further or longer ones are ignored.
pub const MAX_FEATURES: usize = 32;

/// Largest frame in bytes where nothing else was set.
pub const DEFAULT_MAX_FRAME: usize = 8 * 1024 * 1024;

/// Lowest bound for frames, in bytes, that leaves room for headers and small bodies.
pub const MIN_MAX_FRAME: usize = 4 * 1024;

/// Bytes that a frame may grow on its way through a hub, which writes names into it. A peer keeps them free.
pub const HEADROOM: usize = 1024;

/// What a message without a body costs of a call's credit, in bytes, so that empty messages are bounded too.
pub const MESSAGE_COST: u64 = 64;

/// What a message costs of a call's credit, in bytes.
#[must_use]
pub const fn cost(body: &Bytes) -> u64 {
    body.len() as u64 + MESSAGE_COST
}

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Who sent it; `None`: the other end of the link.
    pub source: Option<PeerId>,
    /// Who shall get the request; `None`: the other end of the link.
    pub target: Option<PeerId>,
    /// What it says.
    pub kind: Kind,
}

impl Frame {
    /// A frame between the two ends of a link.
    #[must_use]
    pub const fn hop(kind: Kind) -> Self {
        Self { source: None, target: None, kind }
    }

    /// A frame of a call.
    #[must_use]
    pub const fn call(source: Option<PeerId>, target: Option<PeerId>, number: u64, part: Part) -> Self {
        Self { source, target, kind: Kind::Call(number, part) }
    }

    /// A frame that says nothing. Sent as the last of a lane whose call ended without a last frame of its own, so that links
    /// which keep lanes apart can let go of it.
    pub(crate) const fn silence() -> Self {
        Self::hop(Kind::Pong { nonce: 0 })
    }

    /// Whether no frame of this call follows in the same direction on the frame's lane.
    #[must_use]
    pub const fn ends_lane(&self) -> bool {
        match &self.kind {
            Kind::Call(_, Part::Request(_)) => true,
            Kind::Call(_, Part::Reply(reply)) => reply.end.is_some(),
            Kind::Pong { nonce } => *nonce == 0,
            _ => false,
        }
    }
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// First frame of both ends of a link.
    Hello(Hello),
    /// A part of the call with this number, which the end that sent the request has chosen, never twice on one link.
    Call(u64, Part),
    /// Asks for a [`Kind::Pong`].
    Ping {
        /// To tell the answers apart.
        nonce: u64,
    },
    /// Answers a [`Kind::Ping`].
    Pong {
        /// The number of the ping.
        nonce: u64,
    },
    /// The sender takes no new calls; in place of a hello: it refuses the link.
    Drain {
        /// Why, for people.
        reason: String,
    },
    /// A kind that this version does not know. Ignored.
    Unknown,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Opens the call.
    Request(Request),
    /// A piece of the answer.
    Reply(Reply),
    /// More credit for replies, in bytes.
    Credit {
        /// How much more.
        bytes: u64,
    },
    /// The requester no longer waits: a request that has not begun does not begin.
    StopWaiting,
}

/// Introduces one end of a link to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hello {
    /// Lowest protocol version spoken.
    pub version_min: u32,
    /// Highest protocol version spoken.
    pub version_max: u32,
    /// The sender's name.
    pub peer: PeerId,
    /// The sender's session.
    pub session: SessionId,
    /// Largest frame in bytes that the sender takes.
    pub max_frame: usize,
    /// Services that the sender answers.
    pub services: Vec<ServiceName>,
    /// Optional abilities of the sender.
    pub features: Vec<String>,
    /// By what the sender proves its name where the link does not. A link puts it in, a hub takes it out.
    pub token: Option<Token>,
}

impl Hello {
    /// A peer that speaks [`PROTOCOL_VERSION`], takes [`DEFAULT_MAX_FRAME`] and answers nothing.
    #[must_use]
    pub const fn new(peer: PeerId, session: SessionId) -> Self {
        Self {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            peer,
            session,
            max_frame: DEFAULT_MAX_FRAME,
            services: Vec::new(),
            features: Vec::new(),
            token: None,
        }
    }
}

/// Opens a call: what a caller asks, and what the service gets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The service that shall answer.
    pub service: ServiceName,
    /// How long the caller waits, from the moment of sending. `None`: without limit.
    pub remaining: Option<Duration>,
    /// Bytes for the service, at most [`MAX_METADATA`].
    pub metadata: Bytes,
    /// First credit for replies, in bytes. The caller's peer sets it.
    pub credit: u64,
    /// The session of the target that shall get the request. Hub and target refuse it with
    /// [`WrongSession`](Reason::WrongSession) on any other. `None`: any session.
    pub to_session: Option<SessionId>,
    /// The request.
    pub body: Bytes,
}

impl Request {
    /// A request without limit of time, metadata or credit, to any session.
    #[must_use]
    pub fn new(service: ServiceName, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self { service, remaining: None, metadata: Bytes::new(), credit: 0, to_session: None, body }
    }

    /// How long the caller waits.
    #[must_use]
    pub fn remaining(mut self, remaining: impl Into<Option<Duration>>) -> Self {
        self.remaining = remaining.into();
        self
    }

    /// Only this session of the target gets the request.
    #[must_use]
    pub fn to_session(mut self, session: impl Into<Option<SessionId>>) -> Self {
        self.to_session = session.into();
        self
    }

    /// Bytes that belong to the service.
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }
}

impl fmt::Debug for Request {
    // Bodies and metadata may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("service", &self.service)
            .field("remaining", &self.remaining)
            .field("credit", &self.credit)
            .field("to_session", &self.to_session)
            .field("body_len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A piece of an answer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Counts from 1; 0 for a failure made by a hub, or by the target in place of an answer.
    pub sequence: u64,
    /// A message of the service.
    pub message: Option<Bytes>,
    /// Whether, and how, the call ends here.
    pub end: Option<End>,
}

impl Reply {
    /// A reply that says nothing yet.
    #[must_use]
    pub const fn new(sequence: u64) -> Self {
        Self { sequence, message: None, end: None }
    }

    /// A failure made on the way, which ends the call wherever it stands.
    #[must_use]
    pub const fn failed(failure: Failure) -> Self {
        Self { sequence: 0, message: None, end: Some(End::Failed(failure)) }
    }
}

impl fmt::Debug for Reply {
    // Messages may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("sequence", &self.sequence)
            .field("message_len", &self.message.as_ref().map(Bytes::len))
            .field("end", &self.end)
            .finish()
    }
}

/// How a call ends.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The service ended it, with its own closing bytes.
    Finished(Bytes),
    /// The transport ended it.
    Failed(Failure),
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished(closing) => f.debug_tuple("Finished").field(&closing.len()).finish(),
            Self::Failed(failure) => f.debug_tuple("Failed").field(failure).finish(),
        }
    }
}
