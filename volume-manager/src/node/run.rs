//! The driver of the core: takes questions, makes calls, keeps time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument;

use super::change::{Change, ChangeKind};
use super::core::{Action, Answer, CommitFailure, Event, Node, RequestId};
use super::journal::{Done, Journal, Kind};
use super::link::{Connection, Dial, Drivers};
use super::settings::Settings;
use super::volumes::{Command, Reply};
use super::{errands, metrics};
use crate::driver::CallOutcome;
use crate::excerpt::chain;
use crate::lifecycle::BackOff;
use crate::mounts::{MountChanges, MountTable, Mounts};
use crate::registry::DriverEndpoint;

/// How often the figures of all volumes are counted.
const FIGURES: Duration = Duration::from_secs(5);

/// How long to wait before the mount table is read again, where its changes cannot be waited for.
const POLL: Duration = Duration::from_secs(2);

/// The first and the longest wait before a driver is dialled again. A connection that is there for longer has lasted.
const REDIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// What came of something that runs beside the loop.
enum Outcome {
    Event(Box<Event>),
    Cleared,
    Connected {
        name: DriverName,
        serial: u64,
        connection: Arc<dyn Connection>,
    },
    Closed {
        name: DriverName,
        serial: u64,
    },
    /// The mount table changed, and the least time since it was read has gone by.
    TableIsDue(Option<Box<dyn MountChanges>>),
    TableRead {
        event: Option<Box<Event>>,
        changes: Option<Box<dyn MountChanges>>,
    },
}

/// A driver that is registered.
struct Registered {
    serial: u64,
    dial: Arc<dyn Dial>,
    connection: Option<Arc<dyn Connection>>,
    /// When it was connected to last.
    since: Instant,
    /// How many connections in a row have not lasted.
    brief: u8,
    /// Connects, or waits until the connection is gone.
    task: AbortHandle,
}

/// Everything that runs. Dropped, it leaves all as a crash would: what is on disk is what goes on.
pub(super) struct Run {
    pub(super) node: Node,
    pub(super) journal: Journal,
    pub(super) mounts: Arc<dyn Mounts>,
    pub(super) makers: Arc<dyn Drivers>,
    pub(super) settings: Settings,
    pub(super) changes: broadcast::Sender<Change>,
    drivers: BTreeMap<DriverName, Registered>,
    replies: HashMap<RequestId, Reply>,
    /// When so many answers are waited for, those that nobody waits for are sought.
    prune_at: usize,
    tasks: JoinSet<Outcome>,
    started: Instant,
    serial: u64,
    requests: u64,
}

/// The least number of answers that are waited for before those that nobody waits for are sought.
const PRUNE: usize = 1024;

impl Run {
    pub(super) fn new(
        node: Node,
        journal: Journal,
        mounts: Arc<dyn Mounts>,
        makers: Arc<dyn Drivers>,
        settings: Settings,
        changes: broadcast::Sender<Change>,
    ) -> Self {
        Self {
            node,
            journal,
            mounts,
            makers,
            settings,
            changes,
            drivers: BTreeMap::new(),
            replies: HashMap::new(),
            prune_at: PRUNE,
            tasks: JoinSet::new(),
            started: Instant::now(),
            serial: 0,
            requests: 0,
        }
    }

    /// Runs until no handle is left.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, opening: Vec<Action>) {
        metrics::describe();
        self.started = Instant::now();
        let mut figures = self.started;
        self.perform(opening);
        match self.mounts.changes() {
            // What changed between the opening and the subscription is in no change that is still to come.
            Ok(changes) => self.read_table(Some(changes)),
            Err(error) => {
                tracing::warn!("changes of the mount table cannot be waited for, so it is polled: {error}");
                self.read_table(None);
            }
        }
        loop {
            let due = self.node.next_deadline().map(|at| self.started + at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                done = self.journal.done() => self.committed(done),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(outcome) => self.outcome(outcome),
                    Err(error) if error.is_cancelled() => {}
                    // Its end would never be told to the core: better to end loudly than to hang.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = at(due) => self.step(Event::Tick),
            }
            if cfg!(feature = "metrics") && figures <= Instant::now() {
                figures = Instant::now() + FIGURES;
                metrics::counts(&self.node.counts());
            }
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.node.step(event, self.started.elapsed());
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Commit(changes) => {
                    metrics::commit(changes.len());
                    self.journal.commit(changes);
                }
                Action::Reopen => self.journal.reopen(),
                Action::Call(order) => self.call(order),
                Action::Look(order) => {
                    let mounts = Arc::clone(&self.mounts);
                    self.begin(async move { errands::look(order, mounts).await });
                }
                Action::Clear(places) => {
                    let mounts = Arc::clone(&self.mounts);
                    self.tasks.spawn(async move {
                        errands::clear(places, &*mounts).await;
                        Outcome::Cleared
                    });
                }
                Action::ReadTable => {
                    let (since, mounts) = (self.node.epoch(), Arc::clone(&self.mounts));
                    let wait = POLL.max(self.settings.mount_check_interval);
                    self.begin(async move {
                        loop {
                            match mounts.table().await {
                                Ok(table) => return seen(table, since),
                                Err(error) => tracing::warn!("{}", chain(&error)),
                            }
                            sleep(wait).await;
                        }
                    });
                }
                Action::Answer { request, answer } => self.answer(request, answer),
                Action::Tell(change) => {
                    match &change.kind {
                        ChangeKind::State { from, dwelt, .. } => {
                            metrics::dwelt(*from, *dwelt);
                            tracing::debug!("{change}");
                        }
                        ChangeKind::Failed(_) | ChangeKind::MountLost(_) => tracing::warn!("{change}"),
                        _ => tracing::info!("{change}"),
                    }
                    // Nobody need watch.
                    let _ = self.changes.send(change);
                }
            }
        }
    }

    fn begin(&mut self, event: impl Future<Output = Event> + Send + 'static) {
        self.tasks.spawn(async move { Outcome::Event(Box::new(event.await)) });
    }

    fn call(&mut self, order: super::core::CallOrder) {
        let key = order.spec.key().clone();
        let connection = self.drivers.get(&key.driver).and_then(|driver| driver.connection.clone());
        let mounts = Arc::clone(&self.mounts);
        let method = order.operation.method();
        let rpc = method.name();
        let span = tracing::info_span!("call", volume = %key.id, driver = %key.driver, rpc);
        let call = async move {
            let began = Instant::now();
            let event = errands::call(order, connection, mounts).await;
            let code = match &event {
                Event::CallEnded { result: Ok(_), .. } => "OK".to_owned(),
                Event::CallEnded { result: Err(error), .. } => {
                    error.code().map_or_else(|| "none".to_owned(), |code| code.to_string())
                }
                _ => "none".to_owned(),
            };
            tracing::debug!(code, "ended");
            metrics::call(key.driver.as_str(), rpc, code, began.elapsed());
            event
        };
        self.begin(call.instrument(span));
    }

    fn committed(&mut self, done: Done) {
        let outcome = done.outcome.map_err(|error| CommitFailure::of(&error));
        match (done.work, &outcome) {
            (_, Ok(())) => {}
            (Kind::Commit, Err(failure)) => tracing::error!("the store failed: {}", failure.reason),
            (Kind::Reopen, Err(failure)) => {
                tracing::warn!("the store cannot be opened again: {}", failure.reason);
            }
        }
        match done.work {
            Kind::Commit => {
                metrics::committed(outcome.is_ok(), done.took);
                self.step(Event::Committed(outcome));
            }
            Kind::Reopen => self.step(Event::Reopened(outcome.map_err(|failure| failure.reason))),
        }
    }

    fn command(&mut self, command: Command) {
        let now = self.started.elapsed();
        // Whoever asked may have gone meanwhile.
        match command {
            Command::Ask(ask, reply) => {
                self.requests += 1;
                let request = RequestId(self.requests);
                self.replies.insert(request, reply);
                self.step(Event::Ask { request, ask });
                self.prune();
            }
            Command::Registered { name, endpoint, policy } => self.register(name, &endpoint, policy),
            Command::Deregistered(name) => self.deregister(name),
            Command::Explain(key, reply) => drop(reply.send(self.node.explain(&key, now))),
            Command::List(reply) => drop(reply.send(self.node.keys().cloned().collect())),
            Command::Quarantined(reply) => drop(reply.send(self.node.quarantined().to_vec())),
            Command::Counts(reply) => drop(reply.send(self.node.counts())),
            Command::Drivers(reply) => drop(reply.send(self.node.known_drivers())),
        }
    }

    /// Forgets the questions whose makers are gone, so that they cannot pile up.
    fn prune(&mut self) {
        if self.replies.len() < self.prune_at {
            return;
        }
        let gone =
            self.replies.extract_if(|_, reply| reply.is_closed()).map(|(request, _)| request).collect();
        self.prune_at = PRUNE.max(self.replies.len() * 2);
        self.step(Event::Abandoned(gone));
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        // Nobody need wait.
        match (self.replies.remove(&request), answer) {
            (Some(Reply::Published(reply)), Answer::Published(answer)) => drop(reply.send(answer)),
            (Some(Reply::Unpublished(reply)), Answer::Unpublished(answer)) => drop(reply.send(answer)),
            (Some(Reply::Expanded(reply)), Answer::Expanded(answer)) => drop(reply.send(answer)),
            (Some(Reply::Noted(reply)), Answer::Noted(answer)) => drop(reply.send(answer)),
            (Some(Reply::Reconciled(reply)), Answer::Reconciled(answer)) => drop(reply.send(answer)),
            (Some(Reply::Inspected(reply)), Answer::Inspected(answer)) => {
                drop(reply.send(answer as Result<CallOutcome, _>));
            }
            (reply, _) => debug_assert!(reply.is_none(), "an answer to another question"),
        }
    }

    fn register(&mut self, name: DriverName, endpoint: &DriverEndpoint, policy: crate::driver::DriverPolicy) {
        self.deregister(name.clone());
        let dial = match self.makers.driver(&name, endpoint, &policy) {
            Ok(dial) => dial,
            Err(reason) => return tracing::error!(driver = %name, "the driver cannot be used: {reason}"),
        };
        self.serial += 1;
        let serial = self.serial;
        let task = self.connect(&name, serial, &dial, 0);
        let registered = Registered { serial, dial, connection: None, since: Instant::now(), brief: 0, task };
        self.drivers.insert(name.clone(), registered);
        self.step(Event::DriverRegistered { driver: name, policy });
    }

    fn deregister(&mut self, name: DriverName) {
        if let Some(driver) = self.drivers.remove(&name) {
            driver.task.abort();
            self.step(Event::DriverGone(name));
        }
    }

    /// Connects to a driver, for as long as it takes, after as many `attempts` that came to nothing.
    fn connect(
        &mut self,
        name: &DriverName,
        serial: u64,
        dial: &Arc<dyn Dial>,
        mut attempts: u8,
    ) -> AbortHandle {
        let (name, dial, seed) = (name.clone(), Arc::clone(dial), self.settings.jitter_seed);
        let waits = BackOff::new(REDIAL.0, REDIAL.1);
        self.tasks.spawn(async move {
            loop {
                if attempts > 0 {
                    sleep(waits.wait(attempts, seed ^ serial)).await;
                }
                match dial.connect().await {
                    Ok(connection) => return Outcome::Connected { name, serial, connection },
                    Err(reason) => tracing::warn!(driver = %name, "not connected: {reason}"),
                }
                attempts = attempts.saturating_add(1);
            }
        })
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Event(event) => self.step(*event),
            Outcome::Cleared => {}
            Outcome::Connected { name, serial, connection } => {
                let Some(driver) = self.drivers.get_mut(&name).filter(|driver| driver.serial == serial)
                else {
                    return;
                };
                let (facts, ended) = (Box::new(connection.facts().clone()), connection.predecessors_ended());
                driver.connection = Some(Arc::clone(&connection));
                driver.since = Instant::now();
                let told = name.clone();
                driver.task = self.tasks.spawn(async move {
                    connection.closed().await;
                    Outcome::Closed { name: told, serial }
                });
                tracing::info!(driver = %name, version = facts.vendor_version, "connected");
                self.step(Event::DriverConnected { facts, predecessors_ended: ended });
            }
            Outcome::Closed { name, serial } => {
                let Some(driver) = self.drivers.get_mut(&name).filter(|driver| driver.serial == serial)
                else {
                    return;
                };
                tracing::warn!(driver = %name, "the connection is gone");
                driver.connection = None;
                // Else one that says what it is and hangs up would be dialled without a pause.
                let lasted = driver.since.elapsed() > REDIAL.1;
                driver.brief = if lasted { 0 } else { driver.brief.saturating_add(1) };
                let (dial, brief) = (Arc::clone(&driver.dial), driver.brief);
                let task = self.connect(&name, serial, &dial, brief);
                if let Some(driver) = self.drivers.get_mut(&name) {
                    driver.task = task;
                }
                self.step(Event::DriverDisconnected(name));
            }
            Outcome::TableIsDue(changes) => self.read_table(changes),
            Outcome::TableRead { event, changes } => {
                let Some(event) = event else {
                    // The change that it was read for will not come again.
                    let wait = POLL.max(self.settings.mount_check_interval);
                    self.tasks.spawn(async move {
                        sleep(wait).await;
                        Outcome::TableIsDue(changes)
                    });
                    return;
                };
                self.step(*event);
                self.await_change(changes);
            }
        }
    }

    /// Waits for a change of the mount table, and then until it may be read again.
    fn await_change(&mut self, changes: Option<Box<dyn MountChanges>>) {
        let interval = self.settings.mount_check_interval;
        self.tasks.spawn(async move {
            let Some(mut changes) = changes else {
                sleep(POLL.max(interval)).await;
                return Outcome::TableIsDue(None);
            };
            if let Err(error) = changes.changed().await {
                tracing::warn!("changes of the mount table cannot be waited for, so it is polled: {error}");
                sleep(POLL.max(interval)).await;
                return Outcome::TableIsDue(None);
            }
            sleep(interval).await;
            Outcome::TableIsDue(Some(changes))
        });
    }

    fn read_table(&mut self, changes: Option<Box<dyn MountChanges>>) {
        let (since, mounts) = (self.node.epoch(), Arc::clone(&self.mounts));
        self.tasks.spawn(async move {
            let event = match mounts.table().await {
                Ok(table) => Some(Box::new(seen(table, since))),
                Err(error) => {
                    tracing::warn!("{}", chain(&error));
                    None
                }
            };
            Outcome::TableRead { event, changes }
        });
    }
}

fn seen(table: Arc<MountTable>, since: super::core::Epoch) -> Event {
    Event::MountsSeen { table, since }
}

impl Reply {
    fn is_closed(&self) -> bool {
        match self {
            Self::Published(reply) => reply.is_closed(),
            Self::Unpublished(reply) => reply.is_closed(),
            Self::Expanded(reply) => reply.is_closed(),
            Self::Noted(reply) => reply.is_closed(),
            Self::Reconciled(reply) => reply.is_closed(),
            Self::Inspected(reply) => reply.is_closed(),
        }
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
