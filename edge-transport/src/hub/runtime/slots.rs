//! Assigns handshake slots to links, with a share for each source once slots are scarce. Of the waiting links, first that
//! of the source with the fewest slots. When all slots are in use, a source with more slots than the newcomer's loses a
//! handshake that takes long: a client with many networks uses many slots, and keeps no other source out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::link::Source;

/// The part of the slots that one source may use while slots are scarce: an eighth, at least one. Several sources
/// are then needed to use all, and a carrier's address translator with many peers behind it still has 32 of 256.
const SHARE: usize = 8;

/// How long a handshake is safe from newcomers. A stampede of genuine peers must not end the handshakes that it has paid
/// for; on a healthy link a handshake takes a few round trips.
const SAFE: Duration = Duration::from_secs(1);

/// The handshake slots of one listener.
#[derive(Debug, Clone)]
pub(super) struct HandshakeSlots(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    running: Usage,
    waiting: Usage,
    /// Waiting links in order of arrival.
    queue: VecDeque<(Source, oneshot::Sender<Slot>)>,
    /// The handshakes in progress, in order of their start.
    held: BTreeMap<u64, Held>,
    next_number: u64,
}

/// A handshake in progress.
#[derive(Debug)]
struct Held {
    source: Source,
    since: Instant,
    evicted: CancellationToken,
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
        self.total < self.max && (!is_scarce || source == Source::Unknown || self.of(source) < share)
    }

    /// What a source uses.
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
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
    /// Removes a waiting link that may start: the first of the source with the fewest slots. The others wait for the share
    /// of their source.
    fn next(&mut self) -> Option<(Source, oneshot::Sender<Slot>)> {
        if self.running.total >= self.running.max {
            return None;
        }
        let may_start = |(_, (source, _)): &(usize, &(Source, _))| self.running.has_room(*source);
        let waiting = self.queue.iter().enumerate().filter(may_start);
        let (index, _) = waiting.min_by_key(|(index, (source, _))| (self.running.of(*source), *index))?;
        let (source, waiter) = self.queue.remove(index)?;
        self.waiting.remove(source);
        Some((source, waiter))
    }

    fn hold(&mut self, source: Source, slots: &HandshakeSlots, now: Instant) -> Slot {
        self.running.add(source);
        let (number, evicted) = (self.next_number, CancellationToken::new());
        self.next_number += 1;
        self.held.insert(number, Held { source, since: now, evicted: evicted.clone() });
        Slot { number, evicted, slots: slots.clone() }
    }

    /// Ends the longest handshake of the source with the most slots, if it has more than the newcomer's.
    fn evict_for(&self, newcomer: Source, now: Instant) {
        if self.running.total < self.running.max {
            return;
        }
        let is_long = |held: &&Held| now.duration_since(held.since) >= SAFE && !held.evicted.is_cancelled();
        // Of equal ones the last is the maximum; reversed, the oldest.
        let longest =
            self.held.values().rev().filter(is_long).max_by_key(|held| self.running.of(held.source));
        if let Some(held) = longest.filter(|held| self.running.of(held.source) > self.running.of(newcomer)) {
            held.evicted.cancel();
        }
    }

    /// Makes room in a full queue: drops the last link of the source with the most waiting ones, if it has more than the
    /// newcomer's and one.
    fn shorten_queue_for(&mut self, newcomer: Source) {
        if self.waiting.total < self.waiting.max {
            return;
        }
        let longest = self.waiting.by_source.iter().max_by_key(|(_, used)| **used).map(|(source, _)| *source);
        if let Some(source) = longest
            && self.waiting.of(source) > self.waiting.of(newcomer) + 1
            && let Some(index) = self.queue.iter().rposition(|(waiting, _)| *waiting == source)
        {
            self.queue.remove(index);
            self.waiting.remove(source);
        }
    }
}

impl HandshakeSlots {
    /// Creates slots for `max` handshakes at a time and a queue of `backlog` links.
    pub(super) fn new(max: usize, backlog: usize) -> Self {
        Self(Arc::new(Mutex::new(Table {
            running: Usage::new(max),
            waiting: Usage::new(backlog),
            queue: VecDeque::new(),
            held: BTreeMap::new(),
            next_number: 0,
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a slot, or a place in the queue. Returns `None` if the source must try again later.
    pub(super) fn request(&self, source: Source, now: Instant) -> Option<SlotRequest> {
        let mut table = self.table();
        if table.running.has_room(source) {
            return Some(SlotRequest::Granted(table.hold(source, self, now)));
        }
        table.evict_for(source, now);
        table.shorten_queue_for(source);
        if !table.waiting.has_room(source) {
            return None;
        }
        table.waiting.add(source);
        let (sender, receiver) = oneshot::channel();
        table.queue.push_back((source, sender));
        Some(SlotRequest::Queued(receiver))
    }

    /// Starts waiting links while there are slots.
    fn start_waiting(&self, now: Instant) {
        loop {
            let mut table = self.table();
            let Some((source, waiter)) = table.next() else { return };
            let slot = table.hold(source, self, now);
            drop(table);
            // The table is not locked here: if the link has ended meanwhile, its slot is dropped and returned in
            // turn.
            if waiter.send(slot).is_err() {
                return;
            }
        }
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

/// The slot of a handshake in progress; dropping it starts the next.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    evicted: CancellationToken,
    slots: HandshakeSlots,
}

impl Slot {
    /// Runs the handshake in this slot. `None` if the slot is needed for another source.
    pub(super) async fn run<T>(self, handshake: impl Future<Output = T>) -> Option<T> {
        self.evicted.run_until_cancelled(handshake).await
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        if let Some(held) = table.held.remove(&self.number) {
            table.running.remove(held.source);
        }
        drop(table);
        self.slots.start_waiting(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: Source = Source::User { uid: 1 };

    fn granted(slots: &HandshakeSlots, source: Source) -> Option<Slot> {
        match slots.request(source, Instant::now())? {
            SlotRequest::Granted(slot) => Some(slot),
            SlotRequest::Queued(_) => None,
        }
    }

    fn queued(slots: &HandshakeSlots, source: Source) -> Option<oneshot::Receiver<Slot>> {
        match slots.request(source, Instant::now())? {
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

    /// Eight networks use all slots and the whole queue. A newcomer of another one ends a handshake that takes long, and
    /// starts before those that wait; in a stampede of genuine peers no handshake is ended.
    #[test]
    fn newcomer_ends_a_long_handshake_of_the_largest_source() {
        let (slots, start) = (HandshakeSlots::new(256, 1024), Instant::now());
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for uid in 0..8 {
            while let Some(request) = slots.request(Source::User { uid }, start) {
                match request {
                    SlotRequest::Granted(slot) => held.push(slot),
                    SlotRequest::Queued(receiver) if waiting.len() < 1024 => waiting.push(receiver),
                    SlotRequest::Queued(_) => break,
                }
            }
        }
        assert_eq!((held.len(), waiting.len()), (256, 1024));
        let evicted = |held: &[Slot]| held.iter().position(|slot| slot.evicted.is_cancelled());
        let newcomer = Source::User { uid: 8 };
        assert!(slots.request(newcomer, start + SAFE / 2).is_some());
        assert_eq!(evicted(&held), None, "no handshake takes long");
        let Some(SlotRequest::Queued(mut genuine)) = slots.request(newcomer, start + SAFE) else {
            panic!("there is no place in the queue")
        };
        assert_eq!(evicted(&held), Some(0), "the oldest of the source with the most");
        drop(held.remove(0));
        assert!(genuine.try_recv().is_ok());
    }
}
