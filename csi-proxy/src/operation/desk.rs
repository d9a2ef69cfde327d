//! Where calls ask for operations: the core, those who wait, and the journal's writer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::core::{Action, AskerId, Core, Counts, Event, OperationId, Restored, Uncertain, Way};
use super::counted::ByCount;
use super::journal::{Wait, Writer};
use super::{Answer, Identity, Limits};
use crate::fault::Fault;

type Delivery = Result<(Answer, Way), Fault>;

/// Drives a [`Core`].
#[derive(Debug)]
pub(crate) struct Desk {
    state: Mutex<State>,
    writer: Option<Writer>,
}

#[derive(Debug)]
struct State {
    core: Core,
    waiting: ByCount<AskerId, oneshot::Sender<Delivery>>,
    /// Where the requests are of operations that wait for their turn.
    turns: ByCount<AskerId, oneshot::Sender<Run>>,
    next_asker: u64,
}

impl Desk {
    pub(crate) fn new(limits: Limits) -> Self {
        let core = Core::new(limits);
        let (waiting, turns) = (ByCount::default(), ByCount::default());
        Self { state: Mutex::new(State { core, waiting, turns, next_asker: 0 }), writer: None }
    }

    /// Goes on where the journal ends, and writes it from now on.
    pub(crate) fn with_journal(mut self, restored: Vec<Restored>, writer: Writer) -> Self {
        self.writer = Some(writer);
        let mut state = self.lock();
        state.core.restore(now(), restored);
        // Nothing waits yet.
        state.perform(self.writer.as_ref(), None);
        drop(state);
        self
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        let mut state = self.lock();
        state.core.set_limits(limits);
        // That begins nothing.
        state.perform(self.writer.as_ref(), None);
    }

    /// Asks for an operation.
    pub(crate) fn ask(self: &Arc<Self>, identity: Identity, until: Option<Instant>) -> Asked {
        let mut state = self.lock();
        let asker = AskerId::new(state.next_asker);
        state.next_asker += 1;
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(asker, sender);
        let event = Event::Ask { asker, identity, until: until.map(Instant::into_std) };
        let Performed { run, later, waits, begun } = state.take(event, self.writer.as_ref(), Some(asker));
        drop(state);
        self.begin(begun);
        let (gives_up, turn) = waits.map_or((None, None), |waits| (Some(waits.gives_up), waits.turn));
        let part = match (run, turn) {
            (Some((operation, wait)), _) => Part::Run(self.run(operation, wait)),
            (None, Some(turn)) => Part::Turn(Turn(turn)),
            (None, None) => Part::None,
        };
        let asker = Asker { desk: Arc::clone(self), asker, receiver, later, gives_up, over: false };
        Asked { asker, part }
    }

    /// Nothing is begun any more: what waits for its turn fails.
    pub(crate) fn turn_away(self: &Arc<Self>, fault: Fault) {
        self.handle(Event::TurnAway { fault });
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().core.counts()
    }

    pub(crate) fn uncertain(&self) -> Vec<Uncertain> {
        self.lock().core.uncertain()
    }

    pub(crate) fn journal(&self) -> Option<&Writer> {
        self.writer.as_ref()
    }

    pub(crate) async fn reopen_journal(&self) -> Result<(), String> {
        let Some(writer) = &self.writer else { return Ok(()) };
        // Entries are recorded under the lock of the state, so that none comes in between.
        writer
            .reopen(|restart| {
                let state = self.lock();
                restart(state.core.entries())
            })
            .await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(self: &Arc<Self>, event: Event) -> Option<Later> {
        let Performed { later, begun, .. } = self.lock().take(event, self.writer.as_ref(), None);
        self.begin(begun);
        later
    }

    /// Tells operations that their turn has come. Not under the lock of the state, since what cannot be told comes back to it.
    fn begin(self: &Arc<Self>, begun: Vec<Begun>) {
        for Begun { to, operation, wait } in begun {
            drop(to.send(self.run(operation, wait)));
        }
    }

    fn run(self: &Arc<Self>, operation: OperationId, wait: Option<Wait>) -> Run {
        Run { ticket: Ticket { desk: Arc::clone(self), operation, over: false }, wait }
    }

    fn left(self: &Arc<Self>, asker: AskerId) {
        self.lock().waiting.remove(&asker);
        self.handle(Event::Left { asker });
    }
}

/// The time of the runtime, which tests may hold.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// What is left to do of the core's actions.
struct Performed {
    run: Option<(OperationId, Option<Wait>)>,
    later: Option<Later>,
    waits: Option<Waits>,
    begun: Vec<Begun>,
}

/// The call that has just asked waits for its turn.
struct Waits {
    gives_up: Instant,
    /// Where its request is to be.
    turn: Option<oneshot::Receiver<Run>>,
}

/// An operation whose turn has come.
struct Begun {
    to: oneshot::Sender<Run>,
    operation: OperationId,
    wait: Option<Wait>,
}

/// Answers that must not be given before the journal is that far.
#[derive(Debug)]
struct Later {
    wait: Wait,
    deliveries: Vec<(oneshot::Sender<Delivery>, Delivery)>,
}

impl Later {
    async fn done(self) {
        let outcome = self.wait.done().await;
        for (to, delivery) in self.deliveries {
            let delivery = match &outcome {
                Ok(()) => delivery,
                Err(reason) => Err(Fault::JournalFailed { reason: reason.clone() }),
            };
            // Fails if the call has left, which says so by itself.
            drop(to.send(delivery));
        }
    }
}

impl State {
    /// Takes what has happened, and does what the core wants then. What has begun by it has started, unless the journal is to be
    /// waited for.
    fn take(&mut self, event: Event, writer: Option<&Writer>, asks: Option<AskerId>) -> Performed {
        let now = now();
        self.core.handle(now, event);
        let performed = self.perform(writer, asks);
        let begun = performed.begun.iter().map(|begun| (begun.operation, &begun.wait));
        let run = performed.run.iter().map(|(operation, wait)| (*operation, wait));
        for (operation, _) in run.chain(begun).filter(|(_, wait)| wait.is_none()) {
            self.core.handle(now, Event::Started { operation });
            self.perform(writer, None);
        }
        performed
    }

    /// Does what the core wants, with the request of the call that asks, if that is what has happened.
    fn perform(&mut self, writer: Option<&Writer>, asks: Option<AskerId>) -> Performed {
        let mut performed = Performed { run: None, later: None, waits: None, begun: Vec::new() };
        let mut recorder = None;
        while let Some(action) = self.core.poll_action() {
            // One lock of the writer for all that follows from one event.
            let recorder = match (&mut recorder, writer) {
                (None, Some(writer)) => Some(recorder.insert(writer.recorder())),
                (recorder, _) => recorder.as_mut(),
            };
            match (action, recorder) {
                (Action::Record(entry), Some(recorder)) => recorder.record(entry),
                (Action::Record(_) | Action::Settle { .. }, None) => {}
                (Action::Run { operation, asker, identity }, recorder) => {
                    let wait = recorder.and_then(|recorder| recorder.before_run(operation, identity.keys()));
                    if asks == Some(asker) {
                        performed.run = Some((operation, wait));
                    } else if let Some(to) = self.turns.remove(&asker) {
                        performed.begun.push(Begun { to, operation, wait });
                    }
                }
                (Action::Wait { asker, first, gives_up }, _) => {
                    let turn = first.then(|| {
                        let (sender, receiver) = oneshot::channel();
                        self.turns.insert(asker, sender);
                        receiver
                    });
                    performed.waits = Some(Waits { gives_up: Instant::from_std(gives_up), turn });
                }
                (Action::LetGo { asker }, _) => drop(self.turns.remove(&asker)),
                (Action::Settle { operation, keys }, Some(recorder)) => {
                    let wait = recorder.before_answer(operation, &keys);
                    performed.later = wait.map(|wait| Later { wait, deliveries: Vec::new() });
                }
                (Action::Answer { asker, answer, way }, _) => {
                    self.deliver(asker, Ok((answer, way)), performed.later.as_mut());
                }
                (Action::Fail { asker, fault }, _) => self.deliver(asker, Err(fault), None),
            }
        }
        performed
    }

    fn deliver(&mut self, asker: AskerId, delivery: Delivery, later: Option<&mut Later>) {
        let Some(to) = self.waiting.remove(&asker) else { return };
        match later {
            Some(later) => later.deliveries.push((to, delivery)),
            // Fails if the call has left, which says so by itself.
            None => drop(to.send(delivery)),
        }
    }
}

/// What became of a question.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The one who waits.
    pub(crate) asker: Asker,
    /// What its request is to be used for.
    pub(crate) part: Part,
}

/// What a call's request is to be used for.
#[derive(Debug)]
pub(crate) enum Part {
    /// The operation is to be run with it.
    Run(Run),
    /// The operation is to be run with it when its turn comes.
    Turn(Turn),
    /// Nothing.
    None,
}

/// An operation that waits for its turn.
#[derive(Debug)]
pub(crate) struct Turn(oneshot::Receiver<Run>);

impl Turn {
    /// Waits for it. `None` if it does not come, or nobody waits for the operation any more.
    pub(crate) async fn comes(self) -> Option<Run> {
        self.0.await.ok()
    }
}

/// A call that waits for an answer. Dropped, it has left.
#[derive(Debug)]
pub(crate) struct Asker {
    desk: Arc<Desk>,
    asker: AskerId,
    receiver: oneshot::Receiver<Delivery>,
    later: Option<Later>,
    /// When it gives up, if what it waits for has not begun.
    gives_up: Option<Instant>,
    over: bool,
}

impl Asker {
    pub(crate) async fn answer(mut self) -> Result<(Answer, Way, Receipt), Fault> {
        if let Some(later) = self.later.take() {
            later.done().await;
        }
        let delivery = match self.gives_up {
            None => (&mut self.receiver).await,
            // In a box, so that the others need no room for it.
            Some(gives_up) => Box::pin(self.in_turn(gives_up)).await,
        };
        match delivery {
            Ok(Ok((answer, way))) => {
                self.over = true;
                let receipt = Receipt { desk: Arc::clone(&self.desk), asker: self.asker, over: false };
                Ok((answer, way, receipt))
            }
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::ServiceLost { what: "the dispatcher's task".to_owned() }),
        }
    }

    async fn in_turn(&mut self, gives_up: Instant) -> Result<Delivery, oneshot::error::RecvError> {
        if let Ok(delivery) = timeout_at(gives_up, &mut self.receiver).await {
            return delivery;
        }
        // Now it is refused, unless it has begun.
        self.desk.handle(Event::Tick);
        (&mut self.receiver).await
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.over {
            self.desk.left(self.asker);
        }
    }
}

/// Says whether an answer was delivered. Dropped, it was not.
#[derive(Debug)]
pub(crate) struct Receipt {
    desk: Arc<Desk>,
    asker: AskerId,
    over: bool,
}

impl Receipt {
    /// The answer is on its way. Whether it comes is to be said later.
    #[cfg_attr(
        not(feature = "edge-transport"),
        allow(dead_code, reason = "for relays that know more than who reads")
    )]
    pub(crate) fn sent(&self) {
        self.desk.handle(Event::Sent { asker: self.asker });
    }

    pub(crate) fn delivered(mut self) {
        self.over = true;
        self.desk.handle(Event::Taken { asker: self.asker });
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.over {
            self.desk.left(self.asker);
        }
    }
}

/// An operation that is to be run.
#[derive(Debug)]
pub(crate) struct Run {
    ticket: Ticket,
    wait: Option<Wait>,
}

impl Run {
    /// The driver may be called from here on, unless the journal forbids it.
    pub(crate) async fn begin(mut self) -> Result<Ticket, (Ticket, Fault)> {
        if let Some(wait) = self.wait.take() {
            if let Err(reason) = wait.done().await {
                return Err((self.ticket, Fault::JournalFailed { reason }));
            }
            self.ticket.desk.handle(Event::Started { operation: self.ticket.operation });
        }
        Ok(self.ticket)
    }

    /// It is not run at all.
    pub(crate) fn refused(self, fault: Fault) {
        self.ticket.lost(fault);
    }
}

/// An operation that is run. Dropped, its end is not known.
#[derive(Debug)]
pub(crate) struct Ticket {
    desk: Arc<Desk>,
    operation: OperationId,
    over: bool,
}

impl Ticket {
    pub(crate) async fn answered(mut self, answer: Answer) {
        self.over = true;
        let operation = self.operation;
        if let Some(later) = self.desk.handle(Event::Answered { operation, answer }) {
            later.done().await;
        }
    }

    pub(crate) fn lost(mut self, fault: Fault) {
        self.end(fault);
    }

    fn end(&mut self, fault: Fault) {
        self.over = true;
        self.desk.handle(Event::Lost { operation: self.operation, fault });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.end(Fault::ServiceLost { what: "the dispatcher's task".to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use csi_proto::{DriverName, Method};

    use super::*;
    use crate::operation::core::Entry;
    use crate::operation::{Digest, Stage, Subject};

    fn identity(method: Method, volumes: &[&str]) -> Identity {
        let driver = DriverName::new("csi-hostpath").unwrap();
        let subjects = volumes.iter().map(|id| Subject::Volume((*id).into())).collect();
        let digest = Digest::of(method.request_shape(), b"");
        Identity::new(driver, method, subjects, digest).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_begins_because_another_call_found_it_overdue_has_started() {
        let desk = Arc::new(Desk::new(Limits::default()));
        let wait = Limits::default().wait;
        let first = desk.ask(identity(Method::CreateSnapshot, &["a"]), None);
        let group = desk.ask(identity(Method::CreateVolumeGroupSnapshot, &["a", "b"]), None);
        tokio::time::advance(wait / 2).await;
        let behind = desk.ask(identity(Method::ControllerPublishVolume, &["b"]), None);
        tokio::time::advance(wait / 2 + Duration::from_millis(1)).await;
        let other = desk.ask(identity(Method::CreateSnapshot, &["c"]), None);
        assert!(matches!(&first.part, Part::Run(_)) && matches!(&other.part, Part::Run(_)));
        assert!(group.asker.answer().await.is_err());
        let Part::Turn(turn) = behind.part else { panic!("{:?}", behind.part) };
        let run = turn.comes().await.unwrap();
        let entries = desk.lock().core.entries();
        for entry in &entries {
            assert!(matches!(entry, Entry::Put { stage: Stage::Started, .. }), "{entry:?}");
        }
        assert_eq!(entries.len(), 3);
        drop(run);
    }
}
