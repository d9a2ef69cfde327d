//! [`Dispatcher`]: which driver answers a call, and how many at once.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::driver::Driver;
use super::operation::{Answer, Counts, Executor, Identity, Ticket, Verdict, Waiting, Way};
use super::terms::{MemoryTerms, TermStore};
use super::to_the_end::ToTheEnd;
use crate::address::SocketAddress;
use crate::call::{Call, CallId, Fault, Replies, Reply};
use crate::endpoint::Drained;
use crate::observe::Observation;
use crate::relay::Relay;

/// Most calls that one driver is given at once, unless set otherwise.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1024;

/// How long a call waits for its turn while something else is done to its volume, unless set otherwise.
const DEFAULT_VOLUME_WAIT: Duration = Duration::from_secs(2);

/// How long a call waits for its proxy's term to be on the disk.
const TERM_PATIENCE: Duration = Duration::from_secs(10);

/// Parts of a streamed answer that wait for the caller before the driver is held up.
const WAITING_PARTS: usize = 4;

/// The drivers of a node. Cheap to clone; all clones see the same drivers, which may come and go while calls run.
///
/// A call that has been given to a driver runs to its end, whether or not anybody still waits for it: where it was made
/// while somebody does, and in a task of its own from then on. Calls that ask for the same
/// [operation](super::operation) while it runs share it. A call that carries a [`Fence`](crate::Fence) begins only if
/// that lets it pass.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    drivers: Arc<RwLock<BTreeMap<DriverName, Entry>>>,
    max_in_flight: usize,
    open: Arc<watch::Sender<Open>>,
    executor: Arc<Executor>,
    terms: Arc<dyn TermStore>,
    /// One term is recorded at a time.
    recording: Arc<tokio::sync::Mutex<()>>,
}

/// What is open, over all drivers, also those that have been taken away.
#[derive(Debug, Default)]
struct Open {
    calls: usize,
    draining: bool,
}

/// A call's place, until the call has ended.
struct Place {
    open: Arc<watch::Sender<Open>>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Only whoever drains waits for this.
        self.open.send_if_modified(|open| {
            open.calls -= 1;
            open.draining && open.calls == 0
        });
    }
}

#[derive(Debug, Clone)]
struct Entry {
    driver: Driver,
    slots: Arc<Semaphore>,
}

impl Dispatcher {
    /// No drivers yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            drivers: Arc::default(),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            open: Arc::new(watch::Sender::default()),
            executor: Arc::new(Executor::new(DEFAULT_VOLUME_WAIT)),
            terms: Arc::new(MemoryTerms::default()),
            recording: Arc::default(),
        }
    }

    /// Sets how long a call waits for its turn while something else is done to its volume, snapshot or group; 2 s by
    /// default, at most a minute. Zero: not at all. A caller that stops waiting sooner is refused half a second before.
    /// To be called before there are clones or calls.
    #[must_use]
    pub fn with_volume_wait(mut self, wait: Duration) -> Self {
        self.executor = Arc::new(Executor::new(wait));
        self
    }

    /// Keeps the terms of drivers' proxies there, in place of memory. To be called before there are clones or calls.
    #[must_use]
    pub fn with_terms(mut self, terms: impl TermStore + 'static) -> Self {
        self.terms = Arc::new(terms);
        self
    }

    /// How many operations there are.
    #[must_use]
    pub fn operation_counts(&self) -> Counts {
        self.executor.counts()
    }

    /// Sets the gauges of the operations, which change too often to be set each time.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::metrics::operations(&self.executor.counts());
    }

    /// Gives a driver at most this many calls at once; one more fails with [`Fault::Overloaded`]. Holds for drivers
    /// that are registered after it.
    #[must_use]
    pub fn with_max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// The same dispatcher with a driver of that name at that socket.
    #[must_use]
    pub fn with_driver(self, name: DriverName, address: SocketAddress) -> Self {
        self.register(Driver::new(name, address));
        self
    }

    /// Adds a driver, or puts it in the place of the one of its name. Calls that run go on where they are.
    pub fn register(&self, driver: Driver) {
        let entry = Entry { slots: Arc::new(Semaphore::new(self.max_in_flight)), driver };
        tracing::info!(driver = %entry.driver.name(), address = %entry.driver.address(), "driver registered");
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        drivers.insert(entry.driver.name().clone(), entry);
    }

    /// Takes a driver away and says whether it was there. Calls that run go on to their end.
    pub fn unregister(&self, name: &DriverName) -> bool {
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        drivers.remove(name).is_some()
    }

    /// The names of the drivers, sorted.
    #[must_use]
    pub fn drivers(&self) -> Vec<DriverName> {
        self.drivers.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Takes no more calls, which fail with [`Fault::Draining`], and waits up to `bound` for those that are open.
    pub async fn drain(&self, bound: Duration) -> Drained {
        self.open.send_modify(|open| open.draining = true);
        self.executor.turn_away(Self::draining());
        let mut open = self.open.subscribe();
        match timeout(bound, open.wait_for(|open| open.calls == 0)).await {
            Ok(_) => Drained::All,
            Err(_) => Drained::Some,
        }
    }

    fn draining() -> Fault {
        Fault::Draining { what: "the dispatcher".to_owned() }
    }

    fn admit(&self, name: &DriverName) -> Result<(Driver, Place), Fault> {
        let drivers = self.drivers.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Entry { driver, slots }) = drivers.get(name) else {
            return Err(Fault::DriverNotRegistered { driver: name.clone() });
        };
        let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| Fault::Overloaded {
            what: format!("the call table of driver {name}"),
            max: self.max_in_flight as u64,
        })?;
        let mut admitted = false;
        self.open.send_if_modified(|open| {
            admitted = !open.draining;
            open.calls += usize::from(admitted);
            false
        });
        if !admitted {
            return Err(Self::draining());
        }
        Ok((driver.clone(), Place { open: Arc::clone(&self.open), _slot: slot }))
    }
}

impl Default for Dispatcher {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Relay for Dispatcher {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        self.record_term(&call).await?;
        let method = Method::from_path(call.method.as_str());
        match method.and_then(|method| Identity::of(&call.driver, method, &call.body)) {
            Some(identity) => self.execute(identity, call).await,
            None => self.pass(method, call).await,
        }
    }
}

impl Dispatcher {
    /// A call that asks for an operation.
    async fn execute(&self, identity: Identity, call: Call) -> Result<Replies, Fault> {
        if self.open.borrow().draining {
            return Err(Self::draining());
        }
        let until = call.remaining.and_then(|remaining| Instant::now().checked_add(remaining));
        let id = call.id;
        let mut waiting = self.executor.ask(&call, identity.clone(), until);
        match waiting.verdict_now() {
            Some(Verdict::Run(ticket)) => return self.run(call, ticket, waiting).await,
            Some(verdict) => return end(id, &identity, verdict),
            None => {}
        }
        let (driver, method) = (identity.driver(), identity.method());
        if waiting.is_queued() {
            tracing::debug!(call = %id, %driver, %method, "waits for another operation on the same volume to end");
        } else {
            tracing::debug!(call = %id, %driver, %method, "joins the same operation, which is running");
        }
        let call = waiting.is_queued().then_some(call);
        let mut turn = Turn { dispatcher: self.clone(), runtime: Handle::current(), call, waiting };
        match (turn.waiting.verdict().await, turn.call.take()) {
            (Verdict::Run(ticket), Some(call)) => self.run(call, ticket, turn).await,
            (verdict, _) => end(id, &identity, verdict),
        }
    }

    /// Runs an operation to its end, and says until then that its caller waits.
    async fn run<W: Send>(&self, call: Call, ticket: Ticket, waiter: W) -> Result<Replies, Fault> {
        let end = ToTheEnd::new(Handle::current(), run(self.clone(), call, ticket)).await;
        drop(waiter);
        end
    }

    /// A call that asks for no operation.
    async fn pass(&self, method: Option<Method>, call: Call) -> Result<Replies, Fault> {
        let (driver, place) = self.admit(&call.driver)?;
        if let Some(fence) = &call.fence {
            // What is not known may change something.
            let repeatable = method.is_some_and(|method| !method.is_mutating());
            self.executor.admit(&call.driver, fence, repeatable)?;
        }
        ToTheEnd::new(Handle::current(), see_through(driver, call, place)).await
    }

    /// Has the term of a call on the disk, before the first call of that term is looked at.
    async fn record_term(&self, call: &Call) -> Result<(), Fault> {
        let Some(term) = call.fence.as_ref().map(crate::Fence::term) else { return Ok(()) };
        let driver = &call.driver;
        if self.executor.term(driver).is_some_and(|known| known >= term) {
            return Ok(());
        }
        let not_recorded = |reason: String| Fault::TermNotRecorded { driver: driver.clone(), reason };
        if !self.drivers.read().unwrap_or_else(PoisonError::into_inner).contains_key(driver) {
            return Err(Fault::DriverNotRegistered { driver: driver.clone() });
        }
        let raised = timeout(TERM_PATIENCE, async {
            let _one = self.recording.lock().await;
            if self.executor.term(driver).is_none()
                && let Some(stored) =
                    self.terms.load(driver).await.map_err(|e| not_recorded(e.to_string()))?
            {
                self.executor.record_term(driver, stored)?;
            }
            if self.executor.term(driver).is_none_or(|known| known < term) {
                self.terms.raise(driver, term).await.map_err(|e| not_recorded(e.to_string()))?;
                tracing::info!(%driver, %term, "a new start of the driver's proxy; calls of earlier ones are refused");
                self.executor.record_term(driver, term)?;
            }
            Ok(())
        });
        raised.await.unwrap_or_else(|_| Err(not_recorded(format!("not stored within {TERM_PATIENCE:?}"))))
    }
}

/// A call that waits for its turn, with its request.
struct Turn {
    dispatcher: Dispatcher,
    runtime: Handle,
    call: Option<Call>,
    waiting: Waiting,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Its turn may have come while it left: others may wait for the same, and its number has begun.
        if let Some(call) = self.call.take()
            && let Some(ticket) = self.waiting.last_ticket()
        {
            drop(ToTheEnd::new(self.runtime.clone(), run(self.dispatcher.clone(), call, ticket)));
        }
    }
}

/// The end of a call that asked for an operation, and that the driver was not called for.
fn end(id: CallId, identity: &Identity, verdict: Verdict) -> Result<Replies, Fault> {
    let (driver, method) = (identity.driver(), identity.method());
    match verdict {
        Verdict::Answer(answer, way) => {
            let outcome = match way {
                Way::Joined => "joined",
                Way::Replayed => "replayed",
            };
            tracing::info!(call = %id, %driver, %method, outcome, "answered without calling the driver again");
            #[cfg(feature = "metrics")]
            crate::metrics::operation(driver, outcome);
            let (message, outcome) = answer.into_parts();
            Ok(Replies::whole(message, outcome))
        }
        Verdict::Fail(fault) => {
            if let Fault::OperationPending { running, .. } = &fault {
                tracing::info!(call = %id, %driver, %method, running, "another operation is pending for the same volume");
                #[cfg(feature = "metrics")]
                crate::metrics::operation(driver, "aborted");
            }
            Err(fault)
        }
        // Only what waits for its turn is told to run.
        Verdict::Run(_) => Err(Fault::ServiceLost { what: "the request".to_owned() }),
    }
}

/// Has the driver do an operation, whether or not its caller waits.
async fn run(dispatcher: Dispatcher, call: Call, ticket: Ticket) -> Result<Replies, Fault> {
    let (driver, _place) = match dispatcher.admit(&call.driver) {
        Ok(admitted) => admitted,
        Err(fault) => {
            ticket.lost(fault.clone());
            return Err(fault);
        }
    };
    let observation = Observation::start("dispatcher", &call);
    // Only unary methods are operations.
    let fault = match observation.answered(driver.relay(call).await) {
        Ok(replies) => {
            let (message, outcome) = replies.read_unary().await;
            match (outcome.fault().cloned(), Answer::new(message, outcome)) {
                (_, Some(answer)) => {
                    ticket.answered(answer.clone());
                    #[cfg(feature = "metrics")]
                    crate::metrics::operation(driver.name(), "run");
                    let (message, outcome) = answer.into_parts();
                    return Ok(Replies::whole(message, outcome));
                }
                (fault, None) => fault.unwrap_or_else(|| Fault::Protocol {
                    reason: "an answer that is not the driver's".to_owned(),
                }),
            }
        }
        Err(fault) => fault,
    };
    #[cfg(feature = "metrics")]
    if fault.delivery() == csi_proto::Delivery::Unknown {
        crate::metrics::operation(driver.name(), "uncertain");
    }
    ticket.lost(fault.clone());
    Err(fault)
}

/// Makes the call and stays with it to its end.
async fn see_through(driver: Driver, call: Call, place: Place) -> Result<Replies, Fault> {
    let observation = Observation::start("dispatcher", &call);
    match observation.answered(driver.relay(call).await)?.into_whole() {
        Ok((message, outcome)) => Ok(Replies::whole(message, outcome)),
        Err(parts) => {
            let (sender, mut receiver) = mpsc::channel(WAITING_PARTS);
            tokio::spawn(pass_on(parts, sender, place));
            Ok(Replies::stream(stream::poll_fn(move |cx| receiver.poll_recv(cx))))
        }
    }
}

/// Reads a driver's stream to its end, also when its caller has left.
async fn pass_on(mut parts: Replies, sender: mpsc::Sender<Reply>, _place: Place) {
    let mut waits = true;
    while let Some(part) = parts.next().await {
        waits = waits && sender.send(part).await.is_ok();
    }
}
