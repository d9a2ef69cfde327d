//! The table of operations. Pure: events in, actions out, without a clock or tasks.

mod event;
mod queue;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use csi_proto::method::Service;
use csi_proto::{Delivery, DriverName, Method};

pub use self::event::Counts;
pub(crate) use self::event::{Action, Event, OperationId, Served, WaiterId};
use self::queue::Queue;
use super::answer::Answer;
use super::begun::BegunCalls;
use super::fence::{self, DriverFence};
use super::identity::Identity;
use super::limits::{KEPT_FOR, Limits, MAX_CALLS, REPLAYED_FOR, share};
use crate::call::subject::{Key, is_create};
use crate::call::{CallId, CallNumber, Fault, Fence, HashMap, Term};

/// The maximum number of entries in [`Core::started`].
const MAX_STARTED: usize = 4096;

/// The operations of a node's driver: running ones, kept results, and the queue. See the [module](super) for the
/// rules. The operations of several drivers do not affect each other, but share the limits.
///
/// Time must not go back between calls of [`Self::handle`].
#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    next: u64,
    fence: DriverFence,
    begun: BegunCalls,
    running: HashMap<OperationId, Running>,
    kept: HashMap<OperationId, Kept>,
    kept_bytes: usize,
    /// Kept results by expiry.
    due: BTreeSet<(Instant, OperationId)>,
    /// The running or kept operation of each subject; one at most.
    holders: HashMap<Key, OperationId>,
    /// The operation of each waiter whose operation has begun.
    waiters: HashMap<WaiterId, OperationId>,
    queue: Queue,
    actions: VecDeque<Action>,
    /// The number of running create operations. The ids of their resources are not known yet.
    pending_creates: usize,
    /// The operations that started since the first of these creates, by subject. The answer to a create may add a
    /// subject listed here.
    started: HashMap<Key, OperationId>,
    /// Operations up to this one may be missing in [`Self::started`].
    started_overflow: Option<OperationId>,
}

/// An operation that a driver runs.
#[derive(Debug)]
struct Running {
    identity: Identity,
    /// The calls that requested the operation, whether or not they still wait; at most [`MAX_CALLS`].
    calls: Vec<CallId>,
    /// The waiter whose request is used.
    runner: WaiterId,
    /// The waiters and their deadlines, in order of arrival.
    waiters: Vec<(WaiterId, Option<Instant>)>,
    /// The numbers that began with this operation.
    numbers: Vec<(Term, CallNumber)>,
}

/// An operation whose result is kept.
#[derive(Debug)]
struct Kept {
    identity: Identity,
    /// The calls that requested the operation; at most [`MAX_CALLS`].
    calls: Vec<CallId>,
    answer: Answer,
    /// The subjects that the answer adds to those of the request.
    created: Vec<Key>,
    bytes: usize,
    until: Instant,
    /// Whether no caller waited for the result, so that the next equal call gets it.
    unclaimed: bool,
}

/// A copy of a call whose operation has not begun.
#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    call: CallId,
    fence: Option<Fence>,
    remote: bool,
    until: Option<Instant>,
}

impl Core {
    /// Creates an empty table. `wait` is the queue timeout, at most a minute, after which a call fails with
    /// [`Fault::OperationPending`]; shorter if its caller has less time, so that the fault reaches the caller in time.
    pub(crate) fn new(wait: Duration) -> Self {
        Self::with_limits(Limits::new(wait))
    }

    fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            fence: DriverFence::default(),
            begun: BegunCalls::default(),
            running: HashMap::default(),
            kept: HashMap::default(),
            kept_bytes: 0,
            due: BTreeSet::new(),
            holders: HashMap::default(),
            waiters: HashMap::default(),
            queue: Queue::default(),
            actions: VecDeque::new(),
            pending_creates: 0,
            started: HashMap::default(),
            started_overflow: None,
        }
    }

    /// Handles an event.
    pub(crate) fn handle(&mut self, now: Instant, event: Event) {
        self.evict_expired(now);
        if !self.queue.is_empty() {
            self.refuse_overdue(now);
        }
        match event {
            Event::Requested { waiter, call, identity, fence, remote, until } => {
                self.requested(now, Waiter { id: waiter, call, fence, remote, until }, identity);
            }
            Event::Left { waiter } => self.left(waiter),
            Event::Answered { operation, answer } => self.answered(now, operation, answer),
            Event::Lost { operation, fault } => self.lost(now, operation, &fault),
            Event::RejectQueued { fault } => self.reject_queued(&fault),
            Event::Tick => {}
        }
    }

    /// The next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The counts.
    pub(crate) fn counts(&self) -> Counts {
        let waiting = self.queue.len();
        Counts {
            running: self.running.len(),
            waiters: self.waiters.len() + waiting,
            waiting,
            kept: self.kept.len(),
            bytes: self.kept_bytes,
        }
    }

    /// The highest term that is [recorded](Self::record_term).
    pub(crate) fn term(&self) -> Option<Term> {
        self.fence.term()
    }

    /// Records a term that is on disk; calls of lower terms no longer begin. A call of an unrecorded term fails with
    /// [`Fault::TermNotRecorded`].
    pub(crate) fn record_term(&mut self, term: Term) {
        self.fence.raise(term);
    }

    /// Forgets the term, and which of its numbers are closed.
    pub(crate) fn forget_term(&mut self) {
        self.fence = DriverFence::default();
    }

    /// Admits a call without an identity, which runs from now on. Unless it is `repeatable`, because its method is
    /// read-only, its end is reported with [`Self::ended`].
    ///
    /// # Errors
    /// The reason why the call may not begin.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        driver: &DriverName,
        call: CallId,
        fence: Option<&Fence>,
        repeatable: bool,
    ) -> Result<(), Fault> {
        self.evict_expired(now);
        if let Some(fence) = fence {
            self.fence.arrive(driver, fence)?;
        }
        if !repeatable && self.begun.contains(&call) {
            return Err(Fault::AlreadyBegun { driver: driver.clone() });
        }
        if let Some(fence) = fence
            && !self.fence.begin(fence)
            && !repeatable
        {
            return Err(fence::stale(driver, fence));
        }
        if !repeatable {
            self.begun.begin(call);
        }
        Ok(())
    }

    /// Records that an [admitted](Self::admit) call has ended.
    pub(crate) fn ended(&mut self, now: Instant, call: CallId) {
        self.evict_expired(now);
        self.begun.end(now, call);
    }

    /// Records that an [admitted](Self::admit) call has provably not reached the driver: another copy of it may begin.
    /// Its number, if it has one, stays begun.
    pub(crate) fn retracted(&mut self, call: &CallId) {
        self.begun.retract(call);
    }

    fn requested(&mut self, now: Instant, waiter: Waiter, identity: Identity) {
        let max = share(self.limits.waiters, waiter.remote);
        let admitted =
            waiter.fence.as_ref().map_or(Ok(()), |fence| self.fence.arrive(identity.driver(), fence));
        let admitted = admitted.and_then(|()| match self.waiters.len() + self.queue.len() < max {
            true => Ok(()),
            false => {
                Err(Fault::Overloaded { what: "the table of waiting calls".to_owned(), max: max as u64 })
            }
        });
        if let Err(fault) = admitted {
            return self.actions.push_back(Action::Fail { waiter: waiter.id, fault });
        }
        if self.join_or_replay(now, &waiter, &identity) || !self.may_begin(&waiter, &identity) {
            return;
        }
        match self.pending(&identity, waiter.remote) {
            Some(pending) => self.wait(now, waiter, identity, pending),
            None => {
                let mut waiters = vec![waiter];
                if !self.queue.is_empty() {
                    waiters.extend(self.take_equal(&identity));
                }
                self.begin(identity, waiters);
            }
        }
    }

    /// Joins a call to the running operation, or answers it with the kept result. Returns whether there was
    /// either.
    fn join_or_replay(&mut self, now: Instant, waiter: &Waiter, identity: &Identity) -> bool {
        let Some(&id) = identity.keys().first().and_then(|key| self.holders.get(key)) else { return false };
        if let Some(running) = self.running.get_mut(&id).filter(|running| running.identity == *identity) {
            running.waiters.push((waiter.id, waiter.until));
            self.waiters.insert(waiter.id, id);
            if let Some(oldest) = record_call(&mut running.calls, waiter.call) {
                self.begun.end(now, oldest);
            }
            if let Some(fence) = &waiter.fence
                && self.fence.begin(fence)
            {
                running.numbers.push((fence.term(), fence.number()));
            }
            return true;
        }
        let kept = self.kept.get_mut(&id).filter(|kept| kept.identity == *identity);
        let Some(kept) = kept.filter(|kept| kept.unclaimed || kept.calls.contains(&waiter.call)) else {
            return false;
        };
        let (answer, served) = (kept.answer.clone(), Served::Replayed);
        self.actions.push_back(Action::Answer { waiter: waiter.id, answer, served });
        if std::mem::take(&mut kept.unclaimed) {
            self.due.remove(&(kept.until, id));
            kept.until = now + REPLAYED_FOR;
            self.due.insert((kept.until, id));
            self.begun.end(now, waiter.call);
        }
        record_call(&mut kept.calls, waiter.call);
        if let Some(fence) = &waiter.fence {
            self.fence.begin(fence);
        }
        true
    }

    /// The first running operation on one of these keys.
    fn running(&self, keys: &[Key]) -> Option<Method> {
        keys.iter().find_map(|key| {
            queue::visited();
            Some(self.running.get(self.holders.get(key)?)?.identity.method())
        })
    }

    /// Begins an operation for its waiters, with the request of the first one.
    fn begin(&mut self, identity: Identity, waiters: Vec<Waiter>) {
        let Some(Waiter { id: runner, .. }) = waiters.first() else { return };
        let runner = *runner;
        let mut calls = self.take_kept_calls(&identity);
        for key in identity.keys() {
            self.invalidate(key);
        }
        let operation = OperationId::new(self.next);
        self.next += 1;
        for key in identity.keys() {
            self.holders.insert(key.clone(), operation);
        }
        self.queue.hold(identity.keys());
        self.note_started(operation, &identity);
        let mut numbers = Vec::with_capacity(waiters.len());
        for Waiter { id, call, fence, .. } in &waiters {
            self.waiters.insert(*id, operation);
            record_call(&mut calls, *call);
            if let Some(fence) = fence
                && self.fence.begin(fence)
            {
                numbers.push((fence.term(), fence.number()));
            }
        }
        let waiters = waiters.iter().map(|waiter| (waiter.id, waiter.until)).collect();
        self.running.insert(operation, Running { identity, calls, runner, waiters, numbers });
        self.actions.push_back(Action::Run { operation, waiter: runner });
    }

    /// Takes the calls of the kept result of an equal operation. Their numbers have begun, so these calls get the
    /// next result or none.
    fn take_kept_calls(&mut self, identity: &Identity) -> Vec<CallId> {
        let holder = identity.keys().first().and_then(|key| self.holders.get(key));
        let known = holder.and_then(|holder| self.kept.get_mut(holder));
        let equal = known.filter(|known| known.identity == *identity);
        equal.map(|known| std::mem::take(&mut known.calls)).unwrap_or_default()
    }

    fn left(&mut self, waiter: WaiterId) {
        let Some(operation) = self.waiters.remove(&waiter) else { return self.left_queue(waiter) };
        if let Some(running) = self.running.get_mut(&operation) {
            running.waiters.retain(|(other, _)| *other != waiter);
        }
    }

    fn answered(&mut self, now: Instant, operation: OperationId, answer: Answer) {
        let Some(Running { identity, calls, runner, waiters, .. }) = self.remove_running(operation) else {
            return;
        };
        calls.iter().for_each(|call| self.begun.end(now, *call));
        let created = answer.keys(&identity);
        // A reboot, or the end of the driver, undoes what was done on the node, and no event reports either.
        let mut kept = identity.method().service() != Service::Node;
        for key in &created {
            // An operation that has started on the created resource meanwhile may already have undone this one.
            kept &=
                self.running(std::slice::from_ref(key)).is_none() && !self.has_begun_since(operation, key);
            self.invalidate(key);
        }
        self.note_create_ended(&identity);
        // A caller whose deadline has passed does not count, whatever happened to its call.
        let waited = waiters.iter().any(|(_, until)| until.is_none_or(|until| until >= now));
        for (waiter, _) in waiters.into_iter().filter(|(waiter, _)| *waiter != runner) {
            let (answer, served) = (answer.clone(), Served::Joined);
            self.actions.push_back(Action::Answer { waiter, answer, served });
        }
        let bytes = identity.bytes() + answer.bytes() + calls.len() * size_of::<CallId>();
        if kept && bytes <= self.limits.kept_bytes {
            let unclaimed = !waited && answer.is_final();
            let until = now + if unclaimed { KEPT_FOR } else { REPLAYED_FOR };
            let (identity, answer) = (identity.clone(), answer.compacted());
            self.keep(operation, Kept { identity, calls, answer, created, bytes, until, unclaimed });
        }
        self.begin_unblocked();
    }

    /// Ends an operation without an answer of the driver. The next equal call executes it again, but a copy of its
    /// calls only if the driver provably did not receive it.
    fn lost(&mut self, now: Instant, operation: OperationId, fault: &Fault) {
        let Some(Running { identity, calls, runner, waiters, numbers }) = self.remove_running(operation)
        else {
            return;
        };
        self.note_create_ended(&identity);
        // The call may begin again, since it may be sent again if the refusal is lost with a link.
        if fault.delivery() == Delivery::NotSent {
            for (term, number) in numbers {
                self.fence.retract(term, number);
            }
        } else {
            calls.iter().for_each(|call| self.begun.end(now, *call));
        }
        for (waiter, _) in waiters.into_iter().filter(|(waiter, _)| *waiter != runner) {
            self.actions.push_back(Action::Fail { waiter, fault: fault.clone() });
        }
        self.begin_unblocked();
    }

    /// Removes a running operation.
    fn remove_running(&mut self, operation: OperationId) -> Option<Running> {
        let running = self.running.remove(&operation)?;
        self.release(operation, running.identity.keys());
        self.queue.release(running.identity.keys());
        for (waiter, _) in &running.waiters {
            self.waiters.remove(waiter);
        }
        Some(running)
    }

    fn note_started(&mut self, operation: OperationId, identity: &Identity) {
        if self.pending_creates > 0 {
            if self.started.len() + identity.keys().len() > MAX_STARTED {
                self.started.clear();
                self.started_overflow = Some(operation);
            }
            self.started.extend(identity.keys().iter().map(|key| (key.clone(), operation)));
        }
        self.pending_creates += usize::from(is_create(identity.method()));
    }

    fn note_create_ended(&mut self, identity: &Identity) {
        self.pending_creates -= usize::from(is_create(identity.method()));
        if self.pending_creates == 0 {
            self.started.clear();
            self.started_overflow = None;
        }
    }

    fn has_begun_since(&self, operation: OperationId, key: &Key) -> bool {
        self.started_overflow.is_some_and(|unknown| unknown > operation)
            || self.started.get(key).is_some_and(|started| *started > operation)
    }

    /// Keeps a result. No other operation has the same subjects.
    fn keep(&mut self, operation: OperationId, kept: Kept) {
        self.kept_bytes += kept.bytes;
        self.due.insert((kept.until, operation));
        for key in kept.identity.keys().iter().chain(&kept.created) {
            self.holders.insert(key.clone(), operation);
        }
        self.kept.insert(operation, kept);
        while (self.kept.len() > self.limits.kept || self.kept_bytes > self.limits.kept_bytes)
            && let Some(&(_, operation)) = self.due.first()
        {
            self.evict(operation);
        }
    }

    /// Invalidates the kept result of a key.
    fn invalidate(&mut self, key: &Key) {
        if let Some(&holder) = self.holders.get(key) {
            self.evict(holder);
        }
    }

    /// Evicts a kept result.
    fn evict(&mut self, operation: OperationId) {
        let Some(kept) = self.kept.remove(&operation) else { return };
        self.kept_bytes -= kept.bytes;
        self.due.remove(&(kept.until, operation));
        self.release(operation, kept.identity.keys());
        self.release(operation, &kept.created);
    }

    fn evict_expired(&mut self, now: Instant) {
        self.begun.evict_expired(now);
        while let Some(&(until, operation)) = self.due.first()
            && until <= now
        {
            self.evict(operation);
        }
    }

    fn release(&mut self, operation: OperationId, keys: &[Key]) {
        for key in keys {
            if self.holders.get(key) == Some(&operation) {
                self.holders.remove(key);
            }
        }
    }
}

/// Records a call. Beyond the limit the oldest call is dropped, and gets no replay. Returns that call.
fn record_call(calls: &mut Vec<CallId>, call: CallId) -> Option<CallId> {
    if calls.contains(&call) {
        return None;
    }
    let oldest = (calls.len() >= MAX_CALLS).then(|| calls.remove(0));
    calls.push(call);
    oldest
}
