//! Bounds of a hub.

use crate::session::Settings;

/// Bounds of a hub. `HubSettings::default()`, then change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubSettings {
    /// Times and the largest frame of each link.
    pub session: Settings,
    /// Most peers at once. Default 100,000, each about 4 KiB and what its link needs.
    pub max_peers: usize,
    /// Most calls that one peer may have open at once through this hub. Default 4096, about 200 bytes each.
    pub max_calls: usize,
    /// Most calls of one peer that the hub's own services work on at once, those that stay open for as long as somebody watches
    /// among them. Default 64. All peers together may have twice [`max_peers`](Self::max_peers), each about 300 bytes plus what the
    /// service needs.
    pub max_own_calls: usize,
    /// Most frames that wait for one peer. Default 16,384. Small frames that must not be lost, such as those that end calls, may come on
    /// top: four for each of [`max_calls`](Self::max_calls), and of both together 256 bytes each, by default 8 MiB. A peer that lets
    /// more of them wait is cut.
    pub queue_frames: usize,
    /// Most bytes that wait for one peer. Default 32 MiB.
    pub queue_bytes: usize,
    /// Most bytes that wait for all peers together. Default 256 MiB. One peer may hold at most as much as is left for the others.
    pub total_queue_bytes: usize,
    /// Most links of each listener whose handshake, hello and authentication are under way. Default 256; further ones wait.
    pub max_handshakes: usize,
    /// Most links of each listener that wait for their handshake, in the order in which they came. Default 1024: at a thousand
    /// handshakes a second the last of them is served before it gives up. Further ones are turned away at once, which costs the
    /// hub next to nothing, and come back after a wait that each peer draws for itself.
    pub max_waiting_handshakes: usize,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            session: Settings::default(),
            max_peers: 100_000,
            max_calls: 4096,
            max_own_calls: 64,
            queue_frames: 16 * 1024,
            queue_bytes: 32 * 1024 * 1024,
            total_queue_bytes: 256 * 1024 * 1024,
            max_handshakes: 256,
            max_waiting_handshakes: 1024,
        }
    }
}
