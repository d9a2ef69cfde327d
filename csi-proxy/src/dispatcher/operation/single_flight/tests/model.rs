//! A random walk of the core, checked by the rules against a complete history.
//!
//! Proxies make calls, send copies of them, give calls up and are replaced. The network delivers copies in random
//! order, also after the call was given up. The history knows the true state of the proxies, without ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use fastrand::Rng;
use prost::Message as _;

use super::super::*;
use super::{create, delete, driver, group, id};
use crate::call::Subject;
use crate::call::{CallNumber, GivenUp, Outcome};
use csi_proto::Code;

const SEEDS: u64 = 100;
const STEPS: u64 = 400;

/// With a short queue, so that it fills up.
fn limits() -> Limits {
    Limits { queued: 6, queued_per_subject: 4, ..Limits::new(Duration::from_secs(2)) }
}

/// A call, by its index in the history.
type Call = usize;

/// The true state of a call.
struct Made {
    identity: Identity,
    /// Term and number; `None` for a call made on the node, which is local.
    number: Option<(u64, u64)>,
    open: bool,
    /// It ended without an answer of the driver.
    given_up: bool,
    /// It shares an execution: it ran it, joined it, or got its result.
    shared: bool,
    /// When an execution that it shares last ended, or when it got its result.
    over: Option<Instant>,
}

/// A copy of a call in the network.
#[derive(Clone)]
struct Copy {
    call: Call,
    fence: Option<Fence>,
    /// All calls of its term that were closed when it was sent.
    closed: BTreeSet<Call>,
}

/// One execution by the driver.
struct Execution {
    identity: Identity,
    began: u64,
    ended: Option<u64>,
    /// Whether its answer may be kept; `true` if it ends the operation.
    kept: Option<bool>,
    made: Vec<Key>,
    calls: BTreeSet<Call>,
    /// The calls that had no execution before.
    first: BTreeSet<Call>,
    /// When a caller first got the result, or when it finished, if only copies of its calls may get it.
    claimed: Option<Instant>,
    ended_at: Instant,
}

/// A queued operation. Local ones are first.
struct Queued {
    identity: Identity,
    /// Whether a local call waited.
    local: bool,
    /// Its waiters and when each gives up.
    waiters: Vec<(WaiterId, Instant)>,
}

struct Walk {
    rng: Rng,
    core: Core,
    now: Instant,
    sequence: u64,
    submitted: u64,
    term: u64,
    recorded: u64,
    calls: Vec<Made>,
    network: Vec<Copy>,
    /// The calls reported to the node as closed.
    reported: BTreeSet<Call>,
    executions: Vec<Execution>,
    running: BTreeMap<OperationId, usize>,
    /// The call of a waiter, and the deadline of its caller.
    waiters: BTreeMap<WaiterId, (Call, Option<Instant>)>,
    /// The execution of each waiter, in order of arrival.
    waiting: BTreeMap<WaiterId, usize>,
    runners: BTreeMap<usize, WaiterId>,
    queue: Vec<Queued>,
    /// The queued calls that began with a local call ahead of others.
    joined_in_queue: usize,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            rng: Rng::with_seed(seed),
            core: Core::with_limits(limits()),
            now,
            sequence: 0,
            submitted: 0,
            term: 1,
            recorded: 0,
            calls: Vec::new(),
            network: Vec::new(),
            reported: BTreeSet::new(),
            executions: Vec::new(),
            running: BTreeMap::new(),
            waiters: BTreeMap::new(),
            waiting: BTreeMap::new(),
            runners: BTreeMap::new(),
            queue: Vec::new(),
            joined_in_queue: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.rng.u64(..below)
    }

    fn pick<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<_> = from.into_iter().collect();
        (!all.is_empty()).then(|| all[usize::try_from(self.draw(all.len() as u64)).unwrap()].clone())
    }

    fn step(&mut self) -> Result<(), String> {
        self.sequence += 1;
        // Sometimes long enough to expire results.
        let passed = if self.draw(40) == 0 { self.draw(700_000) } else { self.draw(500) };
        self.now += Duration::from_millis(passed);
        self.give_up()?;
        match self.draw(100) {
            0..25 => self.call()?,
            25..35 => self.send_again(),
            35..62 => self.deliver()?,
            62..82 => self.end()?,
            82..90 => self.leave()?,
            90..98 => self.close(),
            98 => self.replace(),
            _ => self.duplicate(),
        }
        self.check()
    }

    // The proxies.

    fn call(&mut self) -> Result<(), String> {
        let volume = ["a", "b", "c"][usize::try_from(self.draw(3)).unwrap()];
        let mut identity = match self.draw(8) {
            0 => create(volume, "1"),
            1 => create(volume, "2"),
            2..4 => group(&[volume, "a"]),
            _ => delete(volume),
        };
        let fenced = self.draw(4) > 0;
        let queued: Vec<_> = self.queue.iter().map(|waits| waits.identity.clone()).collect();
        if let Some(queued) = self.pick(queued).filter(|_| !fenced) {
            identity = queued;
        }
        let number = fenced.then(|| {
            let last =
                self.calls.iter().filter_map(|call| call.number).filter(|(term, _)| *term == self.term);
            (self.term, last.map(|(_, number)| number).max().unwrap_or_default() + 1)
        });
        self.calls.push(Made { identity, number, open: true, given_up: false, shared: false, over: None });
        let call = self.calls.len() - 1;
        if !fenced {
            // No network is in between.
            return self.arrives(call, None);
        }
        self.send(call);
        Ok(())
    }

    fn send_again(&mut self) {
        let open = (0..self.calls.len()).filter(|call| self.calls[*call].open).collect::<Vec<_>>();
        if let Some(call) = self.pick(open) {
            self.send(call);
        }
    }

    fn send(&mut self, call: Call) {
        let Some((term, number)) = self.calls[call].number else {
            return self.network.push(Copy { call, fence: None, closed: BTreeSet::new() });
        };
        let of_term = |at: &Call| self.calls[*at].number.is_some_and(|(other, _)| other == term);
        let all = (0..self.calls.len()).filter(of_term);
        let (open, closed): (Vec<_>, Vec<_>) = all.partition(|at| self.calls[*at].open);
        let number_of = |at: Call| self.calls[at].number.unwrap().1;
        let n = |number| CallNumber::new(number).unwrap();
        let lowest = open.iter().map(|at| number_of(*at)).min().unwrap();
        let given_up = closed.iter().filter(|at| self.calls[**at].given_up && number_of(**at) > lowest);
        let given_up = GivenUp::new(given_up.map(|at| n(number_of(*at))..=n(number_of(*at)))).unwrap();
        let fence = Fence::new(super::term(term), n(number), n(lowest), given_up).unwrap();
        self.network.push(Copy { call, fence: Some(fence), closed: closed.into_iter().collect() });
    }

    /// A caller leaves, and its proxy gives the call up. Copies may be in the network and queued at the node.
    fn close(&mut self) {
        let mut open: Vec<_> = (0..self.calls.len()).filter(|call| self.calls[*call].open).collect();
        if self.draw(2) == 0 {
            let queued: Vec<_> = self.queue.iter().flat_map(|waits| &waits.waiters).collect();
            open.retain(|call| queued.iter().any(|(waiter, _)| self.waiters[waiter].0 == *call));
        }
        if let Some(call) = self.pick(open) {
            self.ended(call, false);
        }
    }

    fn ended(&mut self, call: Call, answered: bool) {
        let call = &mut self.calls[call];
        if std::mem::take(&mut call.open) {
            call.given_up = !answered;
        }
    }

    fn replace(&mut self) {
        self.term += 1;
        for call in &mut self.calls {
            call.open &= call.number.is_none();
        }
    }

    /// The network duplicates a copy.
    fn duplicate(&mut self) {
        if let Some(copy) = self.pick(self.network.clone()) {
            self.network.push(copy);
        }
    }

    // The node.

    fn deliver(&mut self) -> Result<(), String> {
        let count = self.network.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let at = usize::try_from(self.draw(count)).unwrap();
        let Copy { call, fence, closed } = self.network.swap_remove(at);
        if let Some((term, _)) = self.calls[call].number
            && term > self.recorded
        {
            let refused = self.submit(call, fence.clone(), None)?;
            if !matches!(&refused[..], [Action::Fail { fault: Fault::TermNotRecorded { .. }, .. }]) {
                return Err(format!("term {term} is not recorded: {refused:?}"));
            }
            self.core.record_term(super::term(term));
            self.recorded = term;
        }
        if self.calls[call].number.is_some_and(|(term, _)| term == self.recorded) {
            self.reported.extend(closed);
        }
        self.arrives(call, fence)
    }

    fn submit(
        &mut self,
        call: Call,
        fence: Option<Fence>,
        until: Option<Instant>,
    ) -> Result<Vec<Action>, String> {
        self.submitted += 1;
        let waiter = WaiterId::new(self.submitted);
        self.waiters.insert(waiter, (call, until));
        let identity = self.calls[call].identity.clone();
        let (call, remote) = (id(call as u64), self.calls[call].number.is_some());
        Ok(self.event(Event::Requested { waiter, call, identity, fence, remote, until }))
    }

    fn arrives(&mut self, call: Call, fence: Option<Fence>) -> Result<(), String> {
        let timeout = [None, None, None, Some(400), Some(1_500), Some(5_000)];
        let timeout = timeout[usize::try_from(self.draw(6)).unwrap()];
        let until = timeout.map(|timeout| self.now + Duration::from_millis(timeout));
        // Two seconds, or half a second before the deadline of the caller.
        let gives_up =
            self.now + Duration::from_millis(timeout.map_or(2_000, |p| (p.max(500) - 500).min(2_000)));
        let identity = self.calls[call].identity.clone();
        let stale = self.is_stale(call);
        let begun = self.has_begun(call);
        let shared = begun || (self.calls[call].number.is_some() && self.calls[call].shared);
        let same = self.running.values().copied().find(|at| self.executions[*at].identity == identity);
        let kept = self.kept(call);
        let local = self.calls[call].number.is_none();
        let ahead = |waits: &Queued| (waits.local || !local) && overlaps(&waits.identity, &identity);
        let conflict = self.is_running(&identity) || self.queue.iter().any(ahead);
        let place = self.queue.iter().position(|waits| waits.identity == identity);
        let about = |key: &Key| self.queue.iter().filter(|waits| waits.identity.keys().contains(key)).count();
        let (total, per_key) = if local { (6, 4) } else { (3, 2) };
        let has_room = place.is_some()
            || (self.queue.len() < total && identity.keys().iter().all(|key| about(key) < per_key));
        let waits = has_room && gives_up > self.now;
        let actions = self.submit(call, fence, until)?;
        let waiter = WaiterId::new(self.submitted);
        match (&actions[..], stale, same, kept) {
            ([Action::Fail { fault, .. }], Some(expected), ..) if fault.kind() == expected => {
                self.ended(call, false);
            }
            ([], None, Some(running), _) => {
                self.waiting.insert(waiter, running);
                self.shares(call, running);
            }
            // A kept result is returned even while another operation is queued: this changes nothing.
            ([Action::Answer { answer, served: Served::Replayed, .. }], None, None, Some(kept)) => {
                if number(answer) != kept {
                    return Err(format!("replayed {} instead of {kept}", number(answer)));
                }
                let execution = &mut self.executions[kept];
                if execution.claimed.is_none() {
                    execution.claimed = Some(self.now);
                    self.calls[call].over = Some(self.now);
                }
                self.shares(call, kept);
                self.ended(call, true);
            }
            ([Action::Fail { fault: Fault::AlreadyBegun { .. }, .. }], None, None, None) if begun => {
                self.ended(call, false);
            }
            ([Action::Fail { fault: Fault::StaleCall { .. }, .. }], None, None, None) if shared && !begun => {
                self.ended(call, false);
            }
            ([Action::Fail { fault: Fault::OperationPending { .. }, .. }], None, None, None)
                if !shared && conflict && !waits =>
            {
                self.ended(call, false);
            }
            ([Action::Wait { deadline: found, .. }], None, None, None)
                if !shared && conflict && waits && *found == gives_up =>
            {
                match place {
                    Some(at) if self.queue[at].local || !local => {
                        self.queue[at].waiters.push((waiter, gives_up));
                    }
                    place => {
                        let mut waiters = place.map(|at| self.queue.remove(at).waiters).unwrap_or_default();
                        waiters.push((waiter, gives_up));
                        let remote_from = self.queue.iter().take_while(|waits| waits.local).count();
                        let at = if local { remote_from } else { self.queue.len() };
                        self.queue.insert(at, Queued { identity, local, waiters });
                    }
                }
            }
            ([failed @ .., Action::Run { operation, waiter: runner }], None, None, None)
                if !shared && !conflict && *runner == waiter =>
            {
                let queued = place.map(|at| self.queue.remove(at).waiters).unwrap_or_default();
                let queued = queued.into_iter().map(|(waiter, _)| waiter);
                let (stale, others): (Vec<_>, Vec<_>) = queued.partition(|waiter| self.is_refused(*waiter));
                if failed.len() != stale.len() {
                    return Err(format!("{failed:?}, expected {stale:?}"));
                }
                for action in failed {
                    match action {
                        Action::Fail { waiter, fault } if is_fenced(fault) && stale.contains(waiter) => {
                            self.ended(self.waiters[waiter].0, false);
                        }
                        other => return Err(format!("{other:?}")),
                    }
                }
                self.joined_in_queue += others.len();
                let waiters: Vec<_> = std::iter::once(waiter).chain(others).collect();
                self.runs(*operation, identity, &waiters)?;
            }
            other => return Err(format!("{identity:?}, conflict {conflict}, shared {shared}: {other:?}")),
        }
        Ok(())
    }

    /// The reason why a call may not begin, by the reports to the node.
    fn is_stale(&self, call: Call) -> Option<&'static str> {
        match self.calls[call].number {
            Some((term, _)) if term < self.recorded => Some("stale_term"),
            // An answered call was at the node: it may join and get its result again, until its number is below the
            // lowest open one.
            Some(_) if self.reported.contains(&call) && self.calls[call].given_up => Some("stale_call"),
            Some((_, number)) if number < self.lowest_reported() => Some("stale_call"),
            _ => None,
        }
    }

    /// Whether a queued call may not begin.
    fn is_refused(&self, waiter: WaiterId) -> bool {
        let call = self.waiters[&waiter].0;
        self.is_stale(call).is_some()
            || self.has_begun(call)
            || (self.calls[call].number.is_some() && self.calls[call].shared)
    }

    /// Whether a call has begun, by its id.
    fn has_begun(&self, call: Call) -> bool {
        self.calls[call].over.is_some_and(|over| self.now < over + Duration::from_secs(60))
    }

    /// The lowest number that can be open, by the reports to the node: all lower ones were closed.
    fn lowest_reported(&self) -> u64 {
        let of_term = |call: &Made| call.number.filter(|(term, _)| *term == self.recorded).map(|(_, at)| at);
        let closed: BTreeSet<_> =
            self.reported.iter().filter_map(|call| of_term(&self.calls[*call])).collect();
        (1..).find(|number| !closed.contains(number)).unwrap()
    }

    fn is_running(&self, identity: &Identity) -> bool {
        self.running.values().any(|at| overlaps(&self.executions[*at].identity, identity))
    }

    fn shares(&mut self, call: Call, execution: usize) {
        self.executions[execution].calls.insert(call);
        if !std::mem::replace(&mut self.calls[call].shared, true) {
            self.executions[execution].first.insert(call);
        }
    }

    /// The driver is called. Checks the guarantees of the fence, whatever was expected.
    fn runs(
        &mut self,
        operation: OperationId,
        identity: Identity,
        waiters: &[WaiterId],
    ) -> Result<(), String> {
        if self.is_running(&identity) {
            return Err(format!("{identity:?} begins while something runs on its volume"));
        }
        let execution = self.executions.len();
        // The calls with the previous result get the next one: their numbers have begun.
        let calls = self.kept_of(&identity).map(|last| self.executions[last].calls.clone());
        self.executions.push(Execution {
            identity,
            began: self.sequence,
            ended: None,
            kept: None,
            made: Vec::new(),
            calls: calls.unwrap_or_default(),
            first: BTreeSet::new(),
            claimed: None,
            ended_at: self.now,
        });
        self.running.insert(operation, execution);
        self.runners.insert(execution, waiters[0]);
        // Several waiters may be copies of one call.
        let calls: BTreeSet<_> = waiters.iter().map(|waiter| self.waiters[waiter].0).collect();
        for call in calls {
            if self.has_begun(call) {
                return Err(format!("call {call} begins twice"));
            }
            if let Some((term, number)) = self.calls[call].number {
                if term < self.recorded {
                    return Err(format!("a call of term {term} begins under term {}", self.recorded));
                }
                if self.calls[call].shared {
                    return Err(format!("number {number} begins twice"));
                }
                if self.reported.contains(&call) {
                    return Err(format!("number {number} begins, which was reported as closed"));
                }
            }
            self.shares(call, execution);
        }
        self.waiting.extend(waiters.iter().map(|waiter| (*waiter, execution)));
        Ok(())
    }

    /// Checks that exactly the expired waiters are refused.
    fn give_up(&mut self) -> Result<(), String> {
        let mut expected = BTreeSet::new();
        for waits in &mut self.queue {
            let expired = waits.waiters.extract_if(.., |(_, gives_up)| *gives_up <= self.now);
            expected.extend(expired.map(|(waiter, _)| waiter));
        }
        let mut refused = BTreeSet::new();
        let mut rest = Vec::new();
        for action in self.event(Event::Tick) {
            match action {
                Action::Fail { waiter, fault: Fault::OperationPending { .. } } => {
                    refused.insert(waiter);
                    self.ended(self.waiters[&waiter].0, false);
                }
                other => rest.push(other),
            }
        }
        if refused != expected {
            return Err(format!("{refused:?} gave up; expected {expected:?}"));
        }
        self.turns(rest)
    }

    /// Checks that exactly the unblocked operations begin, unless they were given up.
    fn turns(&mut self, actions: Vec<Action>) -> Result<(), String> {
        self.queue.retain(|waits| !waits.waiters.is_empty());
        let mut ahead: Vec<Identity> = Vec::new();
        let (mut begin, mut stale) = (BTreeMap::new(), BTreeSet::new());
        for mut waits in std::mem::take(&mut self.queue) {
            if self.is_running(&waits.identity) || ahead.iter().any(|other| overlaps(other, &waits.identity))
            {
                ahead.push(waits.identity.clone());
                self.queue.push(waits);
                continue;
            }
            let refused = waits.waiters.extract_if(.., |(waiter, _)| self.is_refused(*waiter));
            stale.extend(refused.map(|(waiter, _)| waiter));
            waits.waiters.sort_by_key(|(waiter, _)| self.calls[self.waiters[waiter].0].number.is_some());
            if let Some((first, _)) = waits.waiters.first() {
                ahead.push(waits.identity.clone());
                begin.insert(*first, waits);
            }
        }
        let mut refused = BTreeSet::new();
        for action in actions {
            match action {
                Action::Fail { waiter, fault } if is_fenced(&fault) => {
                    refused.insert(waiter);
                    self.ended(self.waiters[&waiter].0, false);
                }
                Action::Run { operation, waiter } => match begin.remove(&waiter) {
                    Some(waits) => {
                        let waiters: Vec<_> = waits.waiters.iter().map(|(waiter, _)| *waiter).collect();
                        self.runs(operation, waits.identity, &waiters)?;
                    }
                    None => return Err(format!("{waiter:?} begins out of turn")),
                },
                other => return Err(format!("{other:?}")),
            }
        }
        if !begin.is_empty() || refused != stale {
            let late: Vec<_> = begin.keys().collect();
            return Err(format!("{late:?} must begin; refused {refused:?}, expected {stale:?}"));
        }
        Ok(())
    }

    /// The execution whose result a call gets, by the rules.
    fn kept(&self, call: Call) -> Option<usize> {
        let at = self.kept_of(&self.calls[call].identity)?;
        let execution = &self.executions[at];
        (execution.claimed.is_none() || execution.calls.contains(&call)).then_some(at)
    }

    /// The execution whose result is kept, at least for copies of its calls.
    fn kept_of(&self, identity: &Identity) -> Option<usize> {
        let (at, last) =
            self.executions.iter().enumerate().rfind(|(_, execution)| execution.identity == *identity)?;
        let (ended, is_final) = (last.ended?, last.kept?);
        let touched =
            self.executions.iter().enumerate().filter(|(other, _)| *other != at).any(|(_, other)| {
                let about = |key: &Key| identity.keys().contains(key);
                let made = |key: &Key| last.made.contains(key);
                // An operation that ran at that time may undo it later.
                let running = other.began < ended && other.ended.is_none_or(|end| end > ended);
                let started_on_it = (other.began > last.began || running)
                    && other.identity.keys().iter().any(|key| about(key) || made(key));
                let made_it = other.ended.is_some_and(|end| end > ended)
                    && other.made.iter().any(|key| about(key) || made(key));
                started_on_it || made_it
            });
        let there = match last.claimed {
            Some(claimed) => self.now < claimed + Duration::from_secs(60),
            None => is_final && self.now < last.ended_at + Duration::from_secs(600),
        };
        (there && !touched).then_some(at)
    }

    fn end(&mut self) -> Result<(), String> {
        let Some((operation, at)) = self.pick(self.running.clone()) else { return Ok(()) };
        self.running.remove(&operation);
        let name = self.executions[at].identity.keys()[0].subject().clone();
        let text = at.to_string();
        let (driver, reason) = (driver(), String::new());
        let event = match self.draw(9) {
            0 => Event::Lost { operation, fault: Fault::DriverLost { driver, reason } },
            8 => Event::Lost { operation, fault: Fault::DriverRefused { driver, reason } },
            kind => {
                let code = [Code::OK, Code::OK, Code::OK, Code::OK, Code::OK, Code::INTERNAL, Code::ABORTED]
                    [usize::try_from(kind - 1).unwrap()];
                let outcome = Outcome::from_driver(code, text);
                let message = match (&name, code) {
                    (Subject::VolumeName(name), Code::OK) => {
                        let volume = csi::Volume { volume_id: name.to_string(), ..Default::default() };
                        Some(csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into())
                    }
                    (_, Code::OK) => Some(Bytes::new()),
                    _ => None,
                };
                Event::Answered { operation, answer: Answer::new(message, outcome).unwrap() }
            }
        };
        let waited = self.waiting.iter().filter(|(_, waits)| **waits == at);
        let mut expected: BTreeSet<_> = waited.map(|(waiter, _)| *waiter).collect();
        let in_time = |waiter: &WaiterId| self.waiters[waiter].1.is_none_or(|until| until >= self.now);
        let claimed = expected.iter().any(in_time);
        let known = &mut self.executions[at];
        (known.ended, known.ended_at) = (Some(self.sequence), self.now);
        if let Event::Answered { answer, .. } = &event {
            known.kept = Some(answer.is_final());
            known.made = answer.keys(&known.identity);
            // A retryable answer is for copies of its calls only.
            known.claimed = (claimed || !answer.is_final()).then_some(self.now);
        }
        if let Event::Lost { fault: Fault::DriverRefused { .. }, .. } = &event {
            for call in std::mem::take(&mut known.first) {
                self.calls[call].shared = false;
            }
        } else {
            for call in &known.calls {
                self.calls[*call].over = Some(self.now);
            }
        }
        let answered = matches!(event, Event::Answered { .. });
        for waiter in &expected.clone() {
            self.ended(self.waiters[waiter].0, answered);
        }
        // The waiter that executed it has the answer already.
        expected.remove(&self.runners[&at]);
        let mut notified = BTreeSet::new();
        let mut rest = Vec::new();
        for action in self.event(event) {
            match action {
                Action::Answer { waiter, answer, served: Served::Joined } if number(&answer) == at => {
                    notified.insert(waiter);
                }
                Action::Fail { waiter, fault: Fault::DriverLost { .. } | Fault::DriverRefused { .. } } => {
                    notified.insert(waiter);
                }
                other => rest.push(other),
            }
        }
        self.waiting.retain(|_, waits| *waits != at);
        if notified != expected {
            return Err(format!("notified {notified:?}; expected {expected:?}"));
        }
        self.turns(rest)
    }

    /// A link is lost or a caller leaves.
    fn leave(&mut self) -> Result<(), String> {
        let queued = self.queue.iter().flat_map(|waits| waits.waiters.iter().map(|(waiter, _)| waiter));
        let all: Vec<_> = self.waiting.keys().chain(queued).copied().collect();
        let Some(waiter) = self.pick(all) else { return Ok(()) };
        for waits in &mut self.queue {
            waits.waiters.retain(|(other, _)| *other != waiter);
        }
        self.waiting.remove(&waiter);
        let actions = self.event(Event::Left { waiter });
        self.turns(actions)
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        self.core.handle(self.now, event);
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    fn check(&self) -> Result<(), String> {
        let counts = self.core.counts();
        let queued: usize = self.queue.iter().map(|waits| waits.waiters.len()).sum();
        if (counts.running, counts.waiting, counts.waiters)
            != (self.running.len(), queued, queued + self.waiting.len())
        {
            return Err(format!("{counts:?}"));
        }
        Ok(())
    }

    /// Without further requests, everything but the fence is evicted in time.
    fn drain(&mut self) -> Result<(), String> {
        while !self.running.is_empty() {
            self.sequence += 1;
            self.end()?;
        }
        self.now += KEPT_FOR;
        let actions = self.event(Event::Tick);
        let Core { running, holders, waiters, queue, kept, due, started, pending_creates, .. } = &self.core;
        let left = [
            running.len(),
            holders.len(),
            waiters.len(),
            kept.len(),
            due.len(),
            started.len(),
            *pending_creates,
        ];
        if left == [0; 7] && queue.is_empty() && actions.is_empty() && self.core.counts() == Counts::default()
        {
            Ok(())
        } else {
            Err(format!("{left:?}, {actions:?}"))
        }
    }
}

/// Whether a call may not begin because of its fence or its id.
fn is_fenced(fault: &Fault) -> bool {
    matches!(fault, Fault::StaleCall { .. } | Fault::StaleTerm { .. } | Fault::AlreadyBegun { .. })
}

fn overlaps(one: &Identity, other: &Identity) -> bool {
    one.keys().iter().any(|key| other.keys().contains(key))
}

/// The execution of an answer.
fn number(answer: &Answer) -> usize {
    answer.outcome().message.parse().unwrap()
}

fn walk(seed: u64) -> Result<Walk, String> {
    let mut walk = Walk::new(seed);
    for step in 0..STEPS {
        walk.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    walk.drain().map_err(|what| format!("at the end: {what}"))?;
    Ok(walk)
}

/// No second execution while one runs; no copy of a given-up call begins after a later operation on its subject; no
/// number begins twice; each call gets exactly what the rules define.
#[test]
fn random_walks_follow_the_rules() {
    let seed = std::env::var("OPERATION_SEED").ok();
    let seeds = seed.as_ref().map_or(0..SEEDS, |seed| {
        let seed = seed.parse().unwrap();
        seed..seed + 1
    });
    let (mut executions, mut replaced, mut joined) = (0, 0, 0);
    for seed in seeds {
        match walk(seed) {
            Ok(walk) => {
                (executions, replaced) = (executions + walk.executions.len(), replaced.max(walk.term));
                joined += walk.joined_in_queue;
            }
            Err(what) => {
                panic!(
                    "{what}\nreplay with: OPERATION_SEED={seed} cargo test -p csi-proxy --lib single_flight"
                )
            }
        }
    }
    assert!(seed.is_some() || joined > 0, "no local call took queued ones along");
    assert!(executions > 20 && replaced > 1, "the walk covers too little: {executions} executions");
}
