//! Settings of a hub.

use crate::session::SessionSettings;

/// Limits of a hub. Start from `HubSettings::default()` and change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubSettings {
    /// Timeouts and the largest frame of each link.
    pub session: SessionSettings,
    /// Maximum number of connected peers. Default 100,000, each about 4 KiB plus the memory of its link.
    pub max_peers: usize,
    /// Maximum number of connected peers whose names one certificate or token proves: its own name and names below
    /// it, such as those of replicas. Default 64. Applies to peers that may call others, which are those that [may
    /// watch](super::Policy::may_watch) presence. All other identities, such as those of nodes, may have three
    /// peers. A peer's newer session replaces the older one and does not count. Names that are only claimed, on
    /// links without authentication and by root on unix sockets, are not limited.
    pub max_peers_per_caller: usize,
    /// Maximum number of open calls of one peer through this hub. Default 4096, about 200 bytes each.
    pub max_calls: usize,
    /// Maximum number of open calls of one peer to the hub's own services, including long-lived ones such as
    /// presence watches. Default 64. All peers together may have twice [`max_peers`](Self::max_peers), each about
    /// 300 bytes plus the memory of the service.
    pub max_local_calls: usize,
    /// Maximum number of frames queued for one peer, and of open calls to it: each reserves a frame. Default
    /// 16,384. Each sender, with all peers of its certificate or token, may have as many as are then unused: the first half of
    /// them. Senders take turns by bytes, so that one that fills the queue delays another by one frame.
    ///
    /// Failures of the peer's own requests are allowed in addition: four for each of [`max_calls`](Self::max_calls).
    /// Control frames may use 256 bytes for each frame of both limits, by default 8 MiB. A peer that exceeds the limit
    /// of control frames is disconnected.
    pub queue_frames: usize,
    /// Maximum number of bytes queued for one peer. Default 32 MiB. Each sender may have as many as are then unused, and
    /// one frame in any case.
    pub queue_bytes: usize,
    /// Maximum number of bytes that wait for all peers together: in their queues, and in their links until these have written
    /// them. Default 256 MiB. Each caller, with all peers of its certificate or token, may have as many of requests as are
    /// then unused, and as many of answers to it, so that few callers never use up the total, however slowly the peers read.
    pub total_queue_bytes: usize,
    /// Maximum number of bytes of unfinished frames on the links of admitted peers, in addition to 20 KiB on each
    /// link. Default 64 MiB; at least twice the largest frame and 1 MiB.
    ///
    /// A link that gets no more is not read until another link finishes a frame or ends, or until it gets the reserve of one
    /// largest frame and 256 KiB. The links of one identity must not exceed the unused rest together. Those of peers that may
    /// not [watch](super::Policy::may_watch), such as nodes, use at most half of it.
    ///
    /// Not included are the buffers of the network: those of the kernel, of TLS, and the receive window of each
    /// QUIC link: 256 KiB, and up to 1 MiB while a large frame arrives.
    pub total_receive_bytes: usize,
    /// Maximum number of links per listener in handshake, hello and authentication. Default 256; further ones
    /// wait. A link counts from its first byte, which must arrive within 2 s. Until then it is one of at most 1024
    /// silent links of its listener; the oldest of the source with the most makes room for a newcomer. A QUIC
    /// connection begins with a handshake packet, so that it counts at once; from 64 handshakes on its address is
    /// validated first.
    ///
    /// [Sources](crate::link::Incoming::from_address) share the handshakes once half of them are in use. Behind a load balancer
    /// that hides addresses all peers have one source, which may use half.
    pub max_handshakes: usize,
    /// Maximum number of links per listener that wait for their handshake, in each source first come first served. Default 1024:
    /// at a thousand handshakes per second the last one is served before it times out. Further ones are rejected
    /// at once, which is cheap, and the peers retry after a random delay. Shared by the sources like
    /// `max_handshakes`.
    pub handshake_backlog: usize,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            session: SessionSettings::default(),
            max_peers: 100_000,
            max_peers_per_caller: 64,
            max_calls: 4096,
            max_local_calls: 64,
            queue_frames: 16 * 1024,
            queue_bytes: 32 * 1024 * 1024,
            total_queue_bytes: 256 * 1024 * 1024,
            total_receive_bytes: 64 * 1024 * 1024,
            max_handshakes: 256,
            handshake_backlog: 1024,
        }
    }
}
