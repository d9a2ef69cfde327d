//! Where calls ask for operations: the core, those who wait, and the journal's writer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

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
    next_asker: u64,
}

impl Desk {
    pub(crate) fn new(limits: Limits) -> Self {
        let core = Core::new(limits);
        Self { state: Mutex::new(State { core, waiting: ByCount::default(), next_asker: 0 }), writer: None }
    }

    /// Goes on where the journal ends, and writes it from now on.
    pub(crate) fn with_journal(mut self, restored: Vec<Restored>, writer: Writer) -> Self {
        self.writer = Some(writer);
        let mut state = self.lock();
        state.core.restore(now(), restored);
        state.perform(self.writer.as_ref());
        drop(state);
        self
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        let mut state = self.lock();
        state.core.set_limits(limits);
        state.perform(self.writer.as_ref());
    }

    /// Asks for an operation.
    pub(crate) fn ask(self: &Arc<Self>, identity: Identity, until: Option<Instant>) -> Asked {
        let mut state = self.lock();
        let asker = AskerId::new(state.next_asker);
        state.next_asker += 1;
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(asker, sender);
        let now = now();
        state.core.handle(now, Event::Ask { asker, identity, until: until.map(Instant::into_std) });
        let Performed { run, later } = state.perform(self.writer.as_ref());
        if let Some((operation, None)) = run {
            state.core.handle(now, Event::Started { operation });
            state.perform(self.writer.as_ref());
        }
        drop(state);
        let asker = Asker { desk: Arc::clone(self), asker, receiver, later, over: false };
        let run = run.map(|(operation, wait)| Run {
            ticket: Ticket { desk: Arc::clone(self), operation, over: false },
            wait,
        });
        Asked { asker, run }
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

    fn handle(&self, event: Event) -> Option<Later> {
        let mut state = self.lock();
        state.core.handle(now(), event);
        state.perform(self.writer.as_ref()).later
    }

    fn left(&self, asker: AskerId) {
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
    fn perform(&mut self, writer: Option<&Writer>) -> Performed {
        let mut performed = Performed { run: None, later: None };
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
                (Action::Run { operation, identity, .. }, recorder) => {
                    let wait = recorder.and_then(|recorder| recorder.before_run(operation, identity.keys()));
                    performed.run = Some((operation, wait));
                }
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
    pub(crate) run: Option<Run>,
}

/// A call that waits for an answer. Dropped, it has left.
#[derive(Debug)]
pub(crate) struct Asker {
    desk: Arc<Desk>,
    asker: AskerId,
    receiver: oneshot::Receiver<Delivery>,
    later: Option<Later>,
    over: bool,
}

impl Asker {
    pub(crate) async fn answer(mut self) -> Result<(Answer, Way, Receipt), Fault> {
        if let Some(later) = self.later.take() {
            later.done().await;
        }
        match (&mut self.receiver).await {
            Ok(Ok((answer, way))) => {
                self.over = true;
                let receipt = Receipt { desk: Arc::clone(&self.desk), asker: self.asker, over: false };
                Ok((answer, way, receipt))
            }
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::ServiceLost { what: "the dispatcher's task".to_owned() }),
        }
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
