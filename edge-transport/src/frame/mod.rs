//! Frames: the messages between peers and hubs, and their encoding.
//!
//! A frame is a varint, a header of that many bytes (`edge.session.v1.Header` of the published schema), and a body that is
//! opaque to the transport. [`decode`] and [`encode`] convert between bytes and [`Frame`], whose types hold only valid values.
//! Bodies are slices of the received bytes and are never copied.

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

/// The protocol version of this crate.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest header in bytes.
pub const MAX_HEADER: usize = 64 * 1024;

/// Largest metadata of a request in bytes. Metadata is part of the header.
pub const MAX_METADATA: usize = 48 * 1024;

/// Maximum number of closing bytes of a call, which are part of the header.
pub const MAX_CLOSING: usize = 48 * 1024;

/// Longest reason or detail in bytes; a longer one is truncated.
pub const MAX_TEXT: usize = 1024;

/// Maximum number of services that a hello may name.
pub const MAX_SERVICES: usize = 256;

/// Maximum number of features that a hello may name, each of at most 64 bytes; further or longer ones are ignored.
pub const MAX_FEATURES: usize = 32;

/// Longest interval of the pings of a link on which no call waits: 10 minutes.
pub(crate) const MAX_IDLE_PING: Duration = Duration::from_secs(600);

/// Default of the largest frame in bytes.
pub const DEFAULT_MAX_FRAME: usize = 8 * 1024 * 1024;

/// Lowest allowed `max_frame` in bytes; leaves room for headers and small bodies.
pub const MIN_MAX_FRAME: usize = 4 * 1024;

/// Bytes by which a hub may enlarge a frame when it writes names into it. Peers keep them free.
pub const HEADROOM: usize = 1024;

/// Credit in bytes that a message without a body costs, so that empty messages are limited too.
pub const MESSAGE_COST: u64 = 64;

/// Returns the credit in bytes that a message costs.
#[must_use]
pub const fn cost(body: &Bytes) -> u64 {
    body.len() as u64 + MESSAGE_COST
}

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The sender; `None`: the other end of the link.
    pub source: Option<PeerId>,
    /// The target of the request; `None`: the other end of the link.
    pub target: Option<PeerId>,
    /// The content of the frame.
    pub kind: Kind,
}

impl Frame {
    /// Creates a frame between the two ends of a link.
    #[must_use]
    pub const fn link(kind: Kind) -> Self {
        Self { source: None, target: None, kind }
    }

    /// Creates a frame of a call.
    #[must_use]
    pub const fn call(source: Option<PeerId>, target: Option<PeerId>, number: u64, part: Part) -> Self {
        Self { source, target, kind: Kind::Call(number, part) }
    }

    /// Creates the last frame of a lane whose call ended without a final reply. Links with a stream for each lane
    /// close the stream with it.
    pub(crate) const fn end_of_stream() -> Self {
        Self::link(Kind::Pong { nonce: 0 })
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

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// First frame of both ends of a link.
    Hello(Hello),
    /// A frame of the call with this number. The end that sends the request chooses the number and never reuses it on a link.
    Call(u64, Part),
    /// Asks for a [`Kind::Pong`].
    Ping {
        /// Matches the pong with its ping.
        nonce: u64,
    },
    /// Answers a [`Kind::Ping`].
    Pong {
        /// The nonce of the ping.
        nonce: u64,
    },
    /// The sender accepts no new calls. A drain in place of a hello refuses the link.
    Drain {
        /// Human-readable reason.
        reason: String,
    },
    /// A kind that this version does not support. Such frames are ignored.
    Unknown,
}

/// A frame of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Opens the call.
    Request(Request),
    /// Part of the response.
    Reply(Reply),
    /// Adds credit for replies.
    Credit {
        /// Added credit in bytes.
        bytes: u64,
    },
    /// The requester cancels the call. A request that the service has not started is never started.
    Cancel,
}

/// Introduces one end of a link to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hello {
    /// Lowest supported protocol version.
    pub version_min: u32,
    /// Highest supported protocol version.
    pub version_max: u32,
    /// The sender's name.
    pub peer: PeerId,
    /// The sender's session.
    pub session: SessionId,
    /// Largest frame in bytes that the sender accepts.
    pub max_frame: usize,
    /// Services that the sender answers.
    pub services: Vec<ServiceName>,
    /// Names of the optional features that the sender supports.
    pub features: Vec<String>,
    /// Proves the sender's name where the link does not. The link inserts the token, the hub removes it.
    pub token: Option<Token>,
    /// How often the sender, which has dialed, pings while no call waits, from 1 s to 10 minutes. `None`: as often as
    /// while one does.
    pub idle_ping: Option<Duration>,
}

impl Hello {
    /// Creates a hello with [`PROTOCOL_VERSION`], [`DEFAULT_MAX_FRAME`] and no services.
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
            idle_ping: None,
        }
    }
}

/// Opens a call.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The called service.
    pub service: ServiceName,
    /// Time until the caller's deadline, measured at the moment of sending. `None`: no deadline.
    pub remaining: Option<Duration>,
    /// Bytes for the service, at most [`MAX_METADATA`].
    pub metadata: Bytes,
    /// Initial credit for replies in bytes. Set by the caller's peer.
    pub credit: u64,
    /// The session of the target that the request is for. On any other session, hub and target refuse it with
    /// [`WrongSession`](Reason::WrongSession). `None`: any session.
    pub to_session: Option<SessionId>,
    /// The body of the request.
    pub body: Bytes,
}

impl Request {
    /// Creates a request to any session, without deadline, metadata or credit.
    #[must_use]
    pub fn new(service: ServiceName, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self { service, remaining: None, metadata: Bytes::new(), credit: 0, to_session: None, body }
    }

    /// Sets the time until the caller's deadline.
    #[must_use]
    pub fn remaining(mut self, remaining: impl Into<Option<Duration>>) -> Self {
        self.remaining = remaining.into();
        self
    }

    /// Restricts the request to this session of the target.
    #[must_use]
    pub fn to_session(mut self, session: impl Into<Option<SessionId>>) -> Self {
        self.to_session = session.into();
        self
    }

    /// Sets the metadata, which is opaque to the transport.
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

/// Part of a response.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Number of the reply within its call, from 1. 0 marks a failure that a hub reports, or the target in place
    /// of a response.
    pub sequence: u64,
    /// A message of the service.
    pub message: Option<Bytes>,
    /// How the call ends, if this reply ends it.
    pub end: Option<End>,
}

impl Reply {
    /// Creates an empty reply.
    #[must_use]
    pub const fn new(sequence: u64) -> Self {
        Self { sequence, message: None, end: None }
    }

    /// Creates a reply with a failure of the transport, which ends the call after any earlier replies.
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
    /// The service ended the call, with its own closing bytes.
    Finished(Bytes),
    /// The transport ended the call.
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
