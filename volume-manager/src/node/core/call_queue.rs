//! The queue of calls to one driver.

use std::collections::{HashSet, VecDeque};

use super::Slot;

/// The volumes of one driver that wait for a call, in FIFO order, and the limit of concurrent calls.
///
/// A volume has at most one call at a time, and a volume that fails is queued behind all others. No volume is therefore
/// served twice while another waits. Each driver has its own queue, so drivers do not delay each other.
#[derive(Debug)]
pub(super) struct CallQueue {
    cap: usize,
    in_flight: usize,
    line: VecDeque<Slot>,
    waiting: HashSet<Slot>,
}

impl CallQueue {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap: cap.max(1), in_flight: 0, line: VecDeque::new(), waiting: HashSet::new() }
    }

    /// Appends a volume, unless it is queued already.
    pub(super) fn wait(&mut self, slot: Slot) {
        if self.waiting.insert(slot) {
            self.line.push_back(slot);
        }
    }

    /// Removes a volume from the queue.
    pub(super) fn leave(&mut self, slot: Slot) {
        if self.waiting.remove(&slot) {
            self.line.retain(|waiting| *waiting != slot);
        }
    }

    /// Takes the next volume if a call slot is free. Its call counts as running from then on.
    pub(super) fn begin(&mut self) -> Option<Slot> {
        if self.in_flight >= self.cap {
            return None;
        }
        let slot = self.line.pop_front()?;
        self.waiting.remove(&slot);
        self.in_flight += 1;
        Some(slot)
    }

    /// Releases the call slot of a call that ended.
    pub(super) fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Returns the number of queued volumes.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of running calls.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::{CallQueue, Slot};

    #[test]
    fn serves_waiting_volumes_in_turn_within_the_cap() {
        let mut queue = CallQueue::new(2);
        for slot in [1, 2, 3, 1] {
            queue.wait(Slot(slot));
        }
        assert_eq!((queue.begin(), queue.begin(), queue.begin()), (Some(Slot(1)), Some(Slot(2)), None));
        queue.wait(Slot(1));
        queue.ended();
        assert_eq!((queue.begin(), queue.in_flight(), queue.waiting()), (Some(Slot(3)), 2, 1));
        queue.ended();
        queue.leave(Slot(1));
        assert_eq!(queue.begin(), None);
    }
}
