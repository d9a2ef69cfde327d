//! Assigns handshake slots to links, with a share for each source once slots are scarce. When all slots are in use, a link
//! that waits ends the longest handshake of a source that has more of them than its own, if it takes long. A free slot goes to
//! one of the waiting sources with the fewest slots, chosen at random: sources that use a slot again and again keep no other
//! out, however many they are and however long they wait.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::source_usage::SourceUsage;
use crate::link::Source;

/// How long a handshake is safe from newcomers. A stampede of genuine peers must not end the handshakes that it has paid
/// for; on a healthy link a handshake takes a few round trips.
const SAFE: Duration = Duration::from_secs(1);

/// Shortest interval between two evictions. Of 256 slots, a handshake then keeps its own for four seconds, so that a hub that
/// is busy with a stampede completes handshakes, and genuine ones are slower than a second on slow links only.
const EVICTION_INTERVAL: Duration = Duration::from_micros(15_625);

/// How often a waiting link tries to evict.
const RETRY_EVICTION: Duration = Duration::from_millis(100);

/// The handshake slots of one listener.
#[derive(Debug, Clone)]
pub(super) struct HandshakeSlots(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    running: SourceUsage,
    waiting: SourceUsage,
    /// Waiting links in order of arrival.
    queue: VecDeque<(Source, oneshot::Sender<Slot>)>,
    /// The handshakes in progress, in order of their start.
    held: BTreeMap<u64, Held>,
    next_number: u64,
    last_eviction: Option<Instant>,
    random: fastrand::Rng,
}

/// A handshake in progress.
#[derive(Debug)]
struct Held {
    source: Source,
    since: Instant,
    evicted: CancellationToken,
}

impl Table {
    /// Removes a waiting link that may start: the first of a random one of the sources with the fewest slots. The others wait
    /// for the share of their source.
    fn next(&mut self) -> Option<(Source, oneshot::Sender<Slot>)> {
        if self.running.is_full() {
            return None;
        }
        let (mut seen, mut fewest, mut first) = (HashSet::new(), usize::MAX, Vec::new());
        for (index, (source, _)) in self.queue.iter().enumerate() {
            let slots = self.running.of(*source);
            if slots > fewest || !self.running.has_room(*source) || !seen.insert(*source) {
                continue;
            }
            if slots < fewest {
                fewest = slots;
                first.clear();
            }
            first.push(index);
        }
        let index = self.random.choice(first)?;
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

    /// Ends the longest handshake of the source with the most slots, if it has more than the waiting link's.
    fn evict_for(&mut self, waiting: Source, now: Instant) {
        let is_early = |last| now.duration_since(last) < EVICTION_INTERVAL;
        if !self.running.is_full() || self.last_eviction.is_some_and(is_early) {
            return;
        }
        let is_long = |held: &&Held| now.duration_since(held.since) >= SAFE && !held.evicted.is_cancelled();
        // Of equal ones the last is the maximum; reversed, the oldest.
        let longest =
            self.held.values().rev().filter(is_long).max_by_key(|held| self.running.of(held.source));
        if let Some(held) = longest.filter(|held| self.running.of(held.source) > self.running.of(waiting)) {
            held.evicted.cancel();
            self.last_eviction = Some(now);
        }
    }

    /// Makes room in a full queue: drops the last link of the source with the most waiting ones, if it has more than the
    /// newcomer's and one.
    fn shorten_queue_for(&mut self, newcomer: Source) {
        let most = self.waiting.most();
        if self.waiting.is_full()
            && most > self.waiting.of(newcomer) + 1
            && let Some(index) = self.queue.iter().rposition(|(source, _)| self.waiting.of(*source) == most)
            && let Some((source, _)) = self.queue.remove(index)
        {
            self.waiting.remove(source);
        }
    }
}

impl HandshakeSlots {
    /// Creates slots for `max` handshakes at a time and a queue of `backlog` links.
    pub(super) fn new(max: usize, backlog: usize) -> Self {
        Self(Arc::new(Mutex::new(Table {
            running: SourceUsage::new(max),
            waiting: SourceUsage::new(backlog),
            queue: VecDeque::new(),
            held: BTreeMap::new(),
            next_number: 0,
            last_eviction: None,
            random: fastrand::Rng::with_seed(RandomState::new().hash_one(())),
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
        drop(table);
        Some(SlotRequest::Queued(Place { slots: self.clone(), source, receiver }))
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
    Queued(Place),
}

/// The place of a link in the queue.
pub(super) struct Place {
    slots: HandshakeSlots,
    source: Source,
    receiver: oneshot::Receiver<Slot>,
}

impl SlotRequest {
    /// Waits for the slot. `None` cannot occur while the slots exist.
    pub(super) async fn slot(self) -> Option<Slot> {
        let Place { slots, source, receiver } = match self {
            Self::Granted(slot) => return Some(slot),
            Self::Queued(place) => place,
        };
        let mut receiver = pin!(receiver);
        loop {
            match timeout(RETRY_EVICTION, receiver.as_mut()).await {
                Ok(slot) => return slot.ok(),
                Err(_) => slots.table().evict_for(source, Instant::now()),
            }
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
            SlotRequest::Queued(place) => Some(place.receiver),
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
        assert!(table.running.is_unused() && table.waiting.is_unused() && table.queue.is_empty());
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
                    SlotRequest::Queued(place) if waiting.len() < 1024 => waiting.push(place.receiver),
                    SlotRequest::Queued(_) => break,
                }
            }
        }
        assert_eq!((held.len(), waiting.len()), (256, 1024));
        let evicted = |held: &[Slot]| held.iter().position(|slot| slot.evicted.is_cancelled());
        let newcomer = Source::User { uid: 8 };
        assert!(slots.request(newcomer, start + SAFE / 2).is_some());
        assert_eq!(evicted(&held), None, "no handshake takes long");
        let Some(SlotRequest::Queued(Place { receiver: mut genuine, .. })) =
            slots.request(newcomer, start + SAFE)
        else {
            panic!("there is no place in the queue")
        };
        assert_eq!(evicted(&held), Some(0), "the oldest of the source with the most");
        drop(held.remove(0));
        assert!(genuine.try_recv().is_ok());
    }

    /// Waits for a slot and holds it until it is evicted, again and again.
    async fn attack(slots: HandshakeSlots, source: Source) {
        loop {
            match slots.request(source, Instant::now()) {
                Some(request) => {
                    if let Some(slot) = request.slot().await {
                        slot.run(std::future::pending::<()>()).await;
                    }
                }
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// 256 sources hold all slots and fill the queue with older links, and request a slot again as soon as they lose one. A
    /// newcomer starts in time; 300 sources do not keep it out either.
    #[tokio::test(start_paused = true)]
    async fn newcomer_starts_among_sources_that_never_leave() {
        for (seed, sources) in [(1, 256), (2, 256), (3, 256), (4, 300), (5, 300)] {
            let slots = HandshakeSlots::new(256, 1024);
            slots.table().random.seed(seed);
            let mut attackers = tokio::task::JoinSet::new();
            for uid in (0..sources).cycle().take(1280) {
                attackers.spawn(attack(slots.clone(), Source::User { uid }));
            }
            tokio::time::sleep(2 * SAFE).await;
            let (start, newcomer) = (Instant::now(), Source::User { uid: sources });
            let slot = loop {
                match slots.request(newcomer, Instant::now()) {
                    Some(request) => break request.slot().await,
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            let max = Duration::from_secs(if sources == 256 { 1 } else { 5 });
            assert!(slot.is_some() && start.elapsed() < max, "seed {seed}: {:?}", start.elapsed());
        }
    }
}
