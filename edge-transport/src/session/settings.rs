//! Settings of a session.

use std::time::Duration;

use crate::frame::DEFAULT_MAX_FRAME;

/// Timeouts and limits of a session. Start from `SessionSettings::default()` and change single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionSettings {
    /// Time without a received frame after which a ping is sent while a call waits, or always on links without an idle ping.
    /// Default 3 s; at least 1 ms.
    pub ping_interval: Duration,
    /// Time without a received frame after which the link is closed as dead, while a call waits or a ping is not answered.
    /// Default 10 s. Should allow three pings. A frame may take longer while its bytes arrive: this time, and that for
    /// `max_frame` at 1 Mbit/s.
    pub liveness_timeout: Duration,
    /// Timeout of the other end's hello. Default 5 s.
    pub hello_timeout: Duration,
    /// How long a drain waits for open calls. Default 30 s.
    pub drain_timeout: Duration,
    /// Largest frame in bytes. Default [`DEFAULT_MAX_FRAME`]. Must not exceed the link's own limit.
    pub max_frame: usize,
    /// Maximum number of open calls that this peer has made. Default 4096, about 2 KiB each.
    pub max_outbound_calls: usize,
    /// Maximum number of calls of other peers in progress at this peer. Default 4096, about 300 bytes each plus
    /// the memory of the service. Each caller, with all names below its own, may have as many as are then unused: the
    /// first half of them, so that one caller does not keep out the others.
    pub max_inbound_calls: usize,
    /// Maximum number of bytes of requests in progress at this peer; one request may exceed it. As many bytes of messages
    /// may wait for their callers' credit, as many to be queued for the link, and as many in that queue. Each caller may have as
    /// many as are then unused. Default 16 MiB.
    pub max_inbound_bytes: usize,
    /// Initial credit of a call in bytes: the most that may be unread at the caller, plus one message. Default 256 KiB.
    pub credit: u64,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(3),
            liveness_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
            max_frame: DEFAULT_MAX_FRAME,
            max_outbound_calls: 4096,
            max_inbound_calls: 4096,
            max_inbound_bytes: 16 * 1024 * 1024,
            credit: 256 * 1024,
        }
    }
}

/// Lowest rate in bytes per second at which a large frame may be transferred: 1 Mbit/s.
#[cfg(feature = "runtime")]
const MIN_RATE: u32 = 128 * 1024;

/// Returns the time for a number of bytes at the lowest rate.
#[cfg(feature = "runtime")]
pub(crate) fn time_to_transfer(bytes: usize) -> Duration {
    Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / MIN_RATE
}

impl SessionSettings {
    /// Longest time in which a frame may arrive.
    #[cfg(feature = "runtime")]
    pub(crate) fn frame_timeout(&self) -> Duration {
        self.liveness_timeout + time_to_transfer(self.max_frame)
    }

    /// Returns the name of the setting `ping_interval` in milliseconds, the resolution of timers, with its value and its
    /// minimum.
    #[cfg(feature = "runtime")]
    pub(crate) fn shortest_ping(&self) -> (&'static str, usize, usize) {
        let found = usize::try_from(self.ping_interval.as_millis()).unwrap_or(usize::MAX);
        ("session.ping_interval in milliseconds", found, 1)
    }
}
