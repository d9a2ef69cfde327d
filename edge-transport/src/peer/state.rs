//! Where a peer's connection stands.

use std::time::Instant;

use crate::link::LinkKind;
use crate::name::PeerId;

/// Where a peer's connection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// No hub yet, or none any more; the peer tries.
    Connecting {
        /// Attempts since the last connection.
        attempts: u64,
        /// Why the last one failed, with its address.
        last_error: Option<String>,
    },
    /// In use.
    Connected {
        /// The address that was dialled.
        address: String,
        /// Kind of the link.
        kind: LinkKind,
        /// The hub's name.
        hub: PeerId,
        /// Most bytes of body and metadata of a request.
        max_request: usize,
        /// Since when.
        since: Instant,
    },
    /// Open calls are finished, no new ones are taken.
    Draining {
        /// Why.
        reason: String,
    },
    /// Done with, for good.
    Closed,
}

impl PeerState {
    /// Whether calls can be made.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }
}
