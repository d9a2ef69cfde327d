//! [`Dispatcher`]: passes calls to drivers and limits the number of open calls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{Code, Delivery, DriverName, Method};
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::detach_on_drop::DetachOnDrop;
use super::driver::Driver;
use super::drivers::{Drivers, Slots};
use super::operation::{Answer, BegunCall, Counts, Decision, Identity, RunningOperation, Served, Waiting};
use super::terms::{MemoryTerms, TermStore, TermStoreError};
use crate::address::SocketAddress;
use crate::call::{Call, CallId, Drained, Fault, Outcome, Replies, Reply};
use crate::log_limit::LogLimit;
use crate::observe::Observation;
use crate::relay::Relay;

/// The default maximum number of open calls per driver. At most half of them come from other hosts: as many as a proxy may have
/// open for a node, so that a burst that a proxy accepts is not refused here.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 2048;

/// The default time that a call waits in the queue of a busy volume.
const DEFAULT_VOLUME_WAIT: Duration = Duration::from_secs(2);

/// How long a call waits until the term of its proxy is on disk.
const TERM_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of parts of a streamed answer that are buffered for a slow caller.
const STREAM_BUFFER: usize = 4;

/// The drivers of a node. Cheap to clone; all clones share the drivers, which may be added and removed while calls
/// run.
///
/// A call that may change something, once passed to a driver, runs to completion, whether or not a caller still waits: in
/// the task of the caller while it waits, and in a separate task from then on. A read-only call, streams included, is
/// cancelled when its caller leaves. Calls with the same [operation](super::operation) coalesce while it runs. A call with a
/// [`Fence`](crate::advanced::call::Fence) begins only if the fence permits it.
///
/// A call that may change something begins once, whatever bus delivers how many copies of it, until 60 s after its end: a
/// later copy, with the same [id](Call::id), gets the same result, or [`Fault::AlreadyBegun`] where that is not kept. Each
/// copy of a read-only call is executed. A call that may change something and whose volumes or snapshots cannot be read, or
/// exceed [`MAX_SUBJECTS`](crate::advanced::call::MAX_SUBJECTS), is refused with `INVALID_ARGUMENT`.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    drivers: Arc<Drivers>,
    max_in_flight: usize,
    volume_wait: Duration,
    open: Arc<watch::Sender<Open>>,
    terms: Arc<dyn TermStore>,
    /// Limits the warnings of failed calls of other hosts.
    failures: Arc<LogLimit>,
}

/// The open calls of all drivers, including removed ones.
#[derive(Debug, Default)]
struct Open {
    calls: usize,
    draining: bool,
}

/// The permit of an open call.
struct CallPermit {
    open: Arc<watch::Sender<Open>>,
    _slots: Slots,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        // Only a drain waits for the count.
        self.open.send_if_modified(|open| {
            open.calls -= 1;
            open.draining && open.calls == 0
        });
    }
}

impl Dispatcher {
    /// Creates a dispatcher without drivers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            drivers: Arc::default(),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            volume_wait: DEFAULT_VOLUME_WAIT,
            open: Arc::new(watch::Sender::default()),
            terms: Arc::new(MemoryTerms::default()),
            failures: Arc::default(),
        }
    }

    /// Sets how long a call waits in the queue while another operation runs on its volume, snapshot or group; default
    /// 2 s, at most a minute. Zero disables waiting. A caller with less time is refused half a second before its
    /// deadline. Call this before cloning and before the first call.
    #[must_use]
    pub fn with_volume_wait(mut self, wait: Duration) -> Self {
        self.volume_wait = wait;
        self.drivers.set_wait(wait);
        self
    }

    /// Stores the terms of the drivers' proxies in `terms` instead of in memory. Call this before cloning and
    /// before the first call.
    #[must_use]
    pub fn with_terms(mut self, terms: impl TermStore + 'static) -> Self {
        self.terms = Arc::new(terms);
        self
    }

    /// The counts of operations.
    #[must_use]
    pub fn operation_counts(&self) -> Counts {
        self.drivers.counts()
    }

    /// Sets the gauges of operations; call this before each scrape, since the values change too often to set each
    /// time.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::metrics::operations(&self.operation_counts());
    }

    /// Sets the maximum number of open calls per driver; a further call fails with [`Fault::Overloaded`]. Half of
    /// them, rounded up, may be [remote](Call::remote). Applies to drivers registered afterwards.
    #[must_use]
    pub fn with_max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// Adds a driver with this name and socket.
    #[must_use]
    pub fn with_driver(self, name: DriverName, address: SocketAddress) -> Self {
        self.register(Driver::new(name, address));
        self
    }

    /// Adds a driver, or replaces the driver of the same name. Running calls continue on the replaced driver.
    pub fn register(&self, driver: Driver) {
        tracing::info!(driver = %driver.name(), address = %driver.address(), "driver registered");
        self.drivers.register(driver, self.max_in_flight, self.volume_wait);
    }

    /// Removes a driver and returns whether it was registered. Running calls continue.
    pub fn unregister(&self, name: &DriverName) -> bool {
        self.drivers.unregister(name)
    }

    /// The names of the drivers, sorted.
    #[must_use]
    pub fn drivers(&self) -> Vec<DriverName> {
        self.drivers.names()
    }

    /// Rejects new calls with [`Fault::Draining`], and waits up to `bound` for open calls.
    pub async fn drain(&self, bound: Duration) -> Drained {
        self.open.send_modify(|open| open.draining = true);
        self.drivers.reject_queued(&Self::draining());
        let mut open = self.open.subscribe();
        match timeout(bound, open.wait_for(|open| open.calls == 0)).await {
            Ok(_) => Drained::All,
            Err(_) => Drained::Some,
        }
    }

    fn draining() -> Fault {
        Fault::Draining { what: "the dispatcher".to_owned() }
    }

    fn admit(&self, call: &Call) -> Result<(Driver, CallPermit), Fault> {
        let (driver, slots) = self.drivers.admit(call)?;
        let mut admitted = false;
        self.open.send_if_modified(|open| {
            admitted = !open.draining;
            open.calls += usize::from(admitted);
            false
        });
        if !admitted {
            return Err(Self::draining());
        }
        Ok((driver, CallPermit { open: Arc::clone(&self.open), _slots: slots }))
    }
}

impl Default for Dispatcher {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Relay for Dispatcher {
    async fn relay(&self, mut call: Call) -> Result<Replies, Fault> {
        self.record_term(&mut call).await?;
        let method = Method::from_path(call.method.as_str());
        match method.map_or(Ok(None), |method| Identity::of(&call.driver, method, &call.body)) {
            Ok(Some(identity)) => self.execute(identity, call).await,
            Ok(None) => self.forward(method, call).await,
            Err(refused) => {
                let outcome = Outcome::from_endpoint(Code::INVALID_ARGUMENT, refused.to_string());
                self.observe(&call).answered(Ok(Replies::outcome(outcome)))
            }
        }
    }
}

impl Dispatcher {
    fn observe(&self, call: &Call) -> Observation {
        let observation = Observation::start("dispatcher", call);
        if call.remote { observation.limited_by(&self.failures) } else { observation }
    }

    /// Executes a call with an identity.
    async fn execute(&self, identity: Identity, call: Call) -> Result<Replies, Fault> {
        if self.open.borrow().draining {
            return Err(Self::draining());
        }
        let until = call.remaining.and_then(|remaining| Instant::now().checked_add(remaining));
        let id = call.id;
        let mut waiting = self.drivers.executor(&call.driver)?.submit(&call, identity.clone(), until);
        match waiting.try_decision() {
            Some(Decision::Run(operation)) => return self.run(call, operation, waiting).await,
            Some(decision) => return answer_without_run(id, &identity, decision),
            None => {}
        }
        // Boxed, since otherwise every call would carry this part of the future.
        Box::pin(self.wait_and_run(identity, call, waiting)).await
    }

    /// Waits until a call may run, or until the operation that it joined has ended.
    async fn wait_and_run(&self, identity: Identity, call: Call, waiting: Waiting) -> Result<Replies, Fault> {
        let id = call.id;
        let (driver, method) = (identity.driver(), identity.method());
        if waiting.is_queued() {
            tracing::debug!(call = %id, %driver, %method, "queued behind another operation on the same volume");
        } else {
            tracing::debug!(call = %id, %driver, %method, "joined the running operation");
        }
        let call = waiting.is_queued().then_some(call);
        let mut queued = QueuedCall { dispatcher: self.clone(), runtime: Handle::current(), call, waiting };
        match (queued.waiting.decision().await, queued.call.take()) {
            (Decision::Run(operation), Some(call)) => self.run(call, operation, queued).await,
            (decision, _) => answer_without_run(id, &identity, decision),
        }
    }

    /// Runs an operation to completion, and keeps the waiter until then.
    async fn run<W: Send>(
        &self,
        call: Call,
        operation: RunningOperation,
        waiter: W,
    ) -> Result<Replies, Fault> {
        let end = DetachOnDrop::new(Handle::current(), run(self.clone(), call, operation)).await;
        drop(waiter);
        end
    }

    /// Forwards a call without an identity.
    async fn forward(&self, method: Option<Method>, call: Call) -> Result<Replies, Fault> {
        let (driver, permit) = self.admit(&call)?;
        // An unknown method may be mutating.
        let repeatable = method.is_some_and(|method| !method.is_mutating());
        let begun = match &call.fence {
            None if repeatable => None,
            fence => self.drivers.executor(&call.driver)?.admit(
                &call.driver,
                call.id,
                fence.as_ref(),
                repeatable,
            )?,
        };
        let observation = self.observe(&call);
        match begun {
            Some(begun) => {
                DetachOnDrop::new(
                    Handle::current(),
                    run_to_completion(driver, call, permit, begun, observation),
                )
                .await
            }
            None => run_for_caller(driver, call, permit, observation).await,
        }
    }

    /// Records the term of a call on disk before the first call of that term is admitted. The time of the wait is taken
    /// from the call's remaining time.
    async fn record_term(&self, call: &mut Call) -> Result<(), Fault> {
        let Some(term) = call.fence.as_ref().map(crate::call::Fence::term) else { return Ok(()) };
        let driver = &call.driver.clone();
        let executor = self.drivers.executor(driver)?;
        if executor.term() >= Some(term) {
            return Ok(());
        }
        self.drivers.check_registered(driver)?;
        let not_recorded = |reason: String| Fault::TermNotRecorded { driver: driver.clone(), reason };
        let began = Instant::now();
        let bound = call.remaining.map_or(TERM_TIMEOUT, |remaining| remaining.min(TERM_TIMEOUT));
        let raised = timeout(bound, async {
            let mut rises = executor.rises.lock().await;
            if executor.term().is_none()
                && let Some(stored) =
                    self.terms.load(driver).await.map_err(|e| not_recorded(e.to_string()))?
            {
                executor.record_term(stored);
            }
            let known = executor.term();
            if known.is_none_or(|known| known < term) {
                if !term.may_follow(known) {
                    let recorded = known.map_or_else(|| "none".to_owned(), |known| known.to_string());
                    return Err(not_recorded(format!(
                        "term {term} is too high, the recorded one is {recorded}"
                    )));
                }
                if !rises.take(Instant::now().into_std()) {
                    return Err(not_recorded("its term rises too often".to_owned()));
                }
                self.terms.raise(driver, term).await.map_err(|e| not_recorded(e.to_string()))?;
                tracing::info!(%driver, %term, "new term of the driver's proxy recorded, lower terms are refused");
                executor.record_term(term);
            }
            Ok(())
        });
        let raised =
            raised.await.unwrap_or_else(|_| Err(not_recorded(format!("not stored within {bound:?}"))));
        call.remaining = call.remaining.map(|remaining| remaining.saturating_sub(began.elapsed()));
        raised
    }

    /// Forgets the term of a driver, so that the next proxy is accepted whatever its term is. A call that is
    /// [closed](crate::advanced::call::Fence) may then begin if a late copy of it arrives.
    ///
    /// # Errors
    /// If the term may still be stored; then nothing changes.
    pub async fn forget_term(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        let Ok(executor) = self.drivers.executor(driver) else { return self.terms.forget(driver).await };
        let _rises = executor.rises.lock().await;
        self.terms.forget(driver).await?;
        executor.forget_term();
        Ok(())
    }
}

/// A queued call with its request.
struct QueuedCall {
    dispatcher: Dispatcher,
    runtime: Handle,
    call: Option<Call>,
    waiting: Waiting,
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        // The call may have been admitted while its caller left: other waiters may depend on the operation, and the
        // number of the call has begun.
        if let Some(call) = self.call.take()
            && let Some(operation) = self.waiting.take_undelivered()
        {
            drop(DetachOnDrop::new(self.runtime.clone(), run(self.dispatcher.clone(), call, operation)));
        }
    }
}

/// The answer to a call whose request was not sent to the driver.
fn answer_without_run(id: CallId, identity: &Identity, decision: Decision) -> Result<Replies, Fault> {
    let (driver, method) = (identity.driver(), identity.method());
    match decision {
        Decision::Answer(answer, served) => {
            let outcome = match served {
                Served::Joined => "coalesced",
                Served::Replayed => "replayed",
            };
            tracing::info!(call = %id, %driver, %method, outcome, "answered from the operation table");
            #[cfg(feature = "metrics")]
            crate::metrics::operation(driver, outcome);
            let (message, outcome) = answer.into_parts();
            Ok(Replies::whole(message, outcome))
        }
        Decision::Fail(fault) => {
            if let Fault::OperationPending { running, .. } = &fault {
                tracing::info!(call = %id, %driver, %method, running, "refused, another operation on the same volume is pending");
                #[cfg(feature = "metrics")]
                crate::metrics::operation(driver, "aborted");
            }
            Err(fault)
        }
        // Unreachable: only a queued call receives this decision.
        Decision::Run(_) => Err(Fault::ServiceLost { what: "the request".to_owned() }),
    }
}

/// Executes an operation at the driver, whether or not its caller waits.
async fn run(dispatcher: Dispatcher, call: Call, operation: RunningOperation) -> Result<Replies, Fault> {
    let (driver, _permit) = match dispatcher.admit(&call) {
        Ok(admitted) => admitted,
        Err(fault) => {
            operation.lost(fault.clone());
            return Err(fault);
        }
    };
    let observation = dispatcher.observe(&call);
    // Only unary methods are operations.
    let fault = match observation.answered(driver.relay(call).await) {
        Ok(replies) => {
            let (message, outcome) = replies.read_unary().await;
            match (outcome.fault().cloned(), Answer::new(message, outcome)) {
                (_, Some(answer)) => {
                    operation.answered(answer.clone());
                    #[cfg(feature = "metrics")]
                    crate::metrics::operation(driver.name(), "run");
                    let (message, outcome) = answer.into_parts();
                    return Ok(Replies::whole(message, outcome));
                }
                (fault, None) => fault.unwrap_or_else(|| Fault::Protocol {
                    reason: "the answer is not from the driver".to_owned(),
                }),
            }
        }
        Err(fault) => fault,
    };
    #[cfg(feature = "metrics")]
    if fault.delivery() == Delivery::Unknown {
        crate::metrics::operation(driver.name(), "uncertain");
    }
    operation.lost(fault.clone());
    Err(fault)
}

/// Sends a read-only call to the driver, and keeps its permit until the answer ends. When the caller leaves, the RPC is
/// cancelled: it has changed nothing, and would hold the permit for as long as the driver wants.
async fn run_for_caller(
    driver: Driver,
    call: Call,
    permit: CallPermit,
    observation: Observation,
) -> Result<Replies, Fault> {
    let parts = match observation.answered(driver.relay(call).await)?.into_whole() {
        Ok((message, outcome)) => return Ok(Replies::whole(message, outcome)),
        Err(parts) => parts,
    };
    Ok(Replies::stream(stream::unfold((parts, permit), |(mut parts, permit)| async move {
        Some((parts.next().await?, (parts, permit)))
    })))
}

/// Sends a call that may change something to the driver, and keeps its permit until the answer ends.
async fn run_to_completion(
    driver: Driver,
    call: Call,
    permit: CallPermit,
    begun: BegunCall,
    observation: Observation,
) -> Result<Replies, Fault> {
    let answer = match observation.answered(driver.relay(call).await) {
        Ok(answer) => answer,
        Err(fault) => {
            if fault.delivery() == Delivery::NotSent {
                begun.not_sent();
            }
            return Err(fault);
        }
    };
    match answer.into_whole() {
        Ok((message, outcome)) => Ok(Replies::whole(message, outcome)),
        Err(parts) => {
            let (sender, mut receiver) = mpsc::channel(STREAM_BUFFER);
            tokio::spawn(forward_stream(parts, sender, (permit, begun)));
            Ok(Replies::stream(stream::poll_fn(move |cx| receiver.poll_recv(cx))))
        }
    }
}

/// Reads the stream of a driver to its end, also when the caller has left.
async fn forward_stream(
    mut parts: Replies,
    sender: mpsc::Sender<Reply>,
    _until_the_end: (CallPermit, BegunCall),
) {
    let mut connected = true;
    while let Some(part) = parts.next().await {
        connected = connected && sender.send(part).await.is_ok();
    }
}
