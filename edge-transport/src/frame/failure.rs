//! How the transport, and not the service, ends a call.

use std::fmt;

use super::MAX_TEXT;
use crate::generated::session as pb;

/// Why the transport ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A reason that this version does not know.
    Unspecified,
    /// No peer of that name is connected, and nothing of the request was passed on.
    PeerOffline,
    /// The peer does not serve that service.
    NoSuchService,
    /// A link was lost while the call was open; the work may go on.
    LinkLost,
    /// The other end takes no new calls.
    Draining,
    /// The caller's time is over; the work may go on.
    Deadline,
    /// A frame is larger than a link allows; it was not sent.
    TooLarge,
    /// Too many open calls, or too many bytes waiting.
    Overloaded,
    /// The caller may not call that peer.
    Forbidden,
    /// A frame broke the protocol.
    Protocol,
    /// The service ended without an answer.
    ServiceLost,
    /// The request is addressed to another session of the peer than the one that is connected. Nothing was given to the service.
    WrongSession,
}

impl Reason {
    /// The reason's name in the schema.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "REASON_UNSPECIFIED",
            Self::PeerOffline => "PEER_OFFLINE",
            Self::NoSuchService => "NO_SUCH_SERVICE",
            Self::LinkLost => "LINK_LOST",
            Self::Draining => "DRAINING",
            Self::Deadline => "DEADLINE",
            Self::TooLarge => "TOO_LARGE",
            Self::Overloaded => "OVERLOADED",
            Self::Forbidden => "FORBIDDEN",
            Self::Protocol => "PROTOCOL",
            Self::ServiceLost => "SERVICE_LOST",
            Self::WrongSession => "WRONG_SESSION",
        }
    }

    pub(super) fn from_wire(number: i32) -> Self {
        match pb::failure::Reason::try_from(number) {
            Ok(pb::failure::Reason::PeerOffline) => Self::PeerOffline,
            Ok(pb::failure::Reason::NoSuchService) => Self::NoSuchService,
            Ok(pb::failure::Reason::LinkLost) => Self::LinkLost,
            Ok(pb::failure::Reason::Draining) => Self::Draining,
            Ok(pb::failure::Reason::Deadline) => Self::Deadline,
            Ok(pb::failure::Reason::TooLarge) => Self::TooLarge,
            Ok(pb::failure::Reason::Overloaded) => Self::Overloaded,
            Ok(pb::failure::Reason::Forbidden) => Self::Forbidden,
            Ok(pb::failure::Reason::Protocol) => Self::Protocol,
            Ok(pb::failure::Reason::ServiceLost) => Self::ServiceLost,
            Ok(pb::failure::Reason::WrongSession) => Self::WrongSession,
            Ok(pb::failure::Reason::Unspecified) | Err(_) => Self::Unspecified,
        }
    }

    pub(super) const fn to_wire(self) -> i32 {
        (match self {
            Self::Unspecified => pb::failure::Reason::Unspecified,
            Self::PeerOffline => pb::failure::Reason::PeerOffline,
            Self::NoSuchService => pb::failure::Reason::NoSuchService,
            Self::LinkLost => pb::failure::Reason::LinkLost,
            Self::Draining => pb::failure::Reason::Draining,
            Self::Deadline => pb::failure::Reason::Deadline,
            Self::TooLarge => pb::failure::Reason::TooLarge,
            Self::Overloaded => pb::failure::Reason::Overloaded,
            Self::Forbidden => pb::failure::Reason::Forbidden,
            Self::Protocol => pb::failure::Reason::Protocol,
            Self::ServiceLost => pb::failure::Reason::ServiceLost,
            Self::WrongSession => pb::failure::Reason::WrongSession,
        }) as i32
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The transport ended a call. What the service itself says about a call never comes as this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Failure {
    reason: Reason,
    detail: Box<str>,
}

impl Failure {
    /// Says why a call ended. A detail longer than [`MAX_TEXT`] is cut.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: cut(detail.into()).into_boxed_str() }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// More, for people.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Cuts a text to its bound, at a character's end.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
