//! Which calls of whom have been seen, so that none is executed twice, and the answers of those that have ended.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::ServingId;
use super::kept::KeptReplies;
use crate::frame::{CallId, Reply};
use crate::name::{Epoch, PeerId};
use crate::session::Delivery;

/// How many ended calls without an answer are remembered, over all requesters.
const ENDED_BOUND: usize = 1024;
/// How many requesters are remembered of which no call is.
const IDLE_SOURCES: usize = 1024;

/// How long a later life of a requester keeps an earlier one out after it was last heard of. An earlier one that calls after that is
/// a later one whose clock was set back; hubs think so too.
const FENCED: Duration = Duration::from_secs(120);

/// What is known of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Never,
    Running(ServingId),
    /// It has ended; its answer is here.
    Kept,
    /// It has ended; its answer is not here.
    Ended,
    /// So many calls came after it that it cannot be told whether it was seen.
    Forgotten,
    /// It belongs to an earlier life of its requester.
    Stale,
}

#[derive(Debug)]
enum Seen {
    Running(ServingId),
    Kept { answer: KeptAnswer, age: u64 },
}

/// What a requester may still ask for.
#[derive(Debug)]
pub(super) struct KeptAnswer {
    pub(super) replies: KeptReplies,
    /// Somebody wants to know whether it was delivered.
    pub(super) receipt: Option<ServingId>,
    /// The requester has resumed the call. It then leaves the call even when it has the answer.
    pub(super) resumed: bool,
}

/// One life of a requester.
#[derive(Debug)]
struct Source {
    epoch: Epoch,
    heard: Instant,
    /// Calls that run, or have an answer. Requesters choose their numbers: no hash, which some of them could make collide.
    calls: BTreeMap<u64, Seen>,
    /// Calls that have ended without an answer, which are many more.
    ended: BTreeSet<u64>,
    /// Calls up to this number that are in neither are forgotten.
    forgotten: u64,
}

impl Source {
    fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.ended.is_empty()
    }
}

#[derive(Debug, Default)]
pub(super) struct SeenCalls {
    /// Few, and looked up several times for every call.
    sources: BTreeMap<PeerId, Source>,
    ended: VecDeque<(PeerId, CallId)>,
    /// Kept answers, the oldest first, and when they are forgotten.
    ages: BTreeMap<u64, (Instant, PeerId, CallId)>,
    next_age: u64,
    kept_bytes: usize,
    deliveries: VecDeque<(ServingId, Delivery)>,
}

impl SeenCalls {
    /// What has become of the next answer, where somebody wants to know.
    pub(super) fn poll_delivery(&mut self) -> Option<(ServingId, Delivery)> {
        self.deliveries.pop_front()
    }

    pub(super) const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    pub(super) fn find(&self, source: &PeerId, id: CallId) -> Known {
        let Some(source) = self.sources.get(source) else { return Known::Never };
        if id.epoch != source.epoch {
            return if id.epoch < source.epoch { Known::Stale } else { Known::Never };
        }
        match source.calls.get(&id.number) {
            Some(Seen::Running(serving)) => Known::Running(*serving),
            Some(Seen::Kept { .. }) => Known::Kept,
            None if source.ended.contains(&id.number) => Known::Ended,
            None if id.number <= source.forgotten => Known::Forgotten,
            None => Known::Never,
        }
    }

    /// A life of a requester is heard of. If it is another than the last, all of that is forgotten; returns what still runs of it.
    pub(super) fn fence(&mut self, source: &PeerId, epoch: Epoch, now: Instant) -> Vec<ServingId> {
        let Some(found) = self.sources.get_mut(source) else {
            self.make_room();
            let life =
                Source { epoch, heard: now, calls: BTreeMap::new(), ended: BTreeSet::new(), forgotten: 0 };
            self.sources.insert(source.clone(), life);
            return Vec::new();
        };
        let is_stale = epoch < found.epoch && now.saturating_duration_since(found.heard) < FENCED;
        if is_stale {
            return Vec::new();
        }
        found.heard = now;
        if epoch == found.epoch {
            return Vec::new();
        }
        found.epoch = epoch;
        found.forgotten = 0;
        found.ended.clear();
        let mut running = Vec::new();
        for seen in std::mem::take(&mut found.calls).into_values() {
            match seen {
                Seen::Running(serving) => running.push(serving),
                Seen::Kept { answer, age } => {
                    self.kept_bytes -= answer.replies.bytes();
                    self.ages.remove(&age);
                    let receipt = answer.receipt.map(|serving| (serving, Delivery::Undelivered));
                    self.deliveries.extend(receipt);
                }
            }
        }
        running
    }

    /// Requesters without a call are forgotten at last: whoever is gone for so long does not send a request twice.
    fn make_room(&mut self) {
        if self.sources.len() >= IDLE_SOURCES {
            let idle = self.sources.iter().find(|(_, source)| source.is_idle());
            if let Some(name) = idle.map(|(name, _)| name.clone()) {
                self.sources.remove(&name);
            }
        }
    }

    pub(super) fn running(&mut self, source: &PeerId, id: CallId, serving: ServingId) {
        if let Some(source) = self.sources.get_mut(source) {
            source.calls.insert(id.number, Seen::Running(serving));
        }
    }

    /// A call has ended. Its answer is kept until the time given. Whether it is.
    pub(super) fn ended(
        &mut self,
        name: &PeerId,
        id: CallId,
        serving: ServingId,
        kept: Option<(KeptAnswer, Instant)>,
    ) -> bool {
        let Some(source) = self.sources.get_mut(name).filter(|source| source.epoch == id.epoch) else {
            return false;
        };
        // A life that is back after a later one may have another call by this number.
        let Entry::Occupied(mut seen) = source.calls.entry(id.number) else { return false };
        if !matches!(seen.get(), Seen::Running(running) if *running == serving) {
            return false;
        }
        match kept {
            Some((answer, until)) => {
                self.next_age += 1;
                let age = self.next_age;
                self.kept_bytes += answer.replies.bytes();
                self.ages.insert(age, (until, name.clone(), id));
                seen.insert(Seen::Kept { answer, age });
                true
            }
            None => {
                seen.remove();
                source.ended.insert(id.number);
                self.remember_ended(name.clone(), id);
                false
            }
        }
    }

    /// A call that has ended without an answer. The oldest of them is forgotten in its place.
    fn remember_ended(&mut self, name: PeerId, id: CallId) {
        self.ended.push_back((name, id));
        if self.ended.len() > ENDED_BOUND
            && let Some((name, id)) = self.ended.pop_front()
            && let Some(source) = self.sources.get_mut(&name).filter(|source| source.epoch == id.epoch)
        {
            source.ended.remove(&id.number);
            source.forgotten = source.forgotten.max(id.number);
        }
    }

    /// The requester resumes an ended call: its kept replies from a sequence on; none if one of them is missing.
    pub(super) fn resumed(&mut self, source: &PeerId, id: CallId, next_sequence: u64) -> Vec<Reply> {
        let Some(Seen::Kept { answer, .. }) =
            self.sources.get_mut(source).and_then(|source| source.calls.get_mut(&id.number))
        else {
            return Vec::new();
        };
        answer.resumed = true;
        if answer.replies.first().is_none_or(|first| first > next_sequence) {
            return Vec::new();
        }
        answer.replies.iter().filter(|reply| reply.sequence >= next_sequence).cloned().collect()
    }

    /// The requester has the end of this call.
    pub(super) fn acked(&mut self, name: &PeerId, id: CallId) {
        self.forget(name, id, Delivery::Delivered);
    }

    /// The requester waits no longer for this call, which has ended. After a resumption that says nothing: it may have the end, of
    /// which it tells next.
    pub(super) fn left(&mut self, name: &PeerId, id: CallId) {
        let calls =
            self.sources.get(name).filter(|source| source.epoch == id.epoch).map(|source| &source.calls);
        if let Some(Seen::Kept { answer, .. }) = calls.and_then(|calls| calls.get(&id.number))
            && !answer.resumed
        {
            self.forget(name, id, Delivery::Undelivered);
        }
    }

    /// The answer to this call is kept no longer.
    pub(super) fn forget(&mut self, name: &PeerId, id: CallId, delivery: Delivery) {
        let Some(source) = self.sources.get_mut(name).filter(|source| source.epoch == id.epoch) else {
            return;
        };
        let Entry::Occupied(seen) = source.calls.entry(id.number) else { return };
        if !matches!(seen.get(), Seen::Kept { .. }) {
            return;
        }
        if let Seen::Kept { answer, age } = seen.remove() {
            source.ended.insert(id.number);
            self.kept_bytes -= answer.replies.bytes();
            self.ages.remove(&age);
            self.deliveries.extend(answer.receipt.map(|serving| (serving, delivery)));
            self.remember_ended(name.clone(), id);
        }
    }

    /// Forgets the oldest kept answer. Whether there was one.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let Some((_, (_, name, id))) = self.ages.pop_first() else { return false };
        self.forget(&name, id, Delivery::Undelivered);
        true
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        self.ages.first_key_value().map(|(_, (until, ..))| *until)
    }

    pub(super) fn age(&mut self, now: Instant) {
        while self.next_wakeup().is_some_and(|until| until <= now) && self.forget_oldest() {}
    }
}
