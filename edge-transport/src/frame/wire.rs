//! Encoded frames and the lanes that keep their order.

use std::fmt;

use bytes::Bytes;

/// Orders frames: frames of one lane arrive in the order in which they were sent. Where the link supports it, lanes do not wait
/// for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lane {
    /// Session frames: hello, ping, drain, credit, cancel.
    Control,
    /// Requests or replies of one call. The number is unique among the sender's open lanes on the link.
    Call(u64),
}

/// A frame ready for a link: header and body are separate buffers, so that a body is never copied to append it to its header.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireFrame {
    /// The lane that keeps the frame's order.
    pub lane: Lane,
    /// The last frame of its lane.
    pub last: bool,
    /// Varint length of the header, then the header.
    pub head: Bytes,
    /// The rest of the frame.
    pub body: Bytes,
}

impl WireFrame {
    /// Creates a frame.
    #[must_use]
    pub const fn new(lane: Lane, last: bool, head: Bytes, body: Bytes) -> Self {
        Self { lane, last, head, body }
    }

    /// Bytes of the frame on the link, without the link's own framing.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether the frame has no bytes.
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
