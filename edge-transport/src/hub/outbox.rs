//! Frames that wait for one peer.

use std::collections::VecDeque;

use crate::frame::WireFrame;

/// A queue that gives its memory back when it has been emptied.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: VecDeque<WireFrame>,
    bytes: usize,
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

    pub(super) fn push(&mut self, frame: WireFrame) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<WireFrame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        if self.frames.is_empty() && self.frames.capacity() > Self::KEPT {
            self.frames = VecDeque::new();
        }
        Some(frame)
    }

    pub(super) fn clear(&mut self) -> usize {
        self.frames = VecDeque::new();
        std::mem::take(&mut self.bytes)
    }
}
