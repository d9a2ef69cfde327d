//! Whose call to a driver is next.

use std::collections::{HashSet, VecDeque};

use super::Slot;

/// The volumes of one driver that wait for a call, first come first served, and how many calls may run at once.
///
/// A volume has at most one call at a time, so a volume that fails and comes again stands behind all others: no
/// volume is served twice while another waits. Each driver has turns of its own, so none waits for another's.
#[derive(Debug)]
pub(super) struct Turns {
    cap: usize,
    in_flight: usize,
    line: VecDeque<Slot>,
    waiting: HashSet<Slot>,
}

impl Turns {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap: cap.max(1), in_flight: 0, line: VecDeque::new(), waiting: HashSet::new() }
    }

    /// Puts a volume at the end, unless it stands in line.
    pub(super) fn wait(&mut self, slot: Slot) {
        if self.waiting.insert(slot) {
            self.line.push_back(slot);
        }
    }

    /// Takes a volume out of the line.
    pub(super) fn leave(&mut self, slot: Slot) {
        if self.waiting.remove(&slot) {
            self.line.retain(|waiting| *waiting != slot);
        }
    }

    /// The next volume whose call may begin; it counts as running from now on.
    pub(super) fn begin(&mut self) -> Option<Slot> {
        if self.in_flight >= self.cap {
            return None;
        }
        let slot = self.line.pop_front()?;
        self.waiting.remove(&slot);
        self.in_flight += 1;
        Some(slot)
    }

    /// A call that began has ended.
    pub(super) fn ended(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many run.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::{Slot, Turns};

    #[test]
    fn no_volume_is_served_twice_while_another_waits_and_the_cap_holds() {
        let mut turns = Turns::new(2);
        for slot in [1, 2, 3, 1] {
            turns.wait(Slot(slot));
        }
        assert_eq!((turns.begin(), turns.begin(), turns.begin()), (Some(Slot(1)), Some(Slot(2)), None));
        turns.wait(Slot(1));
        turns.ended();
        assert_eq!((turns.begin(), turns.in_flight(), turns.waiting()), (Some(Slot(3)), 2, 1));
        turns.ended();
        turns.leave(Slot(1));
        assert_eq!(turns.begin(), None);
    }
}
