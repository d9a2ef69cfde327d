//! What a hub tells about itself.

use std::sync::Arc;

use crate::name::{PeerId, ServiceName, SessionId};

/// A connected peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its name.
    pub peer: PeerId,
    /// Its session.
    pub session: SessionId,
    /// Services that it answers.
    pub services: Arc<[ServiceName]>,
}

/// A peer came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// Connected; if it was connected before, then on a new link.
    Up(PeerInfo),
    /// No longer connected.
    Down {
        /// Its name.
        peer: PeerId,
        /// The session that has ended.
        session: SessionId,
    },
}

/// Counts since the hub's start, and what is open now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubStats {
    /// Connected peers.
    pub peers: usize,
    /// Open calls.
    pub open_calls: usize,
    /// Those of them that the hub answers itself, such as the question who is there, which stays open.
    pub own_calls: usize,
    /// Bytes that wait for peers.
    pub queued_bytes: usize,
    /// Calls that were passed on.
    pub calls: u64,
    /// Frames that were passed on.
    pub frames: u64,
    /// Bytes of bodies that were passed on.
    pub body_bytes: u64,
    /// Calls that ended because their target was not connected, or left before their request was passed on.
    pub offline: u64,
    /// Calls that ended because their target's link was lost after their request was passed on.
    pub link_lost: u64,
    /// Calls refused because they were for another session of their target.
    pub wrong_session: u64,
    /// Requests that were not passed on because their requester had left, or waited no longer.
    pub withdrawn: u64,
    /// Calls ended because a bound was reached.
    pub overloaded: u64,
    /// Calls ended because a frame was larger than the receiver takes.
    pub too_large: u64,
    /// Calls refused by the policy.
    pub forbidden: u64,
    /// Calls refused because of a drain.
    pub draining: u64,
    /// Requests that were not sent on because their caller's time was over before their target's link took them.
    pub expired: u64,
    /// Frames refused because they claimed another source than the authenticated peer.
    pub spoofed: u64,
    /// Frames of calls that are not open.
    pub stray: u64,
    /// Requests that came twice.
    pub duplicates: u64,
    /// Frames that could not be decoded, or broke the protocol.
    pub malformed: u64,
    /// Frames of a kind that is not known here.
    pub unknown_kinds: u64,
    /// Links refused because the peer was not authenticated.
    pub unauthenticated: u64,
    /// Links refused or closed because of another session of the peer.
    pub fenced: u64,
    /// Links turned away because too many were coming in at once.
    pub turned_away: u64,
    /// Links that ended before their peer was admitted, for any reason.
    pub failed_handshakes: u64,
}
