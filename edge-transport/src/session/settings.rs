//! What can be set, with what it costs.

use std::time::Duration;

use crate::frame::DEFAULT_MAX_FRAME;

/// Times and bounds of a session. `Settings::default()`, then change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// A ping is sent after so much silence of the other end. Default 3 s; at least 1 ms.
    pub ping_interval: Duration,
    /// The link counts as dead after so much silence. Default 10 s. Should leave room for three pings, and must be
    /// longer than the largest frame takes on the slowest link, since only whole frames are heard: 8 MiB in 10 s need 7 Mbit/s.
    pub dead_after: Duration,
    /// How long the other end's hello may take. Default 5 s.
    pub hello_timeout: Duration,
    /// How long a drain waits for open calls. Default 30 s.
    pub drain_timeout: Duration,
    /// Largest frame in bytes. Default [`DEFAULT_MAX_FRAME`]. Must not be above the link's own bound.
    pub max_frame: usize,
    /// Most calls that this peer may have open at once. Default 4096, about 2 KiB each.
    pub max_requests: usize,
    /// Most calls of others that this peer works on at once. Default 4096, about 300 bytes each plus what the service needs.
    pub max_serving: usize,
    /// Most bytes of requests that this peer works on at once; one request may go beyond it. Default 64 MiB.
    pub max_serving_bytes: usize,
    /// Credit of a new call in bytes: the most that may lie unread at the caller, plus one message. Default 256 KiB.
    pub credit: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(3),
            dead_after: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            max_frame: DEFAULT_MAX_FRAME,
            max_requests: 4096,
            max_serving: 4096,
            max_serving_bytes: 64 * 1024 * 1024,
            credit: 256 * 1024,
        }
    }
}

impl Settings {
    /// How often a ping is sent at most: the setting in milliseconds, which timers count in, its value and the lowest that works.
    #[cfg(feature = "runtime")]
    pub(crate) fn shortest_ping(&self) -> (&'static str, usize, usize) {
        let found = usize::try_from(self.ping_interval.as_millis()).unwrap_or(usize::MAX);
        ("session.ping_interval in milliseconds", found, 1)
    }
}
