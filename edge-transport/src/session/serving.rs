//! The calls of others that this peer works on, and the answers that it keeps for them.

mod kept;
mod seen;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use self::kept::KeptReplies;
use self::seen::{KeptAnswer, Known, SeenCalls};
use super::Delivery;
use crate::counted::ByCount;
use crate::frame::{CallId, Reply, Request, Resume, cost};
use crate::name::{Epoch, PeerId};

/// A call that this peer works on: a number of this process, never on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServingId(u64);

/// Who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The requester, as far as is known.
    Attached,
    /// The requester, if it is back before this time.
    Away { until: Instant },
    /// Nobody.
    Left,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub(super) source: PeerId,
    pub(super) id: CallId,
    pub(super) lane: u64,
    /// Replies have gone out on the lane, and the last has not.
    pub(super) lane_open: bool,
    standing: Standing,
    resumable: bool,
    resumed: bool,
    next_sequence: u64,
    /// Credit that the requester gave with the request.
    first_credit: u64,
    /// All credit that it has given.
    granted: u64,
    /// What all messages so far have cost of it.
    spent: u64,
    request_bytes: usize,
    replies: KeptReplies,
}

impl Serving {
    pub(super) fn next_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    pub(super) const fn has_credit(&self) -> bool {
        self.granted > self.spent
    }

    pub(super) const fn spend(&mut self, message: &bytes::Bytes) {
        self.spent = self.spent.saturating_add(cost(message));
    }

    /// Somebody waits for the answer, or may come back for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.standing != Standing::Left
    }

    pub(super) fn is_attached(&self) -> bool {
        self.standing == Standing::Attached
    }
}

/// What to do with a request that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new.
    New,
    /// It was seen before, and a service works on it.
    Running,
    /// It was seen before, and has ended.
    Ended,
    /// It may have been seen before, but so long ago that nobody knows.
    Forgotten,
    /// Its requester has a later life.
    Stale,
}

/// What to do with the wish to resume a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resumption {
    /// These replies are sent again, and the service goes on with so much more credit. A lane that was in use is left.
    Running { serving: ServingId, replies: Vec<Reply>, credit: u64, left: Option<u64> },
    /// The service has ended; these replies are sent again.
    Ended { replies: Vec<Reply> },
    /// The request was never seen.
    Unknown,
    /// What was answered is no longer there.
    Lost,
    /// The requester has a later life.
    Stale,
}

/// The requester of a call is not connected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// The answer waits for it.
    Waits(ServingId),
    /// Nobody waits any more.
    Left(ServingId),
}

#[derive(Debug, Default)]
pub(super) struct ServingTable {
    seen: SeenCalls,
    running: ByCount<ServingId, Serving>,
    away: BTreeSet<(Instant, ServingId)>,
    next: u64,
    wanted: usize,
    bytes: usize,
    /// Bytes of the replies of running calls.
    kept_bytes: usize,
}

impl ServingTable {
    /// Calls that a service works on, whether or not somebody waits.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Bytes of the requests that services work on.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of answers that are kept for a resumption.
    pub(super) const fn kept_bytes(&self) -> usize {
        self.kept_bytes + self.seen.kept_bytes()
    }

    /// Calls that somebody waits for.
    pub(super) const fn wanted(&self) -> usize {
        self.wanted
    }

    /// A later life of a requester ends the waiting of the earlier one. Returns the calls for which nobody waits any more.
    pub(super) fn fence(&mut self, source: &PeerId, epoch: Epoch, now: Instant) -> Vec<ServingId> {
        let mut left = self.seen.fence(source, epoch, now);
        left.retain(|serving| self.abandon(*serving));
        left.sort_unstable();
        left
    }

    pub(super) fn admission(&self, source: &PeerId, id: CallId) -> Admission {
        match self.seen.find(source, id) {
            Known::Never => Admission::New,
            Known::Running(_) => Admission::Running,
            Known::Kept | Known::Ended => Admission::Ended,
            Known::Forgotten => Admission::Forgotten,
            Known::Stale => Admission::Stale,
        }
    }

    pub(super) fn open(
        &mut self,
        source: PeerId,
        id: CallId,
        lane: u64,
        request: &Request,
        resumable: bool,
    ) -> ServingId {
        self.next += 1;
        let serving = ServingId(self.next);
        self.seen.running(&source, id, serving);
        let request_bytes = request.body.len() + request.metadata.len();
        let call = Serving {
            source,
            id,
            lane,
            lane_open: false,
            standing: Standing::Attached,
            resumable,
            resumed: false,
            next_sequence: 1,
            first_credit: request.credit,
            granted: request.credit,
            spent: 0,
            request_bytes,
            replies: KeptReplies::default(),
        };
        self.running.insert(serving, call);
        self.wanted += 1;
        self.bytes += request_bytes;
        serving
    }

    pub(super) fn running(&mut self, serving: ServingId) -> Option<&mut Serving> {
        self.running.get_mut(&serving)
    }

    fn find(&self, source: &PeerId, id: CallId) -> Option<ServingId> {
        match self.seen.find(source, id) {
            Known::Running(serving) => Some(serving),
            _ => None,
        }
    }

    /// Keeps a reply of a call that may be resumed. Beyond `max_kept` bytes the oldest answers of ended calls go first; if there
    /// are none, this call can no longer be resumed.
    pub(super) fn keep(&mut self, serving: ServingId, reply: &Reply, max_kept: usize) {
        let Some(call) = self.running.get_mut(&serving).filter(|call| call.resumable) else { return };
        self.kept_bytes += call.replies.push(reply.clone(), call.spent);
        while self.kept_bytes + self.seen.kept_bytes() > max_kept {
            if !self.seen.forget_oldest() {
                call.resumable = false;
                self.kept_bytes -= call.replies.clear();
                return;
            }
        }
    }

    pub(super) fn credit(&mut self, source: &PeerId, id: CallId, bytes: u64) -> Option<ServingId> {
        let serving = self.find(source, id)?;
        let call = self.running.get_mut(&serving)?;
        call.granted = call.granted.saturating_add(bytes);
        // What has been read will never be asked for again.
        self.kept_bytes -= call.replies.read(call.granted, call.first_credit);
        call.is_wanted().then_some(serving)
    }

    /// The requester is back, or misses a reply. The call's lane becomes `lane`.
    pub(super) fn resume(&mut self, source: &PeerId, id: CallId, resume: &Resume, lane: u64) -> Resumption {
        let serving = match self.seen.find(source, id) {
            Known::Running(serving) => serving,
            Known::Kept => {
                let replies = self.seen.resumed(source, id, resume.next_sequence);
                return if replies.is_empty() { Resumption::Lost } else { Resumption::Ended { replies } };
            }
            Known::Never => return Resumption::Unknown,
            Known::Ended | Known::Forgotten => return Resumption::Lost,
            Known::Stale => return Resumption::Stale,
        };
        let Some(call) = self.running.get_mut(&serving).filter(|call| call.resumable && call.is_wanted())
        else {
            return Resumption::Lost;
        };
        call.resumed = true;
        if !(call.replies.first().unwrap_or(call.next_sequence)..=call.next_sequence)
            .contains(&resume.next_sequence)
        {
            return Resumption::Lost;
        }
        self.kept_bytes -= call.replies.received(resume.next_sequence);
        if let Standing::Away { until } = std::mem::replace(&mut call.standing, Standing::Attached) {
            self.away.remove(&(until, serving));
        }
        let replies: Vec<Reply> = call.replies.iter().cloned().collect();
        // Credit that was on its way when the link went.
        let paid = call.spent - call.replies.cost();
        let granted = paid.saturating_add_signed(resume.credit);
        let credit = granted.saturating_sub(call.granted);
        call.granted += credit;
        let left = std::mem::replace(&mut call.lane, lane);
        let left = std::mem::replace(&mut call.lane_open, !replies.is_empty()).then_some(left);
        Resumption::Running { serving, replies, credit, left }
    }

    /// The requester has the ends of these calls.
    pub(super) fn acked(&mut self, source: &PeerId, epoch: Epoch, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.seen.acked(source, CallId::new(epoch, number));
        }
    }

    /// The requester will never have the answer to this call, which has ended.
    pub(super) fn undeliverable(&mut self, source: &PeerId, id: CallId) {
        self.seen.forget(source, id, Delivery::Undelivered);
    }

    /// What has become of the next answer of which that is asked.
    pub(super) fn poll_delivery(&mut self) -> Option<(ServingId, Delivery)> {
        self.seen.poll_delivery()
    }

    /// The requester of this call is not connected.
    pub(super) fn away(&mut self, source: &PeerId, id: CallId, until: Instant) -> Option<Parting> {
        let serving = self.find(source, id)?;
        self.part(serving, until)
    }

    fn part(&mut self, serving: ServingId, until: Instant) -> Option<Parting> {
        let call = self.running.get_mut(&serving).filter(|call| call.is_attached())?;
        if !call.resumable {
            return self.abandon(serving).then_some(Parting::Left(serving));
        }
        call.standing = Standing::Away { until };
        self.away.insert((until, serving));
        Some(Parting::Waits(serving))
    }

    /// No requester is connected. Returns the calls for which nobody waits any more.
    pub(super) fn away_all(&mut self, until: Instant) -> Vec<ServingId> {
        let mut attached: Vec<ServingId> =
            self.running.iter().filter(|(_, call)| call.is_attached()).map(|(serving, _)| *serving).collect();
        attached.sort_unstable();
        attached.retain(|serving| matches!(self.part(*serving, until), Some(Parting::Left(_))));
        for call in self.running.values_mut() {
            call.lane_open = false;
        }
        attached
    }

    /// Nobody waits for this call any more; the service goes on.
    pub(super) fn stop_waiting(&mut self, source: &PeerId, id: CallId) -> Option<ServingId> {
        let Some(serving) = self.find(source, id) else {
            self.seen.left(source, id);
            return None;
        };
        self.abandon(serving).then_some(serving)
    }

    /// Whether somebody waited.
    pub(super) fn abandon(&mut self, serving: ServingId) -> bool {
        let Some(call) = self.running.get_mut(&serving) else { return false };
        self.kept_bytes -= call.replies.clear();
        match std::mem::replace(&mut call.standing, Standing::Left) {
            Standing::Left => return false,
            Standing::Away { until } => drop(self.away.remove(&(until, serving))),
            Standing::Attached => {}
        }
        self.wanted -= 1;
        true
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        let away = self.away.first().map(|(until, _)| *until);
        match (away, self.seen.next_wakeup()) {
            (Some(away), Some(kept)) => Some(away.min(kept)),
            (away, kept) => away.or(kept),
        }
    }

    /// The next call whose requester has been away for too long: nobody waits for it any more.
    pub(super) fn given_up(&mut self, now: Instant) -> Option<ServingId> {
        let (_, serving) = *self.away.first().filter(|(until, _)| *until <= now)?;
        self.abandon(serving).then_some(serving)
    }

    /// Forgets answers that nobody will ask for any more.
    pub(super) fn age(&mut self, now: Instant) {
        self.seen.age(now);
    }

    /// The service has ended. What it answered is kept for `keep_for`, or until it is acknowledged. Whether it is kept at all; then
    /// [`Self::poll_delivery`] will say what becomes of it, if a receipt is wanted.
    pub(super) fn end(
        &mut self,
        serving: ServingId,
        now: Instant,
        keep_for: Duration,
        receipt: bool,
    ) -> bool {
        let Some(call) = self.running.remove(&serving) else { return false };
        self.wanted -= usize::from(call.is_wanted());
        self.bytes -= call.request_bytes;
        if let Standing::Away { until } = call.standing {
            self.away.remove(&(until, serving));
        }
        self.kept_bytes -= call.replies.bytes();
        let kept = (call.resumable && call.is_wanted()).then(|| {
            let receipt = receipt.then_some(serving);
            (KeptAnswer { replies: call.replies, receipt, resumed: call.resumed }, now + keep_for)
        });
        self.seen.ended(&call.source, call.id, serving, kept)
    }
}
