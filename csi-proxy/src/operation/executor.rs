//! Where calls ask for operations: the core, and those who wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::core::{Action, Core, Counts, Event, OperationId, WaiterId, Way};
use super::counted::ByCount;
use super::{Answer, Identity};
use crate::call::{Call, Fence, Term};
use crate::fault::Fault;

/// Drives a [`Core`].
#[derive(Debug)]
pub(crate) struct Executor(Mutex<State>);

#[derive(Debug)]
struct State {
    core: Core,
    waiting: ByCount<WaiterId, oneshot::Sender<Verdict>>,
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

/// What a call that asks for an operation learns at once.
#[derive(Debug)]
pub(crate) enum Asked {
    /// All that it waits for.
    Now(Verdict, Waiter),
    /// It has to wait.
    Wait(Waiting),
}

impl Executor {
    /// No operations yet; a call waits this long for its turn.
    pub(crate) fn new(wait: Duration) -> Self {
        Self(Mutex::new(State { core: Core::new(wait), waiting: ByCount::default(), next: 0 }))
    }

    pub(crate) fn set_wait(&self, wait: Duration) {
        self.lock().core.set_wait(wait);
    }

    /// Asks for an operation.
    pub(crate) fn ask(self: &Arc<Self>, call: &Call, identity: Identity, until: Option<Instant>) -> Asked {
        let mut state = self.lock();
        let id = WaiterId::new(state.next);
        state.next += 1;
        let (call, fence, until) = (call.id, call.fence.clone(), until.map(Instant::into_std));
        let (mut own, mut gives_up, mut others) = (None, None, Vec::new());
        for action in state.take(Event::Ask { waiter: id, call, identity, fence, until }) {
            match action {
                Action::Wait { gives_up: at, .. } => gives_up = Some(Instant::from_std(at)),
                Action::Run { waiter, .. } | Action::Answer { waiter, .. } | Action::Fail { waiter, .. } => {
                    if waiter == id {
                        own = Some(action);
                    } else {
                        others.push(action);
                    }
                }
            }
        }
        let waiter = Waiter { executor: Arc::clone(self), id };
        let asked = match own.and_then(|action| self.verdict(action)) {
            Some(verdict) => Asked::Now(verdict, waiter),
            None => {
                let (sender, verdict) = oneshot::channel();
                state.waiting.insert(id, sender);
                Asked::Wait(Waiting { verdict, gives_up, waiter })
            }
        };
        let told = state.addressed(others);
        drop(state);
        self.tell(told);
        asked
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

    fn handle(self: &Arc<Self>, event: Event) {
        let mut state = self.lock();
        let actions = state.take(event);
        let told = state.addressed(actions);
        drop(state);
        self.tell(told);
    }

    /// Not under the lock of the state, since a ticket that cannot be handed over comes back to it.
    fn tell(self: &Arc<Self>, told: Vec<(oneshot::Sender<Verdict>, Action)>) {
        for (to, action) in told {
            if let Some(verdict) = self.verdict(action) {
                // Fails if the waiter has left, which says so by itself.
                let _ = to.send(verdict);
            }
        }
    }

    fn verdict(self: &Arc<Self>, action: Action) -> Option<Verdict> {
        Some(match action {
            Action::Run { operation, .. } => {
                Verdict::Run(Ticket { executor: Arc::clone(self), operation, over: false })
            }
            Action::Answer { answer, way, .. } => Verdict::Answer(answer, way),
            Action::Fail { fault, .. } => Verdict::Fail(fault),
            Action::Wait { .. } => return None,
        })
    }
}

impl State {
    fn take(&mut self, event: Event) -> Vec<Action> {
        // The time of the runtime, which tests may hold.
        self.core.handle(Instant::now().into_std(), event);
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    fn addressed(&mut self, actions: Vec<Action>) -> Vec<(oneshot::Sender<Verdict>, Action)> {
        let to = |action: &Action| match action {
            Action::Run { waiter, .. } | Action::Answer { waiter, .. } | Action::Fail { waiter, .. } => {
                *waiter
            }
            Action::Wait { waiter, .. } => *waiter,
        };
        actions.into_iter().filter_map(|action| Some((self.waiting.remove(&to(&action))?, action))).collect()
    }
}

/// One copy of a call that waits. Dropped, it has left.
#[derive(Debug)]
pub(crate) struct Waiter {
    executor: Arc<Executor>,
    id: WaiterId,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.executor.lock();
        // It counts as waiting as long as the core knows it, which forgets it with the verdict.
        state.waiting.remove(&self.id);
        let actions = state.take(Event::Left { waiter: self.id });
        let told = state.addressed(actions);
        drop(state);
        self.executor.tell(told);
    }
}

/// A call that waits for its verdict.
#[derive(Debug)]
pub(crate) struct Waiting {
    verdict: oneshot::Receiver<Verdict>,
    /// When it gives up, if its operation has not begun by then; `None` if that runs.
    gives_up: Option<Instant>,
    waiter: Waiter,
}

impl Waiting {
    /// Whether its operation has not begun, so that its own request may be needed.
    pub(crate) fn is_queued(&self) -> bool {
        self.gives_up.is_some()
    }

    /// Waits for the verdict. Cancel-safe.
    pub(crate) async fn verdict(&mut self) -> Verdict {
        if let Some(gives_up) = self.gives_up {
            match timeout_at(gives_up, &mut self.verdict).await {
                Ok(verdict) => return verdict.unwrap_or_else(|_| lost()),
                // Now it fails, unless its operation has begun.
                Err(_) => self.waiter.executor.handle(Event::Tick),
            }
        }
        (&mut self.verdict).await.unwrap_or_else(|_| lost())
    }

    /// The operation that it is to run and has not heard of, if there is one. None comes later.
    pub(crate) fn last_ticket(&mut self) -> Option<Ticket> {
        self.verdict.close();
        match self.verdict.try_recv() {
            Ok(Verdict::Run(ticket)) => Some(ticket),
            _ => None,
        }
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
