//! What a link may cost.

use std::time::Duration;

use crate::frame::DEFAULT_MAX_FRAME;

/// No link carries a frame above 1 GiB, whatever it is told: lengths travel in four bytes.
pub const MAX_FRAME_CEILING: usize = 1 << 30;

/// Bytes that may wait in a link for the network before [`futures_sink::Sink::poll_ready`] is pending: 256 KiB.
pub const SEND_BUFFER: usize = 256 << 10;

/// The bounds of one link.
///
/// Cost in memory, per link: idle, a few KiB and the kind's own state (see its module); sending, at most [`SEND_BUFFER`] and
/// one frame; receiving, at most the frame that is coming in (over QUIC four, and 4 MiB in its receive window). Memory for a
/// frame is taken as its bytes arrive, never for what a length merely claims.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest frame in bytes, both ways. Default [`DEFAULT_MAX_FRAME`].
    pub max_frame: usize,
    /// Longest time for everything before the first frame (TCP, TLS, websocket, QUIC). Default 10 s.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_frame: DEFAULT_MAX_FRAME, handshake_timeout: Duration::from_secs(10) }
    }
}

impl Limits {
    /// Sets the largest frame; a number beyond [`MAX_FRAME_CEILING`] counts as that.
    #[must_use]
    pub fn with_max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes.min(MAX_FRAME_CEILING);
        self
    }
}
