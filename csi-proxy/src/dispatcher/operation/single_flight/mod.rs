//! The table of operations. No clock, no task: events in, actions out.

mod event;
mod queue;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use csi_proto::method::Service;
use csi_proto::{Delivery, DriverName, Method};

pub use self::event::{Action, Counts, Event, OperationId, WaiterId, Way};
use self::queue::Queue;
use super::answer::Answer;
use super::fence::{self, Fences};
use super::identity::Identity;
use super::limits::{KEPT_FOR, Limits, MAX_CALLS, REPLAYED_FOR};
use super::subject::{Key, is_making};
use crate::call::{CallId, CallNumber, Fault, Fence, Term};

/// Most [`Core::begun`] entries.
const MAX_BEGUN: usize = 4096;

/// All operations of a node's drivers: what runs, which results are kept, and what waits. See the [module](super) for
/// the rules.
///
/// Time must not go back between calls of [`Self::handle`].
#[derive(Debug)]
pub struct Core {
    limits: Limits,
    next: u64,
    fences: Fences,
    running: HashMap<OperationId, Running>,
    kept: HashMap<OperationId, Kept>,
    kept_bytes: usize,
    /// Kept results, by when they are forgotten.
    due: BTreeSet<(Instant, OperationId)>,
    /// What runs or is kept for a subject: one operation at most.
    holders: HashMap<Key, OperationId>,
    /// The operation that each waiter waits for. Not those whose operation has not begun.
    waiters: HashMap<WaiterId, OperationId>,
    queue: Queue,
    actions: VecDeque<Action>,
    /// How many run that make something, whose id is not known yet.
    making: usize,
    /// What else has begun since the first of those, by what it was about: it may be what one of them makes.
    begun: HashMap<Key, OperationId>,
    /// Up to here [`Self::begun`] is not complete.
    begun_unknown: Option<OperationId>,
}

/// An operation that a driver runs.
#[derive(Debug)]
struct Running {
    identity: Identity,
    /// The calls that have asked for it, whether or not they wait still; at most [`MAX_CALLS`].
    calls: Vec<CallId>,
    /// The one whose request is used.
    runner: WaiterId,
    /// All that wait, and when their callers stop waiting; in the order in which they came.
    waiters: Vec<(WaiterId, Option<Instant>)>,
    /// The numbers that have begun with it, and not before.
    numbers: Vec<(Term, CallNumber)>,
}

/// An operation whose result is kept.
#[derive(Debug)]
struct Kept {
    identity: Identity,
    /// As in [`Running`].
    calls: Vec<CallId>,
    answer: Answer,
    /// What the answer says that it is about, beside what the request named.
    made: Vec<Key>,
    bytes: usize,
    until: Instant,
    /// No caller waited for it: the next equal call gets it.
    unclaimed: bool,
}

/// A copy of a call whose operation has not begun.
#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    call: CallId,
    fence: Option<Fence>,
    until: Option<Instant>,
}

impl Core {
    /// An empty table. A call waits this long for its turn while something else is done to what it is about, and at
    /// most a minute, before it fails with [`Fault::OperationPending`]; less if its caller stops waiting sooner, so
    /// that this reaches the caller in time.
    #[must_use]
    pub fn new(wait: Duration) -> Self {
        Self::with_limits(Limits::new(wait))
    }

    fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            fences: Fences::default(),
            running: HashMap::new(),
            kept: HashMap::new(),
            kept_bytes: 0,
            due: BTreeSet::new(),
            holders: HashMap::new(),
            waiters: HashMap::new(),
            queue: Queue::default(),
            actions: VecDeque::new(),
            making: 0,
            begun: HashMap::new(),
            begun_unknown: None,
        }
    }

    /// Takes what has happened.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.forget_old(now);
        if !self.queue.is_empty() {
            self.give_up(now);
        }
        match event {
            Event::Ask { waiter, call, identity, fence, until } => {
                self.ask(now, Waiter { id: waiter, call, fence, until }, identity);
            }
            Event::Left { waiter } => self.left(waiter),
            Event::Answered { operation, answer } => self.answered(now, operation, answer),
            Event::Lost { operation, fault } => self.lost(operation, &fault),
            Event::TurnAway { fault } => self.turn_away(&fault),
            Event::Tick => {}
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How much there is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let waiting = self.queue.len();
        Counts {
            running: self.running.len(),
            waiters: self.waiters.len() + waiting,
            waiting,
            kept: self.kept.len(),
            bytes: self.kept_bytes,
        }
    }

    /// The highest term of a driver that is [recorded](Self::record_term).
    #[must_use]
    pub fn term(&self, driver: &DriverName) -> Option<Term> {
        self.fences.term(driver)
    }

    /// Takes a driver's term that is on the disk, from which nothing lower begins. A call of a term that was not
    /// recorded fails with [`Fault::TermNotRecorded`].
    ///
    /// # Errors
    /// If there are too many drivers.
    pub fn record_term(&mut self, driver: &DriverName, term: Term) -> Result<(), Fault> {
        self.fences.raise(driver, term)
    }

    /// Whether a call may begin that asks for no operation; if so, it does. `repeatable`: its method changes nothing.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admit(&mut self, driver: &DriverName, fence: &Fence, repeatable: bool) -> Result<(), Fault> {
        self.fences.arrive(driver, fence)?;
        let begins = self.fences.begin(driver, fence);
        if begins || repeatable { Ok(()) } else { Err(fence::stale(driver, fence)) }
    }

    fn ask(&mut self, now: Instant, waiter: Waiter, identity: Identity) {
        let max = self.limits.waiters;
        let arrived =
            waiter.fence.as_ref().map_or(Ok(()), |fence| self.fences.arrive(identity.driver(), fence));
        let arrived = arrived.and_then(|()| match self.waiters.len() + self.queue.len() < max {
            true => Ok(()),
            false => {
                Err(Fault::Overloaded { what: "the table of waiting calls".to_owned(), max: max as u64 })
            }
        });
        if let Err(fault) = arrived {
            return self.actions.push_back(Action::Fail { waiter: waiter.id, fault });
        }
        if self.shares(now, &waiter, &identity) || !self.may_begin(&waiter, &identity) {
            return;
        }
        match self.pending(&identity) {
            Some(pending) => self.wait(now, waiter, identity, pending),
            None => self.begin(identity, vec![waiter]),
        }
    }

    /// Whether a call joins the operation that runs, or gets the result that is kept.
    fn shares(&mut self, now: Instant, waiter: &Waiter, identity: &Identity) -> bool {
        let Some(&id) = identity.keys().first().and_then(|key| self.holders.get(key)) else { return false };
        if let Some(running) = self.running.get_mut(&id).filter(|running| running.identity == *identity) {
            running.waiters.push((waiter.id, waiter.until));
            self.waiters.insert(waiter.id, id);
            remember(&mut running.calls, waiter.call);
            if let Some(fence) = &waiter.fence
                && self.fences.begin(identity.driver(), fence)
            {
                running.numbers.push((fence.term(), fence.number()));
            }
            return true;
        }
        let kept = self.kept.get_mut(&id).filter(|kept| kept.identity == *identity);
        let Some(kept) = kept.filter(|kept| kept.unclaimed || kept.calls.contains(&waiter.call)) else {
            return false;
        };
        let (answer, way) = (kept.answer.clone(), Way::Replayed);
        self.actions.push_back(Action::Answer { waiter: waiter.id, answer, way });
        if std::mem::take(&mut kept.unclaimed) {
            self.due.remove(&(kept.until, id));
            kept.until = now + REPLAYED_FOR;
            self.due.insert((kept.until, id));
        }
        remember(&mut kept.calls, waiter.call);
        if let Some(fence) = &waiter.fence {
            self.fences.begin(identity.driver(), fence);
        }
        true
    }

    /// The first of what runs about these keys.
    fn running(&self, keys: &[Key]) -> Option<Method> {
        keys.iter().find_map(|key| Some(self.running.get(self.holders.get(key)?)?.identity.method()))
    }

    /// Begins an operation for those that wait for it, with the request of the first one.
    fn begin(&mut self, identity: Identity, waiters: Vec<Waiter>) {
        let Some(Waiter { id: runner, .. }) = waiters.first() else { return };
        let runner = *runner;
        let mut calls = self.calls_of(&identity);
        for key in identity.keys() {
            self.void(key);
        }
        let operation = OperationId::new(self.next);
        self.next += 1;
        for key in identity.keys() {
            self.holders.insert(key.clone(), operation);
        }
        self.note_begun(operation, &identity);
        let mut numbers = Vec::with_capacity(waiters.len());
        for Waiter { id, call, fence, .. } in &waiters {
            self.waiters.insert(*id, operation);
            remember(&mut calls, *call);
            if let Some(fence) = fence
                && self.fences.begin(identity.driver(), fence)
            {
                numbers.push((fence.term(), fence.number()));
            }
        }
        let waiters = waiters.iter().map(|waiter| (waiter.id, waiter.until)).collect();
        self.running.insert(operation, Running { identity, calls, runner, waiters, numbers });
        self.actions.push_back(Action::Run { operation, waiter: runner });
    }

    /// The calls of the result that is kept for the same request. Their numbers have begun, so they get the next result
    /// of it or none.
    fn calls_of(&mut self, identity: &Identity) -> Vec<CallId> {
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
        let Some(Running { identity, calls, runner, waiters, .. }) = self.stop(operation) else { return };
        let made = answer.keys(&identity);
        // What was done on the node is undone by a reboot, or by the driver's own end, and no event reports either.
        let mut kept = identity.method().service() != Service::Node;
        for key in &made {
            // What has begun on it meanwhile may already have undone this.
            kept &=
                self.running(std::slice::from_ref(key)).is_none() && !self.has_begun_since(operation, key);
            self.void(key);
        }
        self.note_made(&identity);
        // A caller whose time is over does not count, whatever became of its call.
        let waited = waiters.iter().any(|(_, until)| until.is_none_or(|until| until >= now));
        for (waiter, _) in waiters.into_iter().filter(|(waiter, _)| *waiter != runner) {
            let (answer, way) = (answer.clone(), Way::Joined);
            self.actions.push_back(Action::Answer { waiter, answer, way });
        }
        let bytes = identity.bytes() + answer.bytes() + calls.len() * size_of::<CallId>();
        if kept && bytes <= self.limits.kept_bytes {
            let unclaimed = !waited && answer.is_final();
            let until = now + if unclaimed { KEPT_FOR } else { REPLAYED_FOR };
            let (identity, answer) = (identity.clone(), answer.compacted());
            self.keep(operation, Kept { identity, calls, answer, made, bytes, until, unclaimed });
        }
        self.take_turns_of(&identity);
    }

    /// The next equal call runs it again.
    fn lost(&mut self, operation: OperationId, fault: &Fault) {
        let Some(Running { identity, runner, waiters, numbers, .. }) = self.stop(operation) else { return };
        self.note_made(&identity);
        // It may be sent again, for the refusal may be lost on its way, and may begin then.
        if fault.delivery() == Delivery::NotSent {
            for (term, number) in numbers {
                self.fences.take_back(identity.driver(), term, number);
            }
        }
        for (waiter, _) in waiters.into_iter().filter(|(waiter, _)| *waiter != runner) {
            self.actions.push_back(Action::Fail { waiter, fault: fault.clone() });
        }
        self.take_turns_of(&identity);
    }

    fn take_turns_of(&mut self, identity: &Identity) {
        if !self.queue.is_empty() {
            self.take_turns(identity.keys());
        }
    }

    /// Takes an operation out that was running.
    fn stop(&mut self, operation: OperationId) -> Option<Running> {
        let running = self.running.remove(&operation)?;
        self.release(operation, running.identity.keys());
        for (waiter, _) in &running.waiters {
            self.waiters.remove(waiter);
        }
        Some(running)
    }

    fn note_begun(&mut self, operation: OperationId, identity: &Identity) {
        if self.making > 0 {
            if self.begun.len() + identity.keys().len() > MAX_BEGUN {
                self.begun.clear();
                self.begun_unknown = Some(operation);
            }
            self.begun.extend(identity.keys().iter().map(|key| (key.clone(), operation)));
        }
        self.making += usize::from(is_making(identity.method()));
    }

    fn note_made(&mut self, identity: &Identity) {
        self.making -= usize::from(is_making(identity.method()));
        if self.making == 0 {
            self.begun.clear();
            self.begun_unknown = None;
        }
    }

    fn has_begun_since(&self, operation: OperationId, key: &Key) -> bool {
        self.begun_unknown.is_some_and(|unknown| unknown > operation)
            || self.begun.get(key).is_some_and(|begun| *begun > operation)
    }

    /// Keeps a result. Nothing else is about the same.
    fn keep(&mut self, operation: OperationId, kept: Kept) {
        self.kept_bytes += kept.bytes;
        self.due.insert((kept.until, operation));
        for key in kept.identity.keys().iter().chain(&kept.made) {
            self.holders.insert(key.clone(), operation);
        }
        self.kept.insert(operation, kept);
        while (self.kept.len() > self.limits.kept || self.kept_bytes > self.limits.kept_bytes)
            && let Some(&(_, operation)) = self.due.first()
        {
            self.forget(operation);
        }
    }

    /// Forgets what is kept about a key.
    fn void(&mut self, key: &Key) {
        if let Some(&holder) = self.holders.get(key) {
            self.forget(holder);
        }
    }

    /// Forgets a result, if that is kept.
    fn forget(&mut self, operation: OperationId) {
        let Some(kept) = self.kept.remove(&operation) else { return };
        self.kept_bytes -= kept.bytes;
        self.due.remove(&(kept.until, operation));
        self.release(operation, kept.identity.keys());
        self.release(operation, &kept.made);
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(&(until, operation)) = self.due.first()
            && until <= now
        {
            self.forget(operation);
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

/// Remembers a call. Beyond the bound the oldest is forgotten: it gets no replay then.
fn remember(calls: &mut Vec<CallId>, call: CallId) {
    if calls.contains(&call) {
        return;
    }
    if calls.len() >= MAX_CALLS {
        calls.remove(0);
    }
    calls.push(call);
}
