//! Drives the operation core and notifies its waiters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::{Instant, timeout_at};

use super::single_flight::{Action, Core, Counts, Event, OperationId, Served, WaiterId};
use super::{Answer, Identity};
use crate::call::{Call, CallId, Fault, Fence, HashMap, Term};
use crate::dispatcher::terms::Rises;

/// Drives the [`Core`] of one driver.
#[derive(Debug)]
pub(crate) struct DriverExecutor {
    state: Mutex<State>,
    /// Locked while a term is recorded.
    pub(crate) rises: AsyncMutex<Rises>,
}

#[derive(Debug)]
struct State {
    core: Core,
    waiting: HashMap<WaiterId, oneshot::Sender<Decision>>,
    next: u64,
}

/// The decision for a call that requests an operation.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Call the driver with the request of this call.
    Run(RunningOperation),
    /// The call gets this answer.
    Answer(Answer, Served),
    /// The call fails.
    Fail(Fault),
}

impl DriverExecutor {
    /// Creates an executor without operations; `wait` is the queue timeout.
    pub(crate) fn new(wait: Duration) -> Self {
        let state = State { core: Core::new(wait), waiting: HashMap::default(), next: 0 };
        Self { state: Mutex::new(state), rises: AsyncMutex::default() }
    }

    /// Requests an operation.
    pub(crate) fn submit(
        self: &Arc<Self>,
        call: &Call,
        identity: Identity,
        until: Option<Instant>,
    ) -> Waiting {
        let (sender, decision) = oneshot::channel();
        let mut state = self.lock();
        let id = WaiterId::new(state.next);
        state.next += 1;
        state.waiting.insert(id, sender);
        drop(state);
        let Call { id: call, ref fence, remote, .. } = *call;
        let (fence, until) = (fence.clone(), until.map(Instant::into_std));
        let queue_deadline =
            self.handle(Event::Requested { waiter: id, call, identity, fence, remote, until });
        Waiting { decision, queue_deadline, executor: Arc::clone(self), id }
    }

    /// Begins a call without an identity. Returns what records its end, unless it is `repeatable`.
    ///
    /// # Errors
    /// The reason why the call may not begin.
    pub(crate) fn admit(
        self: &Arc<Self>,
        driver: &DriverName,
        call: CallId,
        fence: Option<&Fence>,
        repeatable: bool,
    ) -> Result<Option<BegunCall>, Fault> {
        self.lock().core.admit(Instant::now().into_std(), driver, call, fence, repeatable)?;
        Ok((!repeatable).then(|| BegunCall { executor: Arc::clone(self), call, sent: true }))
    }

    pub(crate) fn term(&self) -> Option<Term> {
        self.lock().core.term()
    }

    pub(crate) fn record_term(&self, term: Term) {
        self.lock().core.record_term(term);
    }

    pub(crate) fn forget_term(&self) {
        self.lock().core.forget_term();
    }

    /// Rejects all queued calls; nothing begins any more.
    pub(crate) fn reject_queued(self: &Arc<Self>, fault: Fault) {
        self.handle(Event::RejectQueued { fault });
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().core.counts()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event and delivers the decisions that follow. Returns the time at which a queued call gives up.
    fn handle(self: &Arc<Self>, event: Event) -> Option<Instant> {
        let (mut queue_deadline, mut decisions) = (None, Vec::new());
        let mut state = self.lock();
        if let Event::Left { waiter } = &event {
            state.waiting.remove(waiter);
        }
        // The clock of the runtime, which tests may pause.
        state.core.handle(Instant::now().into_std(), event);
        while let Some(action) = state.core.poll_action() {
            let (waiter, decision) = match action {
                Action::Run { operation, waiter } => {
                    let running =
                        RunningOperation { executor: Arc::clone(self), id: operation, ended: false };
                    (waiter, Decision::Run(running))
                }
                Action::Answer { waiter, answer, served } => (waiter, Decision::Answer(answer, served)),
                Action::Fail { waiter, fault } => (waiter, Decision::Fail(fault)),
                Action::Wait { deadline, .. } => {
                    queue_deadline = Some(Instant::from_std(deadline));
                    continue;
                }
            };
            decisions.push((state.waiting.remove(&waiter), decision));
        }
        drop(state);
        // Delivered after the lock is released, since an operation that cannot be delivered locks again when
        // dropped.
        for (waiter, decision) in decisions {
            // Fails if the waiter has left, which `Waiting` reports when dropped.
            let _ = waiter.map(|waiter| waiter.send(decision));
        }
        queue_deadline
    }
}

/// A copy of a call that waits for its decision. Dropping this removes the waiter, which the core counts until the
/// decision.
#[derive(Debug)]
pub(crate) struct Waiting {
    decision: oneshot::Receiver<Decision>,
    /// When the call gives up if its operation has not begun; `None` if the operation runs.
    queue_deadline: Option<Instant>,
    executor: Arc<DriverExecutor>,
    id: WaiterId,
}

impl Waiting {
    /// Whether the operation has not begun, so that the request of this call may be needed.
    pub(crate) fn is_queued(&self) -> bool {
        self.queue_deadline.is_some()
    }

    /// The decision, if there is one already.
    pub(crate) fn try_decision(&mut self) -> Option<Decision> {
        self.decision.try_recv().ok()
    }

    /// Waits for the decision. Cancel-safe.
    pub(crate) async fn decision(&mut self) -> Decision {
        if let Some(queue_deadline) = self.queue_deadline {
            match timeout_at(queue_deadline, &mut self.decision).await {
                Ok(decision) => return decision.unwrap_or_else(|_| lost()),
                // The call fails now, unless its operation has begun.
                Err(_) => self.executor.handle(Event::Tick),
            };
        }
        (&mut self.decision).await.unwrap_or_else(|_| lost())
    }

    /// Takes the undelivered operation that this call has to run, if any. No decision arrives afterwards.
    pub(crate) fn take_undelivered(&mut self) -> Option<RunningOperation> {
        self.decision.close();
        match self.try_decision() {
            Some(Decision::Run(operation)) => Some(operation),
            _ => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.executor.handle(Event::Left { waiter: self.id });
    }
}

fn lost() -> Decision {
    Decision::Fail(Fault::ServiceLost { what: "the dispatcher's task".to_owned() })
}

/// A running call without an identity. Dropping this records its end.
#[derive(Debug)]
pub(crate) struct BegunCall {
    executor: Arc<DriverExecutor>,
    call: CallId,
    sent: bool,
}

impl BegunCall {
    /// The call has provably not reached the driver.
    pub(crate) fn not_sent(mut self) {
        self.sent = false;
    }
}

impl Drop for BegunCall {
    fn drop(&mut self) {
        let mut state = self.executor.lock();
        match self.sent {
            true => state.core.ended(Instant::now().into_std(), self.call),
            false => state.core.retracted(&self.call),
        }
    }
}

/// A running operation. Dropping this ends the operation with [`Fault::ServiceLost`].
#[derive(Debug)]
pub(crate) struct RunningOperation {
    executor: Arc<DriverExecutor>,
    id: OperationId,
    ended: bool,
}

impl RunningOperation {
    pub(crate) fn answered(mut self, answer: Answer) {
        self.ended = true;
        self.executor.handle(Event::Answered { operation: self.id, answer });
    }

    pub(crate) fn lost(mut self, fault: Fault) {
        self.end(fault);
    }

    fn end(&mut self, fault: Fault) {
        self.ended = true;
        self.executor.handle(Event::Lost { operation: self.id, fault });
    }
}

impl Drop for RunningOperation {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Fault::ServiceLost { what: "the dispatcher's task".to_owned() });
        }
    }
}
