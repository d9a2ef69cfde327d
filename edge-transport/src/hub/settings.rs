//! Settings of a hub.

use crate::session::Settings;

/// Limits of a hub. Start from `HubSettings::default()` and change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubSettings {
    /// Timeouts and the largest frame of each link.
    pub session: Settings,
    /// Maximum number of connected peers. Default 100,000, each about 4 KiB plus the memory of its link.
    pub max_peers: usize,
    /// Maximum number of open calls of one peer through this hub. Default 4096, about 200 bytes each.
    pub max_calls: usize,
    /// Maximum number of open calls of one peer to the hub's own services, including long-lived ones such as
    /// presence watches. Default 64. All peers together may have twice [`max_peers`](Self::max_peers), each about
    /// 300 bytes plus the memory of the service.
    pub max_local_calls: usize,
    /// Maximum number of frames queued for one peer. Default 16,384. Control frames, such as those that end calls,
    /// are allowed in addition: four for each of [`max_calls`](Self::max_calls). Control frames may use 256 bytes
    /// for each frame of both limits, by default 8 MiB. A peer that exceeds the limit of control frames is
    /// disconnected.
    pub queue_frames: usize,
    /// Maximum number of bytes queued for one peer. Default 32 MiB.
    pub queue_bytes: usize,
    /// Maximum number of bytes queued for all peers together. Default 256 MiB. The queue of one peer must not
    /// exceed the unused part, so that peers that do not read never use up the total.
    pub total_queue_bytes: usize,
    /// Maximum number of links per listener in handshake, hello and authentication. Default 256; further ones
    /// wait.
    pub max_handshakes: usize,
    /// Maximum number of links per listener that wait for their handshake, first come first served. Default 1024:
    /// at a thousand handshakes per second the last one is served before it times out. Further ones are rejected
    /// at once, which is cheap, and the peers retry after a random delay.
    pub handshake_backlog: usize,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            session: Settings::default(),
            max_peers: 100_000,
            max_calls: 4096,
            max_local_calls: 64,
            queue_frames: 16 * 1024,
            queue_bytes: 32 * 1024 * 1024,
            total_queue_bytes: 256 * 1024 * 1024,
            max_handshakes: 256,
            handshake_backlog: 1024,
        }
    }
}
