//! The inputs and outputs of a session.

use std::time::Instant;

use bytes::Bytes;

use super::{CloseReason, InboundCallId, Remote};
use crate::frame::{End, Request, WireFrame};
use crate::name::PeerId;

/// An input of a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A new link is established.
    LinkUp,
    /// The link was lost.
    LinkLost,
    /// A frame was received.
    Received(Bytes),
    /// The link refused a frame as too large; holds the frame's head.
    Refused(Bytes),
    /// This peer calls another.
    Call {
        /// The call's number, never used before by this peer. Numbers increase, except for a few that overtake each other.
        number: u64,
        /// The peer that is called.
        target: PeerId,
        /// The request.
        request: Request,
        /// The caller's deadline. The request's remaining time is computed from it.
        deadline: Option<Instant>,
    },
    /// The caller has read replies and returns their credit.
    Credit {
        /// The call.
        number: u64,
        /// Credit in bytes.
        bytes: u64,
    },
    /// The caller cancels the call.
    Cancel {
        /// The call.
        number: u64,
    },
    /// A service of this peer sends part of its response.
    Answer {
        /// The call.
        inbound: InboundCallId,
        /// A message, which requires credit.
        message: Option<Bytes>,
        /// How the call ends, if it ends here.
        end: Option<End>,
    },
    /// Accept and make no new calls; close the link when none is open.
    Drain {
        /// Human-readable reason.
        reason: String,
    },
    /// All queued frames are written. Required while [`Session::is_draining`](super::Session::is_draining): a drain is complete
    /// when no call is open and the last replies are written.
    Flushed,
    /// Close the link at once.
    Close,
    /// No frame could arrive lately, because a large one is arriving. Before [`Event::Tick`].
    Excused,
    /// Time has passed.
    Tick,
}

/// A call of another peer for a service of this peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// Identifies the call.
    pub inbound: InboundCallId,
    /// The caller.
    pub source: PeerId,
    /// The shortest name that covers the caller's: its share of limits is shared by all names below.
    pub owner: PeerId,
    /// The request.
    pub request: Request,
}

/// An output of a session, to be executed by its driver.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Send a frame.
    Send {
        /// The frame.
        frame: WireFrame,
        /// For whom it is sent: the caller, without names below its own, whose call this peer serves, or this peer for its own
        /// calls. Frames of different owners may overtake each other. `None` for frames of the link itself.
        owner: Option<PeerId>,
    },
    /// The link is open.
    Opened(Remote),
    /// Call a service.
    Serve(Incoming),
    /// Deliver part of a response to the caller.
    Reply {
        /// The call.
        number: u64,
        /// A message of the service.
        message: Option<Bytes>,
        /// How the call ends, if it ends here.
        end: Option<End>,
    },
    /// A service may send more.
    Credit {
        /// The call.
        inbound: InboundCallId,
        /// Added credit in bytes.
        bytes: u64,
    },
    /// The call was cancelled or its link was lost: nothing waits for its response.
    Cancelled {
        /// The call.
        inbound: InboundCallId,
    },
    /// The other end accepts no new calls.
    Draining {
        /// The reason.
        reason: String,
    },
    /// Send the queued frames, then close the link. Open calls have ended already.
    Close(CloseReason),
}

/// Counters of unusual events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames that could not be decoded.
    pub malformed: u64,
    /// Frames of an unknown kind.
    pub unknown_kinds: u64,
    /// Duplicate requests and replies.
    pub duplicates: u64,
    /// Replies of calls that are not open.
    pub unknown_call_replies: u64,
    /// Replies from a peer other than the call's target.
    pub wrong_source: u64,
    /// Calls that ended because a frame broke the protocol.
    pub protocol_ends: u64,
}
