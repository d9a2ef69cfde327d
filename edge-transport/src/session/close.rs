//! Why a link was closed.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::name::{PeerId, SessionId};

/// Why this end closes a link, or finds it closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The other end refused the link.
    #[error("the other end refused: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// No common protocol version.
    #[error(
        "no common protocol version: this end speaks {}, the other {}; upgrade the older one",
        span(ours),
        span(theirs)
    )]
    Version {
        /// What this end speaks.
        ours: RangeInclusive<u32>,
        /// What the other end speaks.
        theirs: RangeInclusive<u32>,
    },
    /// The hello did not come.
    #[error("no hello within {after:?}")]
    HelloTimeout {
        /// The bound.
        after: Duration,
    },
    /// The other end is silent.
    #[error("the other end was silent for {after:?}")]
    Dead {
        /// The bound.
        after: Duration,
    },
    /// The other end does not take what is sent to it.
    #[error("the other end took no frame for {after:?} while some waited")]
    Stalled {
        /// The bound.
        after: Duration,
    },
    /// The other end broke the protocol of the link.
    #[error("protocol error: {cause}")]
    Protocol {
        /// What it did.
        cause: String,
    },
    /// The other end may not use the name that it gave.
    #[error("peer {claimed} is not authenticated: {cause}")]
    Unauthenticated {
        /// The name in its hello.
        claimed: PeerId,
        /// What is missing.
        cause: String,
    },
    /// The same instance of the peer has a newer session here.
    #[error("peer {peer} has session {current}; found the older session {found} of the same instance")]
    OlderSession {
        /// The peer.
        peer: PeerId,
        /// The session in its hello.
        found: SessionId,
        /// The session that is connected.
        current: SessionId,
    },
    /// Another instance of the peer is connected and alive.
    #[error(
        "peer {peer} is connected with session {current} of another instance; found {found}: expected one process of that name, try again later"
    )]
    OtherInstance {
        /// The peer.
        peer: PeerId,
        /// The session in its hello.
        found: SessionId,
        /// The session that is connected.
        current: SessionId,
    },
    /// The same instance of the peer connected again.
    #[error("peer {peer} connected again with session {by}")]
    Replaced {
        /// The peer.
        peer: PeerId,
        /// Its new session.
        by: SessionId,
    },
    /// A bound of the hub is reached.
    #[error("{what} is at its bound of {max}; try again later")]
    Overloaded {
        /// What is full.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// All calls are done after a drain.
    #[error("drained: {reason}")]
    Drained {
        /// Why it was drained.
        reason: String,
    },
    /// Calls were still open when the drain's time was over.
    #[error("drain was not done within {after:?}: {reason}")]
    DrainTimeout {
        /// The bound.
        after: Duration,
        /// Why it was drained.
        reason: String,
    },
    /// Closed by this end's owner.
    #[error("closed")]
    Closed,
}

fn span(versions: &RangeInclusive<u32>) -> String {
    match (versions.start(), versions.end()) {
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low} to {high}"),
    }
}
