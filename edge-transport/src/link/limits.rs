//! Limits of links.

use std::time::Duration;

use crate::frame::DEFAULT_MAX_FRAME;

/// Largest frame of any link: 1 GiB, because lengths have four bytes.
pub const MAX_FRAME_CEILING: usize = 1 << 30;

/// Bytes buffered in a link above which [`futures_sink::Sink::poll_ready`] is pending: 256 KiB.
pub const SEND_BUFFER: usize = 256 << 10;

/// The limits of one link.
///
/// Memory per link: idle, a few KiB and the kind's own state (see its module); sending, at most [`SEND_BUFFER`] and one frame;
/// receiving, at most one unfinished frame (over QUIC four, and 4 MiB in its receive window). Memory for a frame is allocated
/// as its bytes arrive, never for an announced length.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest frame in bytes, both ways. Default [`DEFAULT_MAX_FRAME`].
    pub max_frame: usize,
    /// Timeout of everything before the first frame (TCP, TLS, websocket, QUIC). Default 10 s.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_frame: DEFAULT_MAX_FRAME, handshake_timeout: Duration::from_secs(10) }
    }
}

impl Limits {
    /// Sets the largest frame, at most [`MAX_FRAME_CEILING`].
    #[must_use]
    pub fn with_max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes.min(MAX_FRAME_CEILING);
        self
    }
}
