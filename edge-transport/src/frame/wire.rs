//! What goes onto a link: the frame as bytes, and the lane that keeps its order.

use std::fmt;

use bytes::Bytes;

/// Frames of one lane arrive in the order in which they were sent; lanes do not wait for each other where the link can help it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lane {
    /// Session frames: hello, ping, drain, credit, stop-waiting.
    Control,
    /// Requests or replies of one call. The number is unique among the sender's open lanes on the link.
    Call(u64),
}

/// A frame ready for a link: header and body lie apart so that a body is never copied only to stand behind its header.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireFrame {
    /// The lane that keeps the frame's order.
    pub lane: Lane,
    /// No later frame will use this lane.
    pub last: bool,
    /// Varint length of the header, then the header.
    pub head: Bytes,
    /// The rest of the frame.
    pub body: Bytes,
}

impl WireFrame {
    /// Puts a frame together.
    #[must_use]
    pub const fn new(lane: Lane, last: bool, head: Bytes, body: Bytes) -> Self {
        Self { lane, last, head, body }
    }

    /// Bytes of the frame on the link, without the link's own framing.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether the frame holds nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for WireFrame {
    // Bodies may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireFrame")
            .field("lane", &self.lane)
            .field("last", &self.last)
            .field("len", &self.len())
            .finish()
    }
}
