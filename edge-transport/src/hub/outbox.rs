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

/// A queue that gives its memory back when it has been emptied. A frame keeps its place until it is popped, so that it can be taken
/// out before; then the place stays empty.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    places: VecDeque<Option<Waiting>>,
    /// Number of the first place. The numbers of places only rise, but for those of frames that were taken out at the end.
    first: u64,
    len: usize,
    bytes: usize,
    control_bytes: usize,
}

impl Outbox {
    /// Places that an empty queue may keep.
    const KEPT: usize = 64;

    /// Frames that wait.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Frames that wait, and places that are empty.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the frames among them that had to be queued.
    pub(super) const fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    /// Returns the place of the frame.
    pub(super) fn push(&mut self, waiting: Waiting) -> u64 {
        self.len += 1;
        self.bytes += waiting.frame.len();
        self.control_bytes += waiting.control_bytes();
        self.places.push_back(Some(waiting));
        self.first + self.places.len() as u64 - 1
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        loop {
            let waiting = self.places.pop_front()?;
            self.first += 1;
            if let Some(waiting) = waiting {
                self.left(&waiting);
                return Some(waiting);
            }
        }
    }

    /// Whether the frame at this place still waits.
    pub(super) fn holds(&self, place: u64) -> bool {
        place >= self.first
    }

    /// Takes a frame out that still waits; returns its bytes.
    pub(super) fn remove(&mut self, place: u64) -> Option<usize> {
        let index = usize::try_from(place.checked_sub(self.first)?).ok()?;
        let waiting = self.places.get_mut(index)?.take()?;
        self.left(&waiting);
        while let Some(None) = self.places.back() {
            self.places.pop_back();
        }
        Some(waiting.frame.len())
    }

    fn left(&mut self, waiting: &Waiting) {
        self.len -= 1;
        self.bytes -= waiting.frame.len();
        self.control_bytes -= waiting.control_bytes();
        if self.len == 0 {
            self.first += self.places.len() as u64;
            self.places.clear();
            if self.places.capacity() > Self::KEPT {
                self.places = VecDeque::new();
            }
        }
    }

    pub(super) fn clear(&mut self) -> usize {
        self.first += self.places.len() as u64;
        self.places = VecDeque::new();
        (self.len, self.control_bytes) = (0, 0);
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::frame::Lane;

    fn frame(bytes: usize) -> Waiting {
        let frame = WireFrame::new(Lane::Control, false, Bytes::from(vec![0; bytes]), Bytes::new());
        Waiting { frame, limit: None, is_control: bytes == 1 }
    }

    #[test]
    fn a_frame_that_waits_can_be_taken_out_once_and_the_others_keep_their_order() {
        let mut outbox = Outbox::default();
        let places: Vec<u64> = (1..=5).map(|bytes| outbox.push(frame(bytes))).collect();
        assert_eq!(outbox.pop().unwrap().frame.len(), 1);
        assert!(!outbox.holds(places[0]) && outbox.remove(places[0]).is_none(), "it has gone");
        assert_eq!((outbox.remove(places[2]), outbox.remove(places[2])), (Some(3), None));
        assert_eq!((outbox.len(), outbox.places(), outbox.bytes()), (3, 4, 11));
        assert_eq!(outbox.remove(places[4]), Some(5));
        assert_eq!((outbox.pop().unwrap().frame.len(), outbox.pop().unwrap().frame.len()), (2, 4));
        assert!(outbox.pop().is_none());
        assert_eq!((outbox.len(), outbox.places(), outbox.bytes(), outbox.control_bytes()), (0, 0, 0, 0));
        let next = outbox.push(frame(6));
        assert!(outbox.holds(next) && !outbox.holds(places[3]));
        assert_eq!(outbox.clear(), 6);
        assert!(!outbox.holds(next));
    }
}
