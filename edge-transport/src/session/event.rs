//! What goes into a session, and what comes out.

use std::time::Instant;

use bytes::Bytes;

use super::{CloseReason, Remote, ServingId};
use crate::frame::{End, Request, WireFrame};
use crate::name::PeerId;

/// What happens to a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A fresh link is there.
    LinkUp,
    /// The link is gone.
    LinkLost,
    /// A frame came.
    Received(Bytes),
    /// The link refused a frame as too large; this was its head.
    Refused(Bytes),
    /// This peer calls another.
    Call {
        /// The call's number, never used before by this peer; higher than those before it but for a few that overtake each other.
        number: u64,
        /// Who shall answer.
        target: PeerId,
        /// What is asked.
        request: Request,
        /// When the caller stops waiting. The request's remaining time is made from it.
        deadline: Option<Instant>,
    },
    /// The caller has read replies of so many bytes.
    Credit {
        /// The call.
        number: u64,
        /// Credit to give back, in bytes.
        bytes: u64,
    },
    /// The caller no longer waits.
    StopWaiting {
        /// The call.
        number: u64,
    },
    /// A service of this peer answers.
    Answer {
        /// The call.
        serving: ServingId,
        /// A message, for which there must be credit.
        message: Option<Bytes>,
        /// Whether the call ends here.
        end: Option<End>,
    },
    /// Take and make no new calls; close the link when none is open.
    Drain {
        /// Why, for people.
        reason: String,
    },
    /// All that was to be sent has been written. Tell it while [`Session::is_draining`](super::Session::is_draining): a drain is
    /// done when no call is open and the last answers are out.
    Flushed,
    /// Close the link at once.
    Close,
    /// Time has passed.
    Tick,
}

/// A call of another peer, to be handed to a service.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// The call at this peer.
    pub serving: ServingId,
    /// Who calls.
    pub source: PeerId,
    /// What is asked.
    pub request: Request,
}

/// What the driver of a session has to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Put a frame on the link.
    Send(WireFrame),
    /// The link is in use.
    Opened(Remote),
    /// Start a service.
    Serve(Incoming),
    /// Hand a part of an answer to the caller.
    Reply {
        /// The call.
        number: u64,
        /// A message of the service.
        message: Option<Bytes>,
        /// Whether the call ends here.
        end: Option<End>,
    },
    /// A service may send more.
    Credit {
        /// The call.
        serving: ServingId,
        /// How much more, in bytes.
        bytes: u64,
    },
    /// Nobody waits for this call any more.
    Abandoned {
        /// The call.
        serving: ServingId,
    },
    /// The other end takes no new calls.
    Draining {
        /// Why.
        reason: String,
    },
    /// Send what is waiting, then close the link. Open calls have ended already.
    Close(CloseReason),
}

/// Counts of what should be rare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames that could not be decoded.
    pub malformed: u64,
    /// Frames of a kind that is not known here.
    pub unknown_kinds: u64,
    /// Requests and replies that came twice.
    pub duplicates: u64,
    /// Replies of calls that are not open.
    pub stray_replies: u64,
    /// Replies that did not come from the call's target.
    pub wrong_source: u64,
    /// Calls that ended because a frame broke the protocol.
    pub protocol_ends: u64,
}
