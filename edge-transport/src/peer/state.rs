//! The connection state of a peer.

use std::time::Instant;

use super::Refusal;
use crate::link::LinkKind;
use crate::name::PeerId;

/// The connection state of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// Not connected; the peer tries to connect.
    Connecting {
        /// Attempts since the last connection.
        attempts: u64,
        /// Error of the last attempt, with its address.
        last_error: Option<String>,
        /// What was refused, if the last attempt was refused and did not just fail.
        refusal: Option<Refusal>,
    },
    /// Connected to a hub.
    Connected {
        /// The address that was dialed.
        address: String,
        /// Kind of the link.
        kind: LinkKind,
        /// The hub's name.
        hub: PeerId,
        /// Maximum number of bytes of body and metadata of a request.
        max_request: usize,
        /// When the connection was established.
        since: Instant,
    },
    /// Open calls complete, new ones are not accepted.
    Draining {
        /// The reason.
        reason: String,
    },
    /// Closed permanently.
    Closed,
}

impl PeerState {
    /// Whether calls can be made.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }
}
