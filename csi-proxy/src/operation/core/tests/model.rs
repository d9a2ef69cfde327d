//! A random walk of the core against a history that is kept in full and judged by the rules as they are told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::super::super::journal::record::open;
use super::super::super::journal::{Change, JournalSettings, Pending};
use super::super::super::subject::Subject;
use super::super::*;
use super::{create, delete, driver, group};
use crate::code::Code;
use crate::outcome::Outcome;

const SEEDS: u64 = 100;
const STEPS: u64 = 400;

/// With a line so short that it gets full.
fn limits() -> Limits {
    Limits { waiting: 4, waiting_on_one: 3, ..Limits::default() }
}

/// One execution by the driver.
struct Execution {
    identity: Identity,
    began: u64,
    ended: Option<u64>,
    /// Its answer, if that is to be kept as far as it alone is concerned.
    kept: bool,
    recorded: bool,
    made: Vec<Key>,
    taken: bool,
    /// In which life it ran.
    life: u64,
}

/// An operation that waits for its turn.
struct Waiter {
    identity: Identity,
    first: AskerId,
    /// Its calls, and when each gives up.
    askers: Vec<(AskerId, Instant)>,
}

struct Walk {
    chance: u64,
    core: Core,
    now: Instant,
    sequence: u64,
    life: u64,
    asked: u64,
    executions: BTreeMap<u64, Execution>,
    running: BTreeMap<OperationId, u64>,
    /// Who waits for which execution.
    waiting: BTreeMap<AskerId, u64>,
    /// What waits for its turn, in the order in which it came.
    line: Vec<Waiter>,
    /// Who has the answer of which execution and has said nothing yet, and until when it listens.
    holding: BTreeMap<AskerId, (u64, Option<Instant>)>,
    /// To whom the answer of which execution is on its way.
    sent: BTreeMap<AskerId, u64>,
    until: BTreeMap<AskerId, Option<Instant>>,
    /// Whether changes reach the disk at once, or when chance has it.
    at_once: bool,
    pending: Pending,
    disk: BTreeMap<u64, Vec<u8>>,
}

/// What the rules say of an answer that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    /// It is to be handed out.
    Must(u64),
    /// An earlier life had it. It is right, but it may have been lost, or have been handed out.
    May(u64),
    No,
}

impl Walk {
    fn new(seed: u64, at_once: bool) -> Self {
        Self {
            chance: seed,
            core: Core::new(limits()),
            now: Instant::now(),
            sequence: 0,
            life: 0,
            asked: 0,
            executions: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            line: Vec::new(),
            holding: BTreeMap::new(),
            sent: BTreeMap::new(),
            until: BTreeMap::new(),
            at_once,
            pending: Pending::new(JournalSettings::default(), &[]),
            disk: BTreeMap::new(),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn pick<T: Clone>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<_> = from.into_iter().collect();
        (!all.is_empty()).then(|| all[usize::try_from(self.draw(all.len() as u64)).unwrap()].clone())
    }

    fn step(&mut self) -> Result<(), String> {
        self.sequence += 1;
        let passed = self.draw(2000);
        self.now += Duration::from_millis(passed);
        self.give_up()?;
        match self.draw(100) {
            0..40 => self.ask()?,
            40..65 => self.end()?,
            65..72 => self.send()?,
            72..80 => self.deliver()?,
            80..92 => self.leave()?,
            92..95 => self.start()?,
            95..97 => self.write(true),
            _ => self.restart()?,
        }
        self.check()
    }

    fn ask(&mut self) -> Result<(), String> {
        let volume = ["a", "b", "c"][usize::try_from(self.draw(3)).unwrap()];
        let identity = match self.draw(8) {
            0 | 1 => create(volume, "1"),
            2 | 3 => create(volume, "2"),
            4 => group(&[volume, "a"]),
            _ => delete(volume),
        };
        self.asked += 1;
        let asker = AskerId::new(self.asked);
        let patience = [None, None, None, Some(400), Some(1_500), Some(5_000)];
        let patience = patience[usize::try_from(self.draw(6)).unwrap()];
        let until = patience.map(|patience| self.now + Duration::from_millis(patience));
        // Two seconds, or half a second before the caller's time is over.
        let gives_up =
            self.now + Duration::from_millis(patience.map_or(2_000, |p| (p.max(500) - 500).min(2_000)));
        self.until.insert(asker, until);
        let same = self.running.values().copied().find(|number| self.executions[number].identity == identity);
        let conflict =
            self.is_running(&identity) || self.line.iter().any(|waits| meets(&waits.identity, &identity));
        let lined = self.line.iter().position(|waits| waits.identity == identity);
        let about = |key: &Key| self.line.iter().filter(|waits| waits.identity.keys().contains(key)).count();
        let has_room =
            lined.is_some() || (self.line.len() < 4 && identity.keys().iter().all(|key| about(key) < 3));
        let waits = has_room && gives_up > self.now;
        let kept = self.kept(&identity);
        let actions = self.event(Event::Ask { asker, identity: identity.clone(), until })?;
        match (&actions[..], same, kept) {
            ([], Some(running), _) => drop(self.waiting.insert(asker, running)),
            ([Action::Fail { fault: Fault::OperationPending { .. }, .. }], None, _) if conflict && !waits => {
            }
            ([Action::Wait { first, gives_up: found, .. }], None, _)
                if conflict && waits && *first == lined.is_none() && *found == gives_up =>
            {
                match lined {
                    Some(at) => self.line[at].askers.push((asker, gives_up)),
                    None => {
                        self.line.push(Waiter { identity, first: asker, askers: vec![(asker, gives_up)] });
                    }
                }
            }
            // What is kept is given also while something waits for its turn: it changes nothing.
            ([Action::Answer { answer, way: Way::Late, .. }], None, Kept::Must(kept) | Kept::May(kept))
                if !self.is_running(&identity) && lined.is_none() =>
            {
                if number(answer) != kept {
                    return Err(format!("handed out {} instead of {kept}", number(answer)));
                }
                self.holding.insert(asker, (kept, until));
            }
            ([Action::Run { operation, .. }], None, Kept::No | Kept::May(_)) if !conflict => {
                self.runs(*operation, identity, &[asker]);
            }
            other => return Err(format!("{identity:?}, conflict {conflict}: {other:?}")),
        }
        Ok(())
    }

    fn is_running(&self, identity: &Identity) -> bool {
        self.running.values().any(|number| meets(&self.executions[number].identity, identity))
    }

    /// The driver is called.
    fn runs(&mut self, operation: OperationId, identity: Identity, askers: &[AskerId]) {
        let number = self.executions.len() as u64;
        let execution = Execution {
            identity,
            began: self.sequence,
            ended: None,
            kept: false,
            recorded: false,
            made: Vec::new(),
            taken: false,
            life: self.life,
        };
        self.executions.insert(number, execution);
        self.running.insert(operation, number);
        self.waiting.extend(askers.iter().map(|asker| (*asker, number)));
    }

    /// Those who have waited long enough are refused, and nobody else.
    fn give_up(&mut self) -> Result<(), String> {
        let mut expected = BTreeSet::new();
        for waits in &mut self.line {
            let gone = waits.askers.extract_if(.., |(_, gives_up)| *gives_up <= self.now);
            expected.extend(gone.map(|(asker, _)| asker));
        }
        let mut told = BTreeSet::new();
        let mut rest = Vec::new();
        for action in self.event(Event::Tick)? {
            match action {
                Action::Fail { asker, fault: Fault::OperationPending { .. } } => drop(told.insert(asker)),
                other => rest.push(other),
            }
        }
        if told != expected {
            return Err(format!("told {told:?} to give up, but it is {expected:?}"));
        }
        self.turns(rest)
    }

    /// What nobody waits for any more is let go, and what has nothing before it begins: nothing else is to be done.
    fn turns(&mut self, actions: Vec<Action>) -> Result<(), String> {
        let gone: BTreeSet<_> =
            self.line.extract_if(.., |waits| waits.askers.is_empty()).map(|waits| waits.first).collect();
        let mut ahead: Vec<Identity> = Vec::new();
        let mut begin = BTreeMap::new();
        for waits in std::mem::take(&mut self.line) {
            let first = !ahead.iter().any(|other| meets(other, &waits.identity));
            ahead.push(waits.identity.clone());
            if first && !self.is_running(&waits.identity) {
                begin.insert(waits.first, waits);
            } else {
                self.line.push(waits);
            }
        }
        let mut let_go = BTreeSet::new();
        for action in actions {
            match action {
                Action::LetGo { asker } => drop(let_go.insert(asker)),
                Action::Run { operation, asker, identity } => match begin.remove(&asker) {
                    Some(waits) if waits.identity == identity => {
                        let askers: Vec<_> = waits.askers.iter().map(|(asker, _)| *asker).collect();
                        self.runs(operation, identity, &askers);
                    }
                    _ => return Err(format!("{identity:?} begins out of turn")),
                },
                other => return Err(format!("{other:?}")),
            }
        }
        if !begin.is_empty() || let_go != gone {
            let late: Vec<_> = begin.keys().collect();
            return Err(format!("the turn of {late:?} has come; let go were {let_go:?}, not {gone:?}"));
        }
        Ok(())
    }

    /// The execution whose answer waits for this identity, by the rules.
    fn kept(&self, identity: &Identity) -> Kept {
        let mut same = self.executions.iter().filter(|(_, execution)| execution.identity == *identity);
        let Some((&number, last)) = same.next_back() else { return Kept::No };
        let Some(ended) = last.ended.filter(|_| last.kept) else { return Kept::No };
        let earlier = last.life != self.life;
        if (earlier && !last.recorded) || (last.taken && (self.at_once || !earlier)) {
            return Kept::No;
        }
        let touched = self.executions.iter().filter(|(other, _)| **other != number).any(|(_, other)| {
            let about = |key: &Key| identity.keys().contains(key);
            let made = |key: &Key| last.made.contains(key);
            // What ran on it when it was made may undo it after.
            let running = other.began < ended && other.ended.is_none_or(|end| end > ended);
            let began_on_it = (other.began > last.began || running)
                && other.identity.keys().iter().any(|key| about(key) || made(key));
            let made_it = other.ended.is_some_and(|end| end > ended)
                && other.made.iter().any(|key| about(key) || made(key));
            began_on_it || made_it
        });
        match (touched, earlier && !self.at_once) {
            (true, _) => Kept::No,
            (false, true) => Kept::May(number),
            (false, false) => Kept::Must(number),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let Some((operation, execution)) = self.pick(self.running.clone()) else { return Ok(()) };
        self.running.remove(&operation);
        let name = self.executions[&execution].identity.keys()[0].subject().clone();
        let word = execution.to_string();
        let event = match self.draw(8) {
            0 => Event::Lost {
                operation,
                fault: Fault::DriverGone { driver: driver(), reason: String::new() },
            },
            kind => {
                let code = [Code::OK, Code::OK, Code::OK, Code::OK, Code::OK, Code::INTERNAL, Code::ABORTED]
                    [usize::try_from(kind - 1).unwrap()];
                let outcome = Outcome::from_driver(code, word);
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
        let known = self.executions.get_mut(&execution).unwrap();
        known.ended = Some(self.sequence);
        if let Event::Answered { answer, .. } = &event {
            known.kept = answer.is_final();
            known.recorded = answer.outcome().is_ok();
            known.made = answer.keys(&known.identity);
        }
        let expected: BTreeSet<_> =
            self.waiting.iter().filter(|(_, waits)| **waits == execution).map(|(asker, _)| *asker).collect();
        let mut told = BTreeSet::new();
        let mut rest = Vec::new();
        for action in self.event(event)? {
            match action {
                Action::Answer { asker, answer, .. } if number(&answer) == execution => {
                    self.holding.insert(asker, (execution, self.until[&asker]));
                    told.insert(asker);
                }
                Action::Fail { asker, fault: Fault::DriverGone { .. } } => drop(told.insert(asker)),
                Action::Settle { .. } => {}
                other => rest.push(other),
            }
        }
        self.waiting.retain(|_, waits| *waits != execution);
        if told != expected {
            return Err(format!("told {told:?}, but {expected:?} waited"));
        }
        self.turns(rest)
    }

    fn send(&mut self) -> Result<(), String> {
        let Some((asker, (execution, until))) = self.pick(self.holding.clone()) else { return Ok(()) };
        self.holding.remove(&asker);
        if until.is_none_or(|until| until >= self.now) {
            self.sent.insert(asker, execution);
        }
        self.nothing(Event::Sent { asker })
    }

    fn deliver(&mut self) -> Result<(), String> {
        let held = self.holding.iter().map(|(asker, (execution, until))| (*asker, *execution, *until));
        // However long that took.
        let sent = self.sent.iter().map(|(asker, execution)| (*asker, *execution, None));
        let all: Vec<_> = held.chain(sent).collect();
        let Some((asker, execution, until)) = self.pick(all) else { return Ok(()) };
        self.holding.remove(&asker);
        self.sent.remove(&asker);
        if until.is_none_or(|until| until >= self.now) {
            let taken = self.executions.get_mut(&execution).unwrap();
            // What was handed out in this life is not handed out again in it.
            (taken.taken, taken.life) = (true, self.life);
        }
        self.nothing(Event::Taken { asker })
    }

    fn leave(&mut self) -> Result<(), String> {
        let lined = self.line.iter().flat_map(|waits| waits.askers.iter().map(|(asker, _)| asker));
        let all: Vec<_> = self
            .waiting
            .keys()
            .chain(self.holding.keys())
            .chain(self.sent.keys())
            .chain(lined)
            .copied()
            .collect();
        let Some(asker) = self.pick(all) else { return Ok(()) };
        for waits in &mut self.line {
            waits.askers.retain(|(other, _)| *other != asker);
        }
        self.waiting.remove(&asker);
        self.holding.remove(&asker);
        self.sent.remove(&asker);
        let actions = self.event(Event::Left { asker })?;
        self.turns(actions)
    }

    fn start(&mut self) -> Result<(), String> {
        let Some((operation, _)) = self.pick(self.running.clone()) else { return Ok(()) };
        self.nothing(Event::Started { operation })
    }

    /// The process ends, and a new one begins with the journal.
    fn restart(&mut self) -> Result<(), String> {
        if self.draw(4) > 0 {
            return Ok(());
        }
        self.life += 1;
        self.core = Core::new(limits());
        self.line.clear();
        // A commit that is under way may have got to the disk or not.
        let done = self.draw(2) == 0;
        self.write(done);
        let now = SystemTime::UNIX_EPOCH;
        let known: Vec<_> =
            self.disk.iter().map(|(row, bytes)| open(OperationId::new(*row), bytes, now).unwrap()).collect();
        self.pending = Pending::new(JournalSettings::default(), &known);
        self.core.restore(self.now, known);
        for execution in self.running.values() {
            self.executions.get_mut(execution).unwrap().ended = Some(self.sequence);
        }
        self.running.clear();
        self.waiting.clear();
        self.holding.clear();
        // What was on its way may have come, or not: it is not given again, as far as the disk had heard of it.
        for execution in std::mem::take(&mut self.sent).into_values() {
            self.executions.get_mut(&execution).unwrap().recorded &= !self.at_once;
        }
        self.nothing(Event::Tick)
    }

    fn nothing(&mut self, event: Event) -> Result<(), String> {
        let actions = self.event(event)?;
        if actions.is_empty() { Ok(()) } else { Err(format!("{actions:?}")) }
    }

    /// What is to be done, with what is for the journal already there.
    fn event(&mut self, event: Event) -> Result<Vec<Action>, String> {
        self.core.handle(self.now, event);
        let mut actions = Vec::new();
        while let Some(action) = self.core.poll_action() {
            match &action {
                Action::Record(entry) => {
                    self.pending.record(self.now, entry.clone());
                    continue;
                }
                Action::Settle { operation, keys } => self.settle(*operation, keys),
                Action::Run { operation, identity, .. } => self.settle(*operation, identity.keys()),
                _ => {}
            }
            actions.push(action);
        }
        actions.retain(|action| !matches!(action, Action::Settle { .. }));
        if self.at_once {
            self.write(true);
        }
        Ok(actions)
    }

    /// What follows waits for the disk, if it must.
    fn settle(&mut self, operation: OperationId, keys: &[Key]) {
        if self.pending.holds_answer_about(operation, keys) {
            self.write(true);
        }
    }

    /// Writes all that waits to be written; if not `done`, the end comes first.
    fn write(&mut self, done: bool) {
        self.pending.urge();
        let Some(batch) = self.pending.take(self.now) else { return };
        if !done {
            return;
        }
        for change in batch.changes(SystemTime::UNIX_EPOCH) {
            match change {
                Change::Put(row, bytes) => drop(self.disk.insert(row, bytes)),
                Change::Remove(row) | Change::SetAside(row) => drop(self.disk.remove(&row)),
            }
        }
        self.pending.done();
    }

    fn check(&self) -> Result<(), String> {
        let rows: Vec<_> = self.core.entries().iter().map(|entry| entry.operation().number()).collect();
        if self.at_once && !self.disk.keys().eq(&rows) {
            return Err(format!("the disk has {:?}, the core {rows:?}", self.disk.keys()));
        }
        let counts = self.core.counts();
        let lined: usize = self.line.iter().map(|waits| waits.askers.len()).sum();
        if counts.running != self.running.len()
            || counts.waiting != lined
            || counts.askers > lined + self.waiting.len() + self.holding.len() + self.sent.len()
        {
            return Err(format!("{counts:?}"));
        }
        Ok(())
    }

    /// With nobody asking any more, everything is forgotten in time.
    fn drain(&mut self) -> Result<(), String> {
        while !self.running.is_empty() {
            self.sequence += 1;
            self.end()?;
        }
        while !self.holding.is_empty() || !self.sent.is_empty() {
            self.deliver()?;
        }
        self.now += Limits::default().kept_for;
        self.nothing(Event::Tick)?;
        self.write(true);
        if !self.disk.is_empty() {
            return Err(format!("the disk still has {:?}", self.disk.keys()));
        }
        let Core { operations, holders, askers, line, over, begun, making, .. } = &self.core;
        let left = [operations.len(), holders.len(), askers.len(), over.len(), begun.len(), *making];
        if left == [0; 6] && line.is_empty() && self.core.counts() == Counts::default() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    }
}

fn meets(one: &Identity, other: &Identity) -> bool {
    one.keys().iter().any(|key| other.keys().contains(key))
}

/// Which execution an answer is of.
fn number(answer: &Answer) -> u64 {
    answer.outcome().message.parse().unwrap()
}

fn walk(seed: u64, at_once: bool) -> Result<(), String> {
    let mut walk = Walk::new(seed, at_once);
    for step in 0..STEPS {
        walk.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    walk.drain().map_err(|what| format!("at the end: {what}"))
}

fn walk_all(at_once: bool) {
    let seeds = match std::env::var("OPERATION_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..SEEDS).collect(),
    };
    for seed in seeds {
        if let Err(what) = walk(seed, at_once) {
            panic!("{what}\nagain with: OPERATION_SEED={seed} cargo test -p csi-proxy --lib operation::core");
        }
    }
}

#[test]
fn any_walk_runs_each_operation_once_and_hands_out_no_answer_twice_or_too_late() {
    walk_all(true);
}

/// Anchors (f) 7, the journal's part: with changes that reach the disk when chance has it, and an end at any moment.
#[test]
fn after_any_end_no_answer_comes_back_that_was_void() {
    walk_all(false);
}
