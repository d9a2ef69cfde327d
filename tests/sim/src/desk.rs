//! An agent's operations: the core, driven as `csi_proxy::Dispatcher` drives it.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_proxy::operation::journal::{CommitNumber, JournalSettings, Pending, read};
use csi_proxy::operation::{Action, Answer, AskerId, Core, Event, Identity, Key, Limits, OperationId};
use csi_proxy::{Fault, Outcome};
use edge_transport::session::ServingId;

use crate::answer::Closing;
use crate::clock::Clock;
use crate::journal::{Disk, Written};
use crate::vendor::Caller;
use crate::world::{Happening, PeerIndex, World};

/// A call that asks.
#[derive(Debug)]
struct Asked {
    serving: ServingId,
    at: Duration,
    /// When its caller stops waiting.
    until: Option<Duration>,
    operation: usize,
    identity: Identity,
}

/// What waits for a commit.
#[derive(Debug)]
struct Wait {
    commit: CommitNumber,
    /// If the journal fails, what waits fails too.
    required: bool,
    then: Then,
}

#[derive(Debug)]
enum Then {
    Run { operation: OperationId, wanted: usize },
    Answer(Vec<(AskerId, Answer)>),
}

/// What is left to do of the core's actions.
#[derive(Debug)]
enum Effect {
    Run { operation: OperationId, wanted: usize },
    Deliver { asker: AskerId, delivery: Result<Answer, Fault> },
}

/// The operations of one life of an agent.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) core: Core,
    pub(crate) pending: Pending,
    pub(crate) written: Written,
    asked: BTreeMap<AskerId, Asked>,
    /// What is asked for with requests that wait for their turn.
    pub(crate) turns: BTreeMap<AskerId, usize>,
    next: u64,
    waits: Vec<Wait>,
}

impl Desk {
    /// Goes on where the journal ends.
    pub(crate) fn new(
        limits: Limits,
        settings: JournalSettings,
        disk: &Disk,
        clock: &Clock,
        now: Duration,
    ) -> Self {
        let mut journal = disk.rows.open();
        // A journal in memory does not fail.
        let contents = read(&mut journal, clock.wall(now)).unwrap_or_default();
        let pending = Pending::new(settings, &contents.restored);
        let mut core = Core::new(limits);
        core.restore(clock.show(now), contents.restored);
        Self {
            core,
            pending,
            written: Written::default(),
            asked: BTreeMap::new(),
            turns: BTreeMap::new(),
            next: 0,
            waits: Vec::new(),
        }
    }

    fn before_run(&mut self, operation: OperationId, keys: &[Key]) -> Option<(CommitNumber, bool)> {
        let void = self.pending.holds_answer_about(operation, keys);
        (void || self.pending.is_eager()).then(|| (self.pending.urge(), void))
    }
}

impl World {
    pub(crate) fn desk_asks(
        &mut self,
        index: PeerIndex,
        serving: ServingId,
        operation: usize,
        identity: Identity,
        remaining: Option<Duration>,
    ) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        let until = remaining.map(|remaining| peer.clock.show(now) + remaining);
        let Some(desk) = &mut peer.desk else { return };
        let asker = AskerId::new(desk.next);
        desk.next += 1;
        let time = remaining.map(|remaining| now + remaining);
        desk.asked
            .insert(asker, Asked { serving, at: now, until: time, operation, identity: identity.clone() });
        self.desk_event(index, Event::Ask { asker, identity, until });
    }

    /// Nobody waits for the answer to a call any more, which is not there yet.
    pub(crate) fn desk_left(&mut self, index: PeerIndex, serving: ServingId) {
        let Some(desk) = self.peers.get_mut(index).and_then(|peer| peer.desk.as_mut()) else { return };
        let of_call = desk.asked.iter().find(|(_, asked)| asked.serving == serving);
        let Some(asker) = of_call.map(|(asker, _)| *asker) else { return };
        desk.asked.remove(&asker);
        self.desk_event(index, Event::Left { asker });
    }

    /// Whether the answer to a call was delivered.
    pub(crate) fn desk_delivered(
        &mut self,
        index: PeerIndex,
        receipt: Option<(AskerId, usize)>,
        delivered: bool,
    ) {
        let Some((asker, execution)) = receipt else { return };
        if delivered {
            if let Some(run) = self.executions.get_mut(execution) {
                run.taken.get_or_insert((index, self.now));
            }
            self.desk_event(index, Event::Taken { asker });
        } else {
            self.desk_event(index, Event::Left { asker });
        }
    }

    pub(crate) fn desk_event(&mut self, index: PeerIndex, event: Event) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let shown = peer.clock.show(now);
        let Some(desk) = &mut peer.desk else { return };
        desk.core.handle(shown, event);
        let mut effects = Vec::new();
        let mut later: Option<(CommitNumber, Vec<(AskerId, Answer)>)> = None;
        let mut ticks = Vec::new();
        while let Some(action) = desk.core.poll_action() {
            match action {
                Action::Record(entry) => desk.pending.record(shown, entry),
                Action::Run { operation, asker, identity } => {
                    let asked = desk.asked.get(&asker).map(|asked| asked.operation);
                    let Some(wanted) = desk.turns.remove(&asker).or(asked) else { continue };
                    self.oracle.turn.begins(now, index, asker, identity.keys());
                    self.oracle.once.accepted(now, index, wanted);
                    match desk.before_run(operation, identity.keys()) {
                        Some((commit, required)) => {
                            desk.waits.push(Wait { commit, required, then: Then::Run { operation, wanted } });
                        }
                        None => effects.push(Effect::Run { operation, wanted }),
                    }
                }
                Action::Wait { asker, first, gives_up } => {
                    ticks.push(peer.clock.when(gives_up));
                    let Some(asked) = desk.asked.get(&asker) else { continue };
                    if first {
                        desk.turns.insert(asker, asked.operation);
                        self.oracle.turn.waits(index, asker, asked.identity.keys());
                    }
                }
                Action::LetGo { asker } => {
                    desk.turns.remove(&asker);
                    self.oracle.turn.let_go(index, asker);
                }
                Action::Settle { operation, keys } => {
                    let holds = desk.pending.holds_answer_about(operation, &keys);
                    later = holds.then(|| (desk.pending.urge(), Vec::new()));
                }
                Action::Answer { asker, answer, .. } => match &mut later {
                    Some((_, answers)) => answers.push((asker, answer)),
                    None => effects.push(Effect::Deliver { asker, delivery: Ok(answer) }),
                },
                Action::Fail { asker, fault } => {
                    effects.push(Effect::Deliver { asker, delivery: Err(fault) });
                }
                _ => {}
            }
        }
        if let Some((commit, answers)) = later {
            desk.waits.push(Wait { commit, required: true, then: Then::Answer(answers) });
        }
        let failed = desk.pending.failure().map(str::to_owned);
        for at in ticks {
            self.at(at, Happening::DeskTicks { peer: index });
        }
        self.journal_works(index);
        self.carry_out(index, effects);
        if failed.is_some() {
            self.journal_progresses(index, failed.as_deref());
        }
    }

    fn carry_out(&mut self, index: PeerIndex, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run { operation, wanted } => {
                    self.desk_event(index, Event::Started { operation });
                    self.execute(index, Caller::Operation(operation), wanted);
                }
                Effect::Deliver { asker, delivery } => self.deliver(index, asker, delivery),
            }
        }
    }

    fn deliver(&mut self, index: PeerIndex, asker: AskerId, delivery: Result<Answer, Fault>) {
        let Some(desk) = self.peers.get_mut(index).and_then(|peer| peer.desk.as_mut()) else { return };
        let Some(asked) = desk.asked.remove(&asker) else { return };
        match delivery {
            Ok(answer) => {
                let (message, outcome) = answer.into_parts();
                let execution = Closing::read(&outcome).map_or(usize::MAX, |closing| closing.execution);
                // A request whose driver's name was twisted is about nothing that the agent knows.
                if self.is_untwinned(index) && self.plan.hostile.twisted == 0 {
                    let (runs, operations) = (&self.executions, &self.plan.operations);
                    self.oracle.void.given(self.now, runs, operations, execution, asked.at);
                }
                if let Some(run) = self.executions.get_mut(execution) {
                    run.given.get_or_insert(self.now);
                    self.oracle.once.given(self.now, index, asked.at, execution, run);
                }
                let messages: Vec<_> = message.into_iter().collect();
                self.answers(index, asked.serving, &messages, &outcome, Some((asker, execution)));
            }
            Err(fault) => {
                if matches!(fault, Fault::OperationPending { .. }) {
                    self.oracle.turn.refused(self.now, asked.at, asked.until);
                }
                self.answers(index, asked.serving, &[], &Outcome::from(fault), None);
            }
        }
    }

    /// The journal has come further, or has failed: what waited for it goes on, or fails.
    pub(crate) fn journal_progresses(&mut self, index: PeerIndex, failed: Option<&str>) {
        let Some(desk) = self.peers.get_mut(index).and_then(|peer| peer.desk.as_mut()) else { return };
        let done = desk.pending.taken();
        let is_over = |wait: &mut Wait| failed.is_some() || wait.commit <= done;
        let over: Vec<Wait> = desk.waits.extract_if(.., is_over).collect();
        for Wait { required, then, .. } in over {
            let failure =
                failed.filter(|_| required).map(|reason| Fault::JournalFailed { reason: reason.into() });
            match (then, failure) {
                (Then::Run { operation, .. }, Some(fault)) => {
                    self.desk_event(index, Event::Lost { operation, fault });
                }
                (Then::Run { operation, wanted }, None) => {
                    self.carry_out(index, vec![Effect::Run { operation, wanted }]);
                }
                (Then::Answer(answers), failure) => {
                    for (asker, answer) in answers {
                        match &failure {
                            // Its call hears of the failure, and has left.
                            Some(fault) => {
                                self.deliver(index, asker, Err(fault.clone()));
                                self.desk_event(index, Event::Left { asker });
                            }
                            None => self.deliver(index, asker, Ok(answer)),
                        }
                    }
                }
            }
        }
    }
}
