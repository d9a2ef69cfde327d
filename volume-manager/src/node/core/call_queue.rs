//! The queue of calls to one driver.

use std::collections::{HashSet, VecDeque};

use super::Slot;

/// The volumes of one driver that wait for a call, in FIFO order, and the limit of concurrent calls.
///
/// A volume has at most one call at a time, and a volume that fails is queued behind all others. No volume is therefore
/// served twice while another waits. Each driver has its own queue, so drivers do not delay each other.
#[derive(Debug)]
pub(super) struct CallQueue {
    limit: usize,
    in_flight: usize,
    queue: VecDeque<Slot>,
    waiting: HashSet<Slot>,
}

impl CallQueue {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), in_flight: 0, queue: VecDeque::new(), waiting: HashSet::new() }
    }

    /// Appends a volume, unless it is queued already.
    pub(super) fn push(&mut self, slot: Slot) {
        if self.waiting.insert(slot) {
            self.queue.push_back(slot);
        }
    }

    /// Removes a volume from the queue.
    pub(super) fn remove(&mut self, slot: Slot) {
        if self.waiting.remove(&slot) {
            self.queue.retain(|waiting| *waiting != slot);
        }
    }

    /// Takes the next volume if a call slot is free. Its call counts as running from then on.
    pub(super) fn take_next(&mut self) -> Option<Slot> {
        if self.in_flight >= self.limit {
            return None;
        }
        let slot = self.queue.pop_front()?;
        self.waiting.remove(&slot);
        self.in_flight += 1;
        Some(slot)
    }

    /// Releases the call slot of a call that ended.
    pub(super) fn release_slot(&mut self) {
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
            queue.push(Slot(slot));
        }
        assert_eq!(
            (queue.take_next(), queue.take_next(), queue.take_next()),
            (Some(Slot(1)), Some(Slot(2)), None)
        );
        queue.push(Slot(1));
        queue.release_slot();
        assert_eq!((queue.take_next(), queue.in_flight(), queue.waiting()), (Some(Slot(3)), 2, 1));
        queue.release_slot();
        queue.remove(Slot(1));
        assert_eq!(queue.take_next(), None);
    }
}
