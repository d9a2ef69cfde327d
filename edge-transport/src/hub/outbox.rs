//! Frames that wait for one peer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::frame::WireFrame;

/// How much time the caller of a request had left when the request came to the hub.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    came: Instant,
    remaining: Duration,
}

impl Limit {
    /// It came now.
    pub(super) const fn new(remaining: Duration, now: Instant) -> Self {
        Self { came: now, remaining }
    }

    /// What is left of it, if that is less than what the frame says, in the milliseconds of frames.
    pub(super) fn shrunk(self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.came);
        (waited >= Duration::from_millis(1)).then(|| self.remaining.saturating_sub(waited))
    }
}

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// As it is to be sent if it is sent at once.
    pub(super) frame: WireFrame,
    /// Of a request whose caller does not wait for ever.
    pub(super) limit: Option<Limit>,
    /// It had to be queued, whatever waited already.
    pub(super) is_control: bool,
}

impl Waiting {
    fn control_bytes(&self) -> usize {
        if self.is_control { self.frame.len() } else { 0 }
    }
}

/// A queue that gives its memory back when it has been emptied.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: VecDeque<Waiting>,
    bytes: usize,
    control_bytes: usize,
}

impl Outbox {
    /// Slots that an empty queue may keep.
    const KEPT: usize = 64;

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the frames among them that had to be queued.
    pub(super) const fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.frame.len();
        self.control_bytes += waiting.control_bytes();
        self.frames.push_back(waiting);
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.frames.pop_front()?;
        self.bytes -= waiting.frame.len();
        self.control_bytes -= waiting.control_bytes();
        if self.frames.is_empty() && self.frames.capacity() > Self::KEPT {
            self.frames = VecDeque::new();
        }
        Some(waiting)
    }

    pub(super) fn clear(&mut self) -> usize {
        self.frames = VecDeque::new();
        self.control_bytes = 0;
        std::mem::take(&mut self.bytes)
    }
}
