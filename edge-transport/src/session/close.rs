//! Why a link was closed.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::name::{Epoch, PeerId};

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
    /// A newer life of the same peer is connected.
    #[error(
        "peer {peer} has epoch {found}, but epoch {current} was connected after it: this is an older life"
    )]
    Fenced {
        /// The peer.
        peer: PeerId,
        /// Its epoch.
        found: Epoch,
        /// The epoch that is connected.
        current: Epoch,
    },
    /// The same peer connected again.
    #[error("peer {peer} connected again with epoch {by}")]
    Replaced {
        /// The peer.
        peer: PeerId,
        /// The epoch of the new link.
        by: Epoch,
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
