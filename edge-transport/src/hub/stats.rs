//! Statistics and presence events of a hub.

use std::sync::Arc;

use crate::name::{PeerId, ServiceName, SessionId};

/// A connected peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The peer's name.
    pub peer: PeerId,
    /// The peer's current session.
    pub session: SessionId,
    /// Services that the peer answers.
    pub services: Arc<[ServiceName]>,
}

/// A peer connected or disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// The peer connected, or reconnected on a new link.
    Up(PeerInfo),
    /// The peer disconnected.
    Down {
        /// The peer's name.
        peer: PeerId,
        /// The session that has ended.
        session: SessionId,
        /// Whether it was drained, by the peer or by the hub, and not lost.
        drained: bool,
    },
}

/// Counters since the hub's start, and gauges of the current state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubStats {
    /// Connected peers.
    pub peers: usize,
    /// Open calls.
    pub open_calls: usize,
    /// Open calls to the hub's own services, such as presence watches.
    pub local_calls: usize,
    /// Bytes that wait for peers: in their queues, and in their links until these have written them.
    pub queued_bytes: usize,
    /// Bytes that links have taken from [`total_receive_bytes`](super::HubBuilder::total_receive_bytes).
    pub receiving_bytes: usize,
    /// How often a link had to wait for such bytes.
    pub receive_waits: u64,
    /// Forwarded calls.
    pub calls: u64,
    /// Forwarded frames.
    pub frames: u64,
    /// Bytes of forwarded bodies.
    pub body_bytes: u64,
    /// Calls that ended because their target was not connected, or disconnected before the request was forwarded.
    pub offline: u64,
    /// Calls that ended because their target's link was lost after the request was forwarded.
    pub link_lost: u64,
    /// Calls refused because they were for another session of their target.
    pub wrong_session: u64,
    /// Requests that were not forwarded because their requester disconnected or cancelled.
    pub withdrawn: u64,
    /// Calls ended because a limit was reached.
    pub overloaded: u64,
    /// Calls ended because a frame exceeded the receiver's `max_frame`.
    pub too_large: u64,
    /// Calls refused by the policy.
    pub forbidden: u64,
    /// Calls refused because of a drain.
    pub draining: u64,
    /// Requests that were not forwarded because their deadline passed while they were queued.
    pub expired: u64,
    /// Frames refused because their source was not the authenticated peer.
    pub spoofed: u64,
    /// Frames of calls that are not open.
    pub unknown_calls: u64,
    /// Duplicate requests.
    pub duplicates: u64,
    /// Frames that could not be decoded or violated the protocol.
    pub malformed: u64,
    /// Frames of an unknown kind.
    pub unknown_kinds: u64,
    /// Links refused because the peer was not authenticated.
    pub unauthenticated: u64,
    /// Links refused or closed because of another session of the peer.
    pub fenced: u64,
    /// Links rejected because too many, of all sources or of one, were waiting for their handshake.
    pub rejected: u64,
    /// Links that ended without a first byte: none arrived within 2 s, the connection was lost, or the link was
    /// one of 1024 silent ones and made room for a newer one.
    pub silent: u64,
    /// Links that ended after their first byte and before their peer was admitted, for any reason.
    pub failed_handshakes: u64,
}
