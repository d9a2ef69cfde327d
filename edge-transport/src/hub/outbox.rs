//! The queue of frames for one peer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::frame::WireFrame;

/// The remaining time of a request at the moment when the hub received it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimit {
    received: Instant,
    remaining: Duration,
}

impl TimeLimit {
    /// Creates the limit of a request received now.
    pub(super) const fn new(remaining: Duration, now: Instant) -> Self {
        Self { received: now, remaining }
    }

    /// Returns the remaining time, or `None` if the request has waited for less than a millisecond, the resolution of
    /// frames.
    pub(super) fn reduced(self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.received);
        (waited >= Duration::from_millis(1)).then(|| self.remaining.saturating_sub(waited))
    }
}

/// A queued frame.
#[derive(Debug)]
pub(super) struct QueuedFrame {
    /// The frame, with the remaining time at the moment of queueing.
    pub(super) frame: WireFrame,
    /// Set for a request with a deadline.
    pub(super) limit: Option<TimeLimit>,
    /// Whether the frame is a control frame, which is queued even if the queue is full.
    pub(super) is_control: bool,
}

impl QueuedFrame {
    fn control_bytes(&self) -> usize {
        if self.is_control { self.frame.len() } else { 0 }
    }
}

/// A queue that frees a large buffer when it becomes empty. Each frame has a numbered slot, so that a frame in the
/// middle can be removed; its slot then stays empty until it is popped.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    slots: VecDeque<Option<QueuedFrame>>,
    /// Number of the first slot. Slot numbers increase; those of frames removed at the end of the queue are reused.
    first: u64,
    len: usize,
    bytes: usize,
    control_bytes: usize,
}

impl Outbox {
    /// Slots that an empty queue may keep allocated.
    const KEEP_CAPACITY: usize = 64;

    /// Number of queued frames.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of queued frames and empty slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the queued control frames.
    pub(super) const fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Appends a frame and returns its slot.
    pub(super) fn push(&mut self, queued: QueuedFrame) -> u64 {
        self.len += 1;
        self.bytes += queued.frame.len();
        self.control_bytes += queued.control_bytes();
        self.slots.push_back(Some(queued));
        self.first + self.slots.len() as u64 - 1
    }

    pub(super) fn pop(&mut self) -> Option<QueuedFrame> {
        loop {
            let queued = self.slots.pop_front()?;
            self.first += 1;
            if let Some(queued) = queued {
                self.on_removed(&queued);
                return Some(queued);
            }
        }
    }

    /// Whether the frame in this slot was neither popped nor cleared.
    pub(super) fn contains(&self, slot: u64) -> bool {
        slot >= self.first
    }

    /// Removes a queued frame and returns its size in bytes.
    pub(super) fn remove(&mut self, slot: u64) -> Option<usize> {
        let index = usize::try_from(slot.checked_sub(self.first)?).ok()?;
        let queued = self.slots.get_mut(index)?.take()?;
        self.on_removed(&queued);
        while let Some(None) = self.slots.back() {
            self.slots.pop_back();
        }
        Some(queued.frame.len())
    }

    fn on_removed(&mut self, queued: &QueuedFrame) {
        self.len -= 1;
        self.bytes -= queued.frame.len();
        self.control_bytes -= queued.control_bytes();
        if self.len == 0 {
            self.first += self.slots.len() as u64;
            self.slots.clear();
            if self.slots.capacity() > Self::KEEP_CAPACITY {
                self.slots = VecDeque::new();
            }
        }
    }

    pub(super) fn clear(&mut self) -> usize {
        self.first += self.slots.len() as u64;
        self.slots = VecDeque::new();
        (self.len, self.control_bytes) = (0, 0);
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::frame::Lane;

    fn frame(bytes: usize) -> QueuedFrame {
        let frame = WireFrame::new(Lane::Control, false, Bytes::from(vec![0; bytes]), Bytes::new());
        QueuedFrame { frame, limit: None, is_control: bytes == 1 }
    }

    #[test]
    fn removes_a_queued_frame_once_and_keeps_the_order() {
        let mut outbox = Outbox::default();
        let slots: Vec<u64> = (1..=5).map(|bytes| outbox.push(frame(bytes))).collect();
        assert_eq!(outbox.pop().unwrap().frame.len(), 1);
        assert!(!outbox.contains(slots[0]) && outbox.remove(slots[0]).is_none(), "already popped");
        assert_eq!((outbox.remove(slots[2]), outbox.remove(slots[2])), (Some(3), None));
        assert_eq!((outbox.len(), outbox.slots(), outbox.bytes()), (3, 4, 11));
        assert_eq!(outbox.remove(slots[4]), Some(5));
        assert_eq!((outbox.pop().unwrap().frame.len(), outbox.pop().unwrap().frame.len()), (2, 4));
        assert!(outbox.pop().is_none());
        assert_eq!((outbox.len(), outbox.slots(), outbox.bytes(), outbox.control_bytes()), (0, 0, 0, 0));
        let next = outbox.push(frame(6));
        assert!(outbox.contains(next) && !outbox.contains(slots[3]));
        assert_eq!(outbox.clear(), 6);
        assert!(!outbox.contains(next));
    }
}
