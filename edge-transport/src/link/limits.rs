//! Limits of links.

use std::time::Duration;

use crate::frame::DEFAULT_MAX_FRAME;

/// Largest frame of any link: 1 GiB, because lengths have four bytes.
pub const MAX_FRAME_CEILING: usize = 1 << 30;

/// Bytes buffered in a link above which [`futures_sink::Sink::poll_ready`] is pending: 256 KiB.
pub const SEND_BUFFER: usize = 256 << 10;

/// Largest frame that a hub reads from a peer that it has not admitted: 16 KiB. The hello must fit, with the names
/// of the peer's services and its token.
pub const MAX_UNADMITTED_FRAME: usize = 16 << 10;

/// Bytes of unfinished frames that a link may hold without a limit of its own: 20 KiB, a first frame and one read.
/// A hub with `n` links holds at most `n` times as much outside of its budget.
pub(crate) const FREE_UNFINISHED: usize = 20 << 10;

/// What a link may receive at the moment; see [`FrameLink::limit_receiving`](super::FrameLink::limit_receiving).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiveLimits {
    pub(crate) max_frame: usize,
    pub(crate) max_unfinished: usize,
}

impl ReceiveLimits {
    /// The link's own limits.
    pub(crate) const UNLIMITED: Self = Self { max_frame: usize::MAX, max_unfinished: usize::MAX };

    /// The limits of a peer that is not admitted.
    pub(crate) const UNADMITTED: Self =
        Self { max_frame: MAX_UNADMITTED_FRAME, max_unfinished: FREE_UNFINISHED };
}

/// The limits of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// Largest frame in bytes, both ways.
    pub(super) max_frame: usize,
    /// Timeout of everything before the first frame (TCP, TLS, websocket, QUIC).
    pub(super) handshake_timeout: Duration,
    /// How often a dialing peer pings over websocket while no call waits.
    pub(super) idle_ping: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame: DEFAULT_MAX_FRAME,
            handshake_timeout: Duration::from_secs(10),
            idle_ping: Duration::from_secs(50),
        }
    }
}

impl Limits {
    /// Sets the largest frame, at most [`MAX_FRAME_CEILING`].
    pub(super) const fn set_max_frame(&mut self, bytes: usize) {
        self.max_frame = if bytes < MAX_FRAME_CEILING { bytes } else { MAX_FRAME_CEILING };
    }
}
