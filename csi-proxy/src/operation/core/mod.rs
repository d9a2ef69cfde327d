//! The table of operations. No clock, no task, no disk: events in, actions out.

mod event;
mod line;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use csi_proto::Method;
use csi_proto::method::Service;

pub use self::event::{Action, AskerId, Counts, Entry, Event, OperationId, Restored, Stage, Uncertain, Way};
use self::line::Line;
use super::answer::Answer;
use super::by_key::ByKey;
use super::counted::ByCount;
use super::identity::Identity;
use super::limits::Limits;
use super::subject::{Key, is_making};
use crate::fault::{Delivery, Fault};

/// Most [`Core::begun`] entries.
const MAX_BEGUN: usize = 4096;

/// All operations of a node's drivers: what runs, what is kept, and who waits. See the [module](super) for the rules.
///
/// Time must not go back between calls of [`Self::handle`].
#[derive(Debug)]
pub struct Core {
    limits: Limits,
    next: u64,
    operations: ByCount<OperationId, Operation>,
    /// What is run or kept for a subject: one operation at most.
    holders: ByKey<OperationId>,
    askers: ByCount<AskerId, Asker>,
    /// Calls that are not among the askers, since what they ask for has not begun.
    line: Line,
    /// What is over, by when it is forgotten.
    over: BTreeSet<(Instant, OperationId)>,
    counts: Counts,
    actions: VecDeque<Action>,
    /// How many run that make something, whose id is not known yet.
    making: usize,
    /// What else has begun since the first of those, by what it was about: it may be what one of them makes.
    begun: ByKey<OperationId>,
    /// Up to here [`Self::begun`] is not complete.
    begun_unknown: Option<OperationId>,
}

#[derive(Debug)]
struct Operation {
    identity: Identity,
    state: State,
    /// Calls that wait, or have the answer and have not said that it was delivered; in the order in which they came.
    askers: Vec<AskerId>,
}

#[derive(Debug)]
enum State {
    Running {
        started: bool,
    },
    Ended {
        answer: Answer,
        /// What the answer says that it is about, beside what the request named.
        made: Vec<Key>,
        bytes: usize,
        until: Instant,
        /// To how many of the askers the answer is on its way. While it is to one, no journal holds it: after a restart nobody would
        /// know whether it has come.
        sent: usize,
    },
    Uncertain {
        started: bool,
        bytes: usize,
        until: Instant,
    },
}

#[derive(Debug)]
struct Asker {
    operation: OperationId,
    until: Option<Instant>,
    /// The answer is on its way to it.
    sent: bool,
}

impl Asker {
    const fn new(operation: OperationId, until: Option<Instant>) -> Self {
        Self { operation, until, sent: false }
    }

    /// A caller whose time was over is not there, whatever became of the call that it made.
    fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until < now)
    }
}

impl Core {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            operations: ByCount::default(),
            holders: ByKey::default(),
            askers: ByCount::default(),
            line: Line::default(),
            over: BTreeSet::new(),
            counts: Counts::default(),
            actions: VecDeque::new(),
            making: 0,
            begun: ByKey::default(),
            begun_unknown: None,
        }
    }

    /// Takes back what a journal knew: finished answers wait for their askers, what was not finished is uncertain. To be called
    /// before any event. Of two operations about the same thing the later one counts.
    pub fn restore(&mut self, now: Instant, mut known: Vec<Restored>) {
        known.sort_by_key(|restored| restored.operation);
        for Restored { operation, identity, stage, age } in known {
            self.next = self.next.max(operation.number().saturating_add(1));
            let until = now + self.limits.kept_for.saturating_sub(age);
            let (state, made) = match stage {
                Stage::Finished(answer) => {
                    let (made, bytes) = (answer.keys(&identity), identity.bytes() + answer.bytes());
                    (State::Ended { answer, made: made.clone(), bytes, until, sent: 0 }, made)
                }
                Stage::Accepted | Stage::Started => {
                    let started = stage == Stage::Started;
                    (State::Uncertain { started, bytes: identity.bytes(), until }, Vec::new())
                }
            };
            for key in identity.keys().iter().chain(&made) {
                self.void(key);
            }
            self.keep(operation, Operation { identity, state, askers: Vec::new() });
        }
        self.forget_old(now);
        self.forget_much();
    }

    /// Changes the bounds. What is over by now is forgotten when it was to be.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.forget_much();
    }

    /// Takes what has happened.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.forget_old(now);
        if !self.line.is_empty() {
            self.give_up(now);
        }
        // What it kept waiting, if anything.
        let ends = match &event {
            Event::Answered { operation, .. } | Event::Lost { operation, .. } if !self.line.is_empty() => {
                self.operations.get(operation).map(|known| known.identity.clone())
            }
            _ => None,
        };
        match event {
            Event::Ask { asker, identity, until } => self.ask(now, asker, identity, until),
            Event::Left { asker } => self.left(asker),
            Event::Sent { asker } => self.sent(now, asker),
            Event::Taken { asker } => self.taken(now, asker),
            Event::Started { operation } => self.started(operation),
            Event::Answered { operation, answer } => self.answered(now, operation, answer),
            Event::Lost { operation, fault } => self.lost(now, operation, &fault),
            Event::TurnAway { fault } => self.turn_away(&fault),
            Event::Tick => {}
        }
        if let Some(identity) = ends {
            self.take_turns(identity.keys());
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How much there is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let waiting = self.line.len();
        Counts { askers: self.askers.len() + waiting, waiting, ..self.counts }
    }

    /// The operations whose end is not known, oldest first.
    #[must_use]
    pub fn uncertain(&self) -> Vec<Uncertain> {
        let mut all = Vec::with_capacity(self.counts.uncertain);
        for (&operation, Operation { identity, state, .. }) in &self.operations {
            if let State::Uncertain { started, .. } = *state {
                all.push(Uncertain { operation, identity: identity.clone(), started });
            }
        }
        all.sort_by_key(|uncertain| uncertain.operation);
        all
    }

    /// All that a journal should hold now, for one that has to begin anew.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.operations.iter().filter_map(|(&operation, known)| {
            let stage = match &known.state {
                State::Running { started: false } | State::Uncertain { started: false, .. } => {
                    Stage::Accepted
                }
                State::Running { started: true } | State::Uncertain { started: true, .. } => Stage::Started,
                State::Ended { answer, sent: 0, .. } if answer.outcome().is_ok() => {
                    Stage::Finished(answer.clone())
                }
                State::Ended { .. } => return None,
            };
            Some(Entry::Put { operation, identity: known.identity.clone(), stage })
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(Entry::operation);
        entries
    }

    fn ask(&mut self, now: Instant, asker: AskerId, identity: Identity, until: Option<Instant>) {
        if self.askers.len() + self.line.len() >= self.limits.askers {
            let max = self.limits.askers as u64;
            let fault = Fault::Overloaded { what: "the table of waiting calls".to_owned(), max };
            return self.actions.push_back(Action::Fail { asker, fault });
        }
        let same = identity.keys().first().and_then(|key| self.holders.get(key)).copied();
        if let Some(id) = same
            && let Some(known) = self.operations.get_mut(&id)
            && known.identity == identity
            && !matches!(known.state, State::Uncertain { .. })
        {
            if let State::Ended { answer, made, .. } = &known.state {
                if !made.is_empty() {
                    self.actions.push_back(Action::Settle { operation: id, keys: made.clone() });
                }
                let (answer, way) = (answer.clone(), Way::Late);
                self.actions.push_back(Action::Answer { asker, answer, way });
            }
            known.askers.push(asker);
            self.askers.insert(asker, Asker::new(id, until));
            return;
        }
        match self.pending(&identity) {
            Some(pending) => self.wait(now, asker, identity, until, pending),
            None => {
                let operation = self.begin(asker, identity, vec![asker]);
                self.askers.insert(asker, Asker::new(operation, until));
            }
        }
    }

    /// The first of what runs about these keys.
    fn running(&self, keys: &[Key]) -> Option<Method> {
        keys.iter().find_map(|key| {
            let other = self.operations.get(self.holders.get(key)?)?;
            matches!(other.state, State::Running { .. }).then(|| other.identity.method())
        })
    }

    /// Begins an operation with the request of a call, for those who wait for it.
    fn begin(&mut self, request: AskerId, identity: Identity, askers: Vec<AskerId>) -> OperationId {
        for key in identity.keys() {
            self.void(key);
        }
        let operation = OperationId::new(self.next);
        self.next += 1;
        for key in identity.keys() {
            self.holders.insert(key.clone(), operation);
        }
        self.note_begun(operation, &identity);
        self.counts.running += 1;
        let state = State::Running { started: false };
        self.operations.insert(operation, Operation { identity: identity.clone(), state, askers });
        self.record(operation, identity.clone(), Stage::Accepted);
        self.actions.push_back(Action::Run { operation, asker: request, identity });
        operation
    }

    fn started(&mut self, operation: OperationId) {
        if let Some(known) = self.operations.get_mut(&operation)
            && let State::Running { started } = &mut known.state
            && !std::mem::replace(started, true)
        {
            let identity = known.identity.clone();
            self.record(operation, identity, Stage::Started);
        }
    }

    fn answered(&mut self, now: Instant, operation: OperationId, answer: Answer) {
        let Some(Operation { identity, askers, .. }) = self.stop(operation) else { return };
        let made = answer.keys(&identity);
        // What was done on the node is undone by a reboot, or by the driver's own end, of which nobody tells. And it costs
        // little to ask again.
        let mut kept = answer.is_final() && identity.method().service() != Service::Node;
        for key in &made {
            // What has begun on it meanwhile may already have undone this.
            kept &= !self.is_running(key) && !self.has_begun_since(operation, key);
            self.void(key);
        }
        self.note_made(&identity);
        if !made.is_empty() {
            self.actions.push_back(Action::Settle { operation, keys: made.clone() });
        }
        for (at, &asker) in askers.iter().enumerate() {
            let way = if at == 0 { Way::Ran } else { Way::Joined };
            self.actions.push_back(Action::Answer { asker, answer: answer.clone(), way });
        }
        let bytes = identity.bytes() + answer.bytes();
        if !kept || bytes > self.limits.kept_bytes {
            self.dismiss(&askers);
            self.actions.push_back(Action::Record(Entry::Remove { operation }));
            return;
        }
        let stage = Stage::Finished(answer.clone());
        if answer.outcome().is_ok() {
            self.record(operation, identity.clone(), stage);
        } else {
            self.actions.push_back(Action::Record(Entry::Remove { operation }));
        }
        let state = State::Ended { answer, made, bytes, until: now + self.limits.kept_for, sent: 0 };
        self.keep(operation, Operation { identity, state, askers });
        self.forget_much();
    }

    fn lost(&mut self, now: Instant, operation: OperationId, fault: &Fault) {
        let Some(Operation { identity, state, askers }) = self.stop(operation) else { return };
        self.note_made(&identity);
        self.dismiss(&askers);
        for asker in askers {
            self.actions.push_back(Action::Fail { asker, fault: fault.clone() });
        }
        if fault.delivery() == Delivery::NotSent {
            self.actions.push_back(Action::Record(Entry::Remove { operation }));
            return;
        }
        let started = matches!(state, State::Running { started: true });
        let (bytes, until) = (identity.bytes(), now + self.limits.kept_for);
        let state = State::Uncertain { started, bytes, until };
        self.keep(operation, Operation { identity, state, askers: Vec::new() });
        self.forget_much();
    }

    fn sent(&mut self, now: Instant, asker: AskerId) {
        let Some(found) = self.askers.get_mut(&asker) else { return };
        if found.is_late(now) {
            return self.left(asker);
        }
        let operation = found.operation;
        if let Some(Operation { state: State::Ended { answer, sent, .. }, .. }) =
            self.operations.get_mut(&operation)
            && !std::mem::replace(&mut found.sent, true)
        {
            *sent += 1;
            if *sent > 1 {
                return;
            }
            self.counts.kept -= 1;
            self.counts.sent += 1;
            if answer.outcome().is_ok() {
                self.actions.push_back(Action::Record(Entry::Remove { operation }));
            }
        }
    }

    fn taken(&mut self, now: Instant, asker: AskerId) {
        let Some(found) = self.askers.get(&asker) else { return };
        // The word of an answer that was sent in time may take its time.
        if !found.sent && found.is_late(now) {
            return self.left(asker);
        }
        let operation = found.operation;
        if self.operations.get(&operation).is_some_and(|known| matches!(known.state, State::Ended { .. })) {
            self.forget(operation);
        }
    }

    fn left(&mut self, asker: AskerId) {
        let Some(left) = self.askers.remove(&asker) else { return self.left_line(asker) };
        let operation = left.operation;
        let Some(known) = self.operations.get_mut(&operation) else { return };
        known.askers.retain(|other| *other != asker);
        let State::Ended { answer, sent, .. } = &mut known.state else { return };
        if known.askers.is_empty() {
            answer.compact();
            known.identity.settle();
        }
        if !left.sent {
            return;
        }
        *sent -= 1;
        if *sent > 0 {
            return;
        }
        self.counts.kept += 1;
        self.counts.sent -= 1;
        if answer.outcome().is_ok() {
            let (identity, stage) = (known.identity.clone(), Stage::Finished(answer.clone()));
            self.record(operation, identity, stage);
        }
    }

    /// Takes an operation out that was running.
    fn stop(&mut self, operation: OperationId) -> Option<Operation> {
        let running = |known: &Operation| matches!(known.state, State::Running { .. });
        if !self.operations.get(&operation).is_some_and(running) {
            return None;
        }
        let known = self.operations.remove(&operation)?;
        self.counts.running -= 1;
        self.release(operation, known.identity.keys());
        Some(known)
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

    /// Puts an operation in that is over. Nothing else is about the same.
    fn keep(&mut self, operation: OperationId, mut known: Operation) {
        let keys = known.identity.keys().to_vec();
        let (made, bytes, until) = match &mut known.state {
            State::Ended { made, bytes, until, answer, .. } => {
                self.counts.kept += 1;
                if known.askers.is_empty() {
                    answer.compact();
                    known.identity.settle();
                }
                (made.clone(), *bytes, *until)
            }
            State::Uncertain { bytes, until, .. } => {
                self.counts.uncertain += 1;
                known.identity.settle();
                (Vec::new(), *bytes, *until)
            }
            State::Running { .. } => return,
        };
        self.counts.bytes += bytes;
        self.over.insert((until, operation));
        for key in keys.into_iter().chain(made) {
            self.holders.insert(key, operation);
        }
        self.operations.insert(operation, known);
    }

    /// Forgets what is kept about a key.
    fn void(&mut self, key: &Key) {
        if let Some(&holder) = self.holders.get(key)
            && !self.is_running(key)
        {
            self.forget(holder);
        }
    }

    /// Forgets an operation that is over. Calls that have its answer are done.
    fn forget(&mut self, operation: OperationId) {
        let Some(known) = self.operations.remove(&operation) else { return };
        let (made, bytes, until) = match known.state {
            State::Ended { made, bytes, until, sent, .. } => {
                *(if sent > 0 { &mut self.counts.sent } else { &mut self.counts.kept }) -= 1;
                (made, bytes, until)
            }
            State::Uncertain { bytes, until, .. } => {
                self.counts.uncertain -= 1;
                (Vec::new(), bytes, until)
            }
            State::Running { .. } => {
                self.operations.insert(operation, known);
                return;
            }
        };
        self.counts.bytes -= bytes;
        self.over.remove(&(until, operation));
        self.release(operation, known.identity.keys());
        self.release(operation, &made);
        self.dismiss(&known.askers);
        self.actions.push_back(Action::Record(Entry::Remove { operation }));
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(&(until, operation)) = self.over.first()
            && until <= now
        {
            self.forget(operation);
        }
    }

    fn forget_much(&mut self) {
        while (self.over.len() > self.limits.kept || self.counts.bytes > self.limits.kept_bytes)
            && let Some(&(_, operation)) = self.over.first()
        {
            self.forget(operation);
        }
    }

    fn is_running(&self, key: &Key) -> bool {
        let holder = self.holders.get(key).and_then(|holder| self.operations.get(holder));
        holder.is_some_and(|holder| matches!(holder.state, State::Running { .. }))
    }

    fn release(&mut self, operation: OperationId, keys: &[Key]) {
        for key in keys {
            if self.holders.get(key) == Some(&operation) {
                self.holders.remove(key);
            }
        }
    }

    fn dismiss(&mut self, askers: &[AskerId]) {
        for asker in askers {
            self.askers.remove(asker);
        }
    }

    fn record(&mut self, operation: OperationId, identity: Identity, stage: Stage) {
        self.actions.push_back(Action::Record(Entry::Put { operation, identity, stage }));
    }
}
