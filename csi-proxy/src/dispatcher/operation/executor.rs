//! Where calls ask for operations: the core, and those who wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::single_flight::{Action, Core, Counts, Event, OperationId, WaiterId, Way};
use super::{Answer, Identity};
use crate::call::{Call, Fault, Fence, Term};

/// Drives a [`Core`].
#[derive(Debug)]
pub(crate) struct Executor(Mutex<State>);

#[derive(Debug)]
struct State {
    core: Core,
    waiting: HashMap<WaiterId, oneshot::Sender<Verdict>>,
    next: u64,
}

/// What becomes of a call that asks for an operation.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The driver is to be called with its request.
    Run(Ticket),
    /// It gets this answer.
    Answer(Answer, Way),
    /// It fails.
    Fail(Fault),
}

impl Executor {
    /// No operations yet; a call waits this long for its turn.
    pub(crate) fn new(wait: Duration) -> Self {
        Self(Mutex::new(State { core: Core::new(wait), waiting: HashMap::new(), next: 0 }))
    }

    /// Asks for an operation.
    pub(crate) fn ask(self: &Arc<Self>, call: &Call, identity: Identity, until: Option<Instant>) -> Waiting {
        let (sender, verdict) = oneshot::channel();
        let mut state = self.lock();
        let id = WaiterId::new(state.next);
        state.next += 1;
        state.waiting.insert(id, sender);
        drop(state);
        let (call, fence, until) = (call.id, call.fence.clone(), until.map(Instant::into_std));
        let gives_up = self.handle(Event::Ask { waiter: id, call, identity, fence, until });
        Waiting { verdict, gives_up, executor: Arc::clone(self), id }
    }

    /// Whether a call may begin that asks for no operation.
    pub(crate) fn admit(&self, driver: &DriverName, fence: &Fence, repeatable: bool) -> Result<(), Fault> {
        self.lock().core.admit(driver, fence, repeatable)
    }

    pub(crate) fn term(&self, driver: &DriverName) -> Option<Term> {
        self.lock().core.term(driver)
    }

    pub(crate) fn record_term(&self, driver: &DriverName, term: Term) -> Result<(), Fault> {
        self.lock().core.record_term(driver, term)
    }

    /// Nothing begins any more: what waits for its turn fails.
    pub(crate) fn turn_away(self: &Arc<Self>, fault: Fault) {
        self.handle(Event::TurnAway { fault });
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().core.counts()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what has happened and hands out the verdicts that follow. When a call that has just asked gives up, if it is to wait for its
    /// turn.
    fn handle(self: &Arc<Self>, event: Event) -> Option<Instant> {
        let (mut gives_up, mut verdicts) = (None, Vec::new());
        let mut state = self.lock();
        if let Event::Left { waiter } = &event {
            state.waiting.remove(waiter);
        }
        // The time of the runtime, which tests may hold.
        state.core.handle(Instant::now().into_std(), event);
        while let Some(action) = state.core.poll_action() {
            let (waiter, verdict) = match action {
                Action::Run { operation, waiter } => {
                    let ticket = Ticket { executor: Arc::clone(self), operation, over: false };
                    (waiter, Verdict::Run(ticket))
                }
                Action::Answer { waiter, answer, way } => (waiter, Verdict::Answer(answer, way)),
                Action::Fail { waiter, fault } => (waiter, Verdict::Fail(fault)),
                Action::Wait { gives_up: at, .. } => {
                    gives_up = Some(Instant::from_std(at));
                    continue;
                }
            };
            verdicts.push((state.waiting.remove(&waiter), verdict));
        }
        drop(state);
        // Not under the lock, since a ticket that cannot be handed over comes back to it.
        for (waiter, verdict) in verdicts {
            // Fails if the waiter has left, which says so by itself.
            let _ = waiter.map(|waiter| waiter.send(verdict));
        }
        gives_up
    }
}

/// One copy of a call that waits for its verdict. Dropped, it has left. It counts as waiting as long as the core knows it, which forgets it
/// with the verdict.
#[derive(Debug)]
pub(crate) struct Waiting {
    verdict: oneshot::Receiver<Verdict>,
    /// When it gives up, if its operation has not begun by then; `None` if that runs.
    gives_up: Option<Instant>,
    executor: Arc<Executor>,
    id: WaiterId,
}

impl Waiting {
    /// Whether its operation has not begun, so that its own request may be needed.
    pub(crate) fn is_queued(&self) -> bool {
        self.gives_up.is_some()
    }

    /// The verdict, if it is there already.
    pub(crate) fn verdict_now(&mut self) -> Option<Verdict> {
        self.verdict.try_recv().ok()
    }

    /// Waits for the verdict. Cancel-safe.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        if let Some(gives_up) = self.gives_up {
            match timeout_at(gives_up, &mut self.verdict).await {
                Ok(verdict) => return verdict.unwrap_or_else(|_| lost()),
                // Now it fails, unless its operation has begun.
                Err(_) => self.executor.handle(Event::Tick),
            };
        }
        (&mut self.verdict).await.unwrap_or_else(|_| lost())
    }

    /// The operation that it is to run and has not heard of, if there is one. None comes later.
    pub(crate) fn last_ticket(&mut self) -> Option<Ticket> {
        self.verdict.close();
        match self.verdict_now() {
            Some(Verdict::Run(ticket)) => Some(ticket),
            _ => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.executor.handle(Event::Left { waiter: self.id });
    }
}

fn lost() -> Verdict {
    Verdict::Fail(Fault::ServiceLost { what: "the dispatcher's task".to_owned() })
}

/// An operation that is run. Dropped, its end is not known.
#[derive(Debug)]
pub(crate) struct Ticket {
    executor: Arc<Executor>,
    operation: OperationId,
    over: bool,
}

impl Ticket {
    pub(crate) fn answered(mut self, answer: Answer) {
        self.over = true;
        self.executor.handle(Event::Answered { operation: self.operation, answer });
    }

    pub(crate) fn lost(mut self, fault: Fault) {
        self.end(fault);
    }

    fn end(&mut self, fault: Fault) {
        self.over = true;
        self.executor.handle(Event::Lost { operation: self.operation, fault });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.end(Fault::ServiceLost { what: "the dispatcher's task".to_owned() });
        }
    }
}
