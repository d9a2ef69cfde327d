//! The edge end of a relay: calls arrive and the driver that they name answers them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::address::SocketAddress;
use crate::call::{Call, CallId, MethodPath};
use crate::driver::Driver;
use crate::endpoint::Drained;
use crate::fault::Fault;
use crate::observe::Observation;
use crate::operation::journal::{
    self, Contents, Journal, JournalSettings, OpenJournalError, Quarantined, Writer,
};
use crate::operation::{
    Answer, Asked, Counts, Desk, Identity, Limits, Part, Restored, Run, Stage, Uncertain, Way,
};
use crate::relay::{Relay, RelayError};
use crate::replies::{Replies, Reply};
use crate::to_the_end::ToTheEnd;

/// Most calls that one driver is given at once, unless set otherwise.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1024;

/// How long the end of a drain waits for the disk.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// Parts of a streamed answer that wait for the caller before the driver is held up.
const WAITING_PARTS: usize = 4;

/// The drivers of a node. Cheap to clone; all clones see the same drivers, which may come and go while calls run.
///
/// A call that has been given to a driver runs to its end, whether or not anybody still waits for it: where it was made while
/// somebody does, and in a task of its own from then on. Calls that ask for the same [operation](crate::operation) while it runs
/// share it, and an answer that nobody waited for is there for the next who asks.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    drivers: Arc<RwLock<BTreeMap<DriverName, Entry>>>,
    max_in_flight: usize,
    open: Arc<watch::Sender<Open>>,
    limits: Limits,
    desk: Arc<Desk>,
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
            limits: Limits::default(),
            desk: Arc::new(Desk::new(Limits::default())),
        }
    }

    /// Keeps answers that nobody waited for within these bounds. What is kept already stays for as long as it was to.
    #[must_use]
    pub fn with_operation_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self.desk.set_limits(limits);
        self
    }

    /// Knows the operations that the journal knows, and writes it from now on, in a thread that ends with the last clone and
    /// its calls. To be called before there are clones or calls. Blocks while the journal is read.
    ///
    /// What was under way when the journal was last written is [uncertain](Self::uncertain_operations), and each is a line in
    /// the log.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn with_journal(
        mut self,
        mut journal: impl Journal + 'static,
        settings: JournalSettings,
    ) -> Result<Self, OpenJournalError> {
        let contents = journal::read(&mut journal, SystemTime::now())?;
        tell(&contents);
        let writer =
            Writer::start(Box::new(journal), settings, &contents).map_err(OpenJournalError::Thread)?;
        self.desk = Arc::new(Desk::new(self.limits).with_journal(contents.restored, writer));
        Ok(self)
    }

    /// The operations whose end is not known, because their driver was lost, or this process was. Each is done again when it is
    /// asked for, and forgotten when something else begins on its volume, or after [`Limits::kept_for`].
    #[must_use]
    pub fn uncertain_operations(&self) -> Vec<Uncertain> {
        self.desk.uncertain()
    }

    /// How many operations there are.
    #[must_use]
    pub fn operation_counts(&self) -> Counts {
        self.desk.counts()
    }

    /// Why the journal has failed; `None` while it works, and without one.
    #[must_use]
    pub fn journal_failure(&self) -> Option<String> {
        self.desk.journal()?.failure()
    }

    /// Opens the journal anew after a failure, and waits until it holds all that it should. Nothing happens if it works.
    ///
    /// # Errors
    /// If it fails again, with the reason.
    pub async fn reopen_journal(&self) -> Result<(), String> {
        self.desk.reopen_journal().await
    }

    /// Waits until all that has happened so far is in the journal, on the disk.
    ///
    /// # Errors
    /// If the journal has failed, with the reason.
    pub async fn flush_journal(&self) -> Result<(), String> {
        match self.desk.journal() {
            Some(writer) => writer.flush().done().await,
            None => Ok(()),
        }
    }

    /// Sets the gauges of the operations, which change too often to be set each time.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::metrics::operations(&self.desk.counts());
    }

    /// Gives a driver at most this many calls at once; one more fails with [`Fault::Overloaded`]. Holds for drivers that are
    /// registered after it.
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

    /// Takes no more calls, which fail with [`Fault::Draining`], and waits up to `bound` for those that are open. Then what is
    /// known of operations is in the journal, if that works: a disk that hangs is waited for 5 s.
    pub async fn drain(&self, bound: Duration) -> Drained {
        self.open.send_modify(|open| open.draining = true);
        self.desk.turn_away(Self::draining());
        let mut open = self.open.subscribe();
        let drained = match timeout(bound, open.wait_for(|open| open.calls == 0)).await {
            Ok(_) => Drained::All,
            Err(_) => Drained::Some,
        };
        // A failure has been told.
        if timeout(LAST_COMMIT, self.flush_journal()).await.is_err() {
            tracing::warn!("the disk takes long to write the journal; not waiting for it");
        }
        drained
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
    async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
        let method = Method::from_path(call.method.as_str());
        if let Some(identity) = method.and_then(|method| Identity::of(&call.driver, method, &call.body)) {
            return self.ask(identity, call).await;
        }
        let (driver, place) = self.admit(&call.driver)?;
        let (answered, answer) = oneshot::channel();
        match ToTheEnd::of(see_through(driver, call, answered, place)).until(answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::ServiceLost { what: "the dispatcher's task".to_owned() }.into()),
        }
    }
}

impl Dispatcher {
    /// An operation, done with the request of a call. Nothing if there is no place for it, which is told.
    fn admitted(&self, call: Call, run: Run) -> Option<impl Future<Output = ()> + Send + use<>> {
        match self.admit(&call.driver) {
            Ok((driver, place)) => Some(run_operation(driver, call, run, place)),
            Err(fault) => {
                run.refused(fault);
                None
            }
        }
    }

    /// A call that asks for an operation.
    async fn ask(&self, identity: Identity, call: Call) -> Result<Replies, RelayError> {
        if self.open.borrow().draining {
            return Err(Self::draining().into());
        }
        let until = call.remaining.and_then(|remaining| Instant::now().checked_add(remaining));
        let observed = Observed::of(&call);
        let Asked { asker, part } = self.desk.ask(identity, until);
        let work = match part {
            Part::Run(run) => self.admitted(call, run).map_or_else(ToTheEnd::nothing, ToTheEnd::of),
            Part::Turn(turn) => {
                observed.waits_for_turn();
                let dispatcher = self.clone();
                ToTheEnd::of(async move {
                    if let Some(run) = turn.comes().await
                        && let Some(work) = dispatcher.admitted(call, run)
                    {
                        work.await;
                    }
                })
            }
            Part::None => {
                observed.waits();
                ToTheEnd::nothing()
            }
        };
        match work.until(asker.answer()).await {
            Ok((answer, way, receipt)) => {
                observed.answered(way);
                let (message, outcome) = answer.into_parts();
                Ok(Replies::whole(message, outcome).with_receipt(receipt))
            }
            Err(fault) => {
                observed.failed(&fault);
                Err(fault.into())
            }
        }
    }
}

/// What the operator is told of a call that asks for an operation, where the driver is not called for it.
struct Observed {
    id: CallId,
    driver: DriverName,
    method: MethodPath,
}

impl Observed {
    fn of(call: &Call) -> Self {
        Self { id: call.id, driver: call.driver.clone(), method: call.method.clone() }
    }

    fn waits(&self) {
        let Self { id, driver, method } = self;
        tracing::debug!(call = %id, %driver, %method, "asks for what is under way or over; the driver is not called for it");
    }

    fn waits_for_turn(&self) {
        let Self { id, driver, method } = self;
        tracing::debug!(call = %id, %driver, %method, "waits for another operation on the same volume to end");
    }

    fn answered(&self, way: Way) {
        let Self { id, driver, method } = self;
        let outcome = match way {
            Way::Ran => "run",
            Way::Joined => "joined",
            Way::Late => "handed_out_late",
        };
        if way != Way::Ran {
            tracing::info!(call = %id, %driver, %method, outcome, "answered without calling the driver again");
        }
        #[cfg(feature = "metrics")]
        crate::metrics::operation(driver, outcome);
    }

    fn failed(&self, fault: &Fault) {
        if let Fault::OperationPending { running, .. } = fault {
            let Self { id, driver, method } = self;
            tracing::info!(call = %id, %driver, %method, running, "another operation is pending for the same volume");
            #[cfg(feature = "metrics")]
            crate::metrics::operation(driver, "aborted");
        }
    }
}

/// Says what the journal knew.
fn tell(contents: &Contents) {
    for Restored { identity, stage, age, .. } in &contents.restored {
        let (driver, method, digest) = (identity.driver(), identity.method(), identity.digest());
        let started = match stage {
            Stage::Accepted => false,
            Stage::Started => true,
            Stage::Finished(_) => continue,
        };
        let about = identity.keys().first().map(|key| key.subject().to_string()).unwrap_or_default();
        tracing::warn!(
            %driver, %method, about, %digest, started, ?age,
            "the end of an operation is not known; it is done again when it is asked for"
        );
    }
    for Quarantined { row, defect } in &contents.quarantined {
        tracing::error!(row, %defect, "a record of the journal of operations cannot be read and was set aside");
    }
    #[cfg(feature = "metrics")]
    crate::metrics::journal_quarantined(contents.quarantined.len());
}

/// Has the driver do an operation, whoever waits for it.
async fn run_operation(driver: Driver, call: Call, run: Run, _place: Place) {
    let observation = Observation::start("dispatcher", &call);
    let ticket = match run.begin().await {
        Ok(ticket) => ticket,
        Err((ticket, fault)) => {
            drop(observation.answered(Err(fault.clone().into())));
            return ticket.lost(fault);
        }
    };
    // Only unary methods are operations, and a driver answers those as a whole.
    let answer = observation.answered(driver.relay(call).await).map(Replies::into_whole);
    let fault = match answer {
        Ok(Ok((message, outcome))) => match outcome.fault().cloned() {
            None => match Answer::new(message, outcome) {
                Some(answer) => return ticket.answered(answer).await,
                None => unexpected(),
            },
            Some(fault) => fault,
        },
        Ok(Err(_)) => unexpected(),
        Err(error) => error.into_fault(),
    };
    #[cfg(feature = "metrics")]
    if fault.delivery() == crate::fault::Delivery::Unknown {
        crate::metrics::operation(driver.name(), "uncertain");
    }
    ticket.lost(fault);
}

fn unexpected() -> Fault {
    Fault::Protocol { reason: "an answer of a driver that is not one message and a status".to_owned() }
}

/// Makes the call and stays with it to its end.
async fn see_through(
    driver: Driver,
    call: Call,
    answered: oneshot::Sender<Result<Replies, RelayError>>,
    _place: Place,
) {
    let observation = Observation::start("dispatcher", &call);
    let mut parts = match observation.answered(driver.relay(call).await).map(Replies::into_whole) {
        Err(error) => return drop(answered.send(Err(error))),
        Ok(Ok((message, outcome))) => return drop(answered.send(Ok(Replies::whole(message, outcome)))),
        Ok(Err(parts)) => parts,
    };
    let (sender, replies) = Replies::channel(WAITING_PARTS);
    let mut sender = answered.send(Ok(replies)).is_ok().then_some(sender);
    while let Some(part) = parts.next().await {
        match part {
            Reply::Message(message) => {
                let left = match &mut sender {
                    Some(sender) => sender.message(message).await.is_err(),
                    None => false,
                };
                if left {
                    sender = None;
                }
            }
            Reply::End(outcome) => {
                if let Some(sender) = sender.take() {
                    let _ = sender.end(outcome).await;
                }
            }
        }
    }
}
