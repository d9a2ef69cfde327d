//! Why a link was closed.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::name::{PeerId, SessionId};

/// Why a link was closed, by this end or the other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The other end refused the link.
    #[error("refused by the other end: {reason}")]
    Refused {
        /// The reason that the other end gave.
        reason: String,
    },
    /// No common protocol version.
    #[error(
        "no common protocol version: this end supports {}, the other end {}; upgrade the older one",
        version_range(local),
        version_range(remote)
    )]
    Version {
        /// The versions of this end.
        local: RangeInclusive<u32>,
        /// The versions of the other end.
        remote: RangeInclusive<u32>,
    },
    /// No hello arrived in time.
    #[error("no hello within {after:?}")]
    HelloTimeout {
        /// The timeout.
        after: Duration,
    },
    /// No frame arrived in time.
    #[error("no frame received for {after:?}")]
    Dead {
        /// The liveness timeout.
        after: Duration,
    },
    /// The other end does not read.
    #[error("the other end read nothing for {after:?} while frames were queued")]
    Stalled {
        /// Time since the other end last read.
        after: Duration,
    },
    /// A frame was not complete in time.
    #[error("a frame was not complete within {after:?}")]
    UnfinishedFrame {
        /// The timeout.
        after: Duration,
    },
    /// The other end broke the protocol of the link.
    #[error("protocol error: {cause}")]
    Protocol {
        /// The violation.
        cause: String,
    },
    /// The other end did not prove the name in its hello.
    #[error("peer {claimed} is not authenticated: {cause}")]
    Unauthenticated {
        /// The name in the hello.
        claimed: PeerId,
        /// What is missing.
        cause: String,
    },
    /// The same instance of the peer has a newer session.
    #[error("peer {peer} has session {current}; found the older session {found} of the same instance")]
    OlderSession {
        /// The peer.
        peer: PeerId,
        /// The session in the refused hello.
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
        /// The session in the refused hello.
        found: SessionId,
        /// The session that is connected.
        current: SessionId,
    },
    /// The same instance of the peer connected again.
    #[error("peer {peer} connected again with session {by}")]
    Replaced {
        /// The peer.
        peer: PeerId,
        /// The peer's new session.
        by: SessionId,
    },
    /// A limit of the hub is reached.
    #[error("{resource} reached its limit of {max}; try again later")]
    Overloaded {
        /// The limited resource.
        resource: &'static str,
        /// The limit.
        max: usize,
    },
    /// The drain is complete: no call is open.
    #[error("drained: {reason}")]
    Drained {
        /// Why it was drained.
        reason: String,
    },
    /// Calls were still open at the drain timeout.
    #[error("drain timed out after {after:?}: {reason}")]
    DrainTimeout {
        /// The timeout.
        after: Duration,
        /// Why it was drained.
        reason: String,
    },
    /// Closed locally.
    #[error("closed")]
    Closed,
}

fn version_range(versions: &RangeInclusive<u32>) -> String {
    match (versions.start(), versions.end()) {
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low} to {high}"),
    }
}
