//! Assigns handshake slots to links, first come first served, with a share for each source once slots are scarce.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::link::Source;

/// The part of the slots that one source may use while slots are scarce: an eighth, at least one. Several sources
/// are then needed to use all, and a carrier's address translator with many peers behind it still has 32 of 256.
const SHARE: usize = 8;

/// The handshake slots of one listener.
#[derive(Debug, Clone)]
pub(super) struct HandshakeSlots(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    running: Usage,
    waiting: Usage,
    /// Waiting links in order of arrival.
    queue: VecDeque<(Source, oneshot::Sender<Slot>)>,
}

/// The use of a number of slots by source.
#[derive(Debug)]
struct Usage {
    max: usize,
    total: usize,
    by_source: HashMap<Source, usize>,
}

impl Usage {
    fn new(max: usize) -> Self {
        Self { max, total: 0, by_source: HashMap::new() }
    }

    /// Whether a source may use one more slot. Slots are scarce once half of them are in use.
    fn has_room(&self, source: Source) -> bool {
        let is_scarce = self.total >= self.max.div_ceil(2);
        let share = (self.max / SHARE).max(1);
        let used = self.by_source.get(&source).copied().unwrap_or(0);
        self.total < self.max && (!is_scarce || source == Source::Unknown || used < share)
    }

    fn add(&mut self, source: Source) {
        self.total += 1;
        *self.by_source.entry(source).or_default() += 1;
    }

    fn remove(&mut self, source: Source) {
        self.total = self.total.saturating_sub(1);
        if let Some(used) = self.by_source.get_mut(&source) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                self.by_source.remove(&source);
            }
        }
    }
}

impl Table {
    /// Removes the first waiting link that may start. Links before it wait for the share of their source.
    fn next(&mut self) -> Option<(Source, oneshot::Sender<Slot>)> {
        if self.running.total >= self.running.max {
            return None;
        }
        let index = self.queue.iter().position(|(source, _)| self.running.has_room(*source))?;
        let (source, waiter) = self.queue.remove(index)?;
        self.waiting.remove(source);
        self.running.add(source);
        Some((source, waiter))
    }
}

impl HandshakeSlots {
    /// Creates slots for `max` handshakes at a time and a queue of `backlog` links.
    pub(super) fn new(max: usize, backlog: usize) -> Self {
        let (running, waiting) = (Usage::new(max), Usage::new(backlog));
        Self(Arc::new(Mutex::new(Table { running, waiting, queue: VecDeque::new() })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a slot, or a place in the queue. Returns `None` if the source must try again later.
    pub(super) fn request(&self, source: Source) -> Option<SlotRequest> {
        let mut table = self.table();
        if table.running.has_room(source) {
            table.running.add(source);
            return Some(SlotRequest::Granted(Slot { source, slots: self.clone() }));
        }
        if !table.waiting.has_room(source) {
            return None;
        }
        table.waiting.add(source);
        let (sender, receiver) = oneshot::channel();
        table.queue.push_back((source, sender));
        Some(SlotRequest::Queued(receiver))
    }
}

/// The slot of a link, or its place in the queue.
pub(super) enum SlotRequest {
    Granted(Slot),
    Queued(oneshot::Receiver<Slot>),
}

impl SlotRequest {
    /// Waits for the slot. `None` cannot occur while the slots exist.
    pub(super) async fn slot(self) -> Option<Slot> {
        match self {
            Self::Granted(slot) => Some(slot),
            Self::Queued(receiver) => receiver.await.ok(),
        }
    }
}

/// A handshake in progress; dropping it starts the next.
#[derive(Debug)]
pub(super) struct Slot {
    source: Source,
    slots: HandshakeSlots,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table().running.remove(self.source);
        loop {
            let next = self.slots.table().next();
            let Some((source, waiter)) = next else { return };
            // The table is not locked here: if the link has ended meanwhile, its slot is dropped and returned in
            // turn.
            if waiter.send(Self { source, slots: self.slots.clone() }).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: Source = Source::User { uid: 1 };

    fn granted(slots: &HandshakeSlots, source: Source) -> Option<Slot> {
        match slots.request(source)? {
            SlotRequest::Granted(slot) => Some(slot),
            SlotRequest::Queued(_) => None,
        }
    }

    fn queued(slots: &HandshakeSlots, source: Source) -> Option<oneshot::Receiver<Slot>> {
        match slots.request(source)? {
            SlotRequest::Granted(_) => None,
            SlotRequest::Queued(receiver) => Some(receiver),
        }
    }

    /// One source gets half of the slots and of the queue, and then no more than an eighth; another source starts
    /// at once.
    #[test]
    fn one_source_leaves_slots_to_others() {
        let slots = HandshakeSlots::new(256, 1024);
        let held: Vec<Slot> = std::iter::from_fn(|| granted(&slots, HOSTILE)).collect();
        // The request that ended the iteration has left the queue again with its receiver.
        let waiting: Vec<_> = std::iter::from_fn(|| queued(&slots, HOSTILE)).collect();
        assert_eq!((held.len(), waiting.len() + 1), (128, 512));
        let second: Vec<Slot> = std::iter::from_fn(|| granted(&slots, Source::User { uid: 2 })).collect();
        assert_eq!(second.len(), 32, "an eighth");
        assert!(granted(&slots, Source::User { uid: 3 }).is_some());
        assert!(granted(&slots, Source::Unknown).is_some());
    }

    /// A slot that becomes free starts the first link whose source is below its share; ended links are skipped.
    #[test]
    fn free_slot_starts_the_first_that_may() {
        let slots = HandshakeSlots::new(2, 8);
        let first = granted(&slots, HOSTILE).unwrap();
        let other = granted(&slots, Source::User { uid: 2 }).unwrap();
        drop(queued(&slots, Source::User { uid: 3 }).unwrap());
        let mut hostile = queued(&slots, HOSTILE).unwrap();
        let mut fourth = queued(&slots, Source::User { uid: 4 }).unwrap();
        drop(other);
        assert!(hostile.try_recv().is_err(), "its source has its share");
        let fourth = fourth.try_recv().unwrap();
        drop(first);
        let hostile = hostile.try_recv().unwrap();
        drop((hostile, fourth));
        let table = slots.table();
        assert_eq!((table.running.total, table.waiting.total, table.queue.len()), (0, 0, 0));
        assert!(table.running.by_source.is_empty() && table.waiting.by_source.is_empty());
    }
}
