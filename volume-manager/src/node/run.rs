//! The driver of the core: takes questions, makes calls, keeps time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument;

use super::change::{Change, ChangeKind};
use super::core::{Action, CommitFailure, Event, Node};
use super::journal::{Done, Journal, Kind};
use super::link::{Connection, Drivers};
use super::settings::Settings;
use super::volumes::Command;
use super::{errands, metrics};
use crate::driver::DriverPolicy;
use crate::excerpt::chain;
use crate::lifecycle::BackOff;
use crate::mounts::{MountChanges, Mounts};
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
    TableIsDue(Reader),
    TableRead {
        event: Box<Event>,
        reader: Reader,
    },
}

/// For what the mount table is read, and so when it is read again.
enum Reader {
    /// Its changes.
    Changes(Box<dyn MountChanges>),
    /// Changes that cannot be waited for: after a while.
    Poll,
    /// The core, which asked for it.
    Once,
}

/// A driver that is registered.
struct Registered {
    serial: u64,
    announced: Arc<(DriverEndpoint, DriverPolicy)>,
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
    pub(super) links: Arc<dyn Drivers>,
    pub(super) settings: Settings,
    pub(super) changes: broadcast::Sender<Change>,
    drivers: BTreeMap<DriverName, Registered>,
    tasks: JoinSet<Outcome>,
    started: Instant,
    serial: u64,
}

impl Run {
    pub(super) fn new(
        node: Node,
        journal: Journal,
        mounts: Arc<dyn Mounts>,
        links: Arc<dyn Drivers>,
        settings: Settings,
        changes: broadcast::Sender<Change>,
    ) -> Self {
        Self {
            node,
            journal,
            mounts,
            links,
            settings,
            changes,
            drivers: BTreeMap::new(),
            tasks: JoinSet::new(),
            started: Instant::now(),
            serial: 0,
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
            Ok(changes) => self.read_table(Reader::Changes(changes)),
            Err(error) => {
                tracing::warn!("changes of the mount table cannot be waited for, so it is polled: {error}");
                self.read_table(Reader::Poll);
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
                Action::Look { slot, look } => {
                    let mounts = Arc::clone(&self.mounts);
                    self.begin(
                        async move { Event::Looked { slot, seen: errands::look(look, &*mounts).await } },
                    );
                }
                Action::Clear(places) => {
                    let mounts = Arc::clone(&self.mounts);
                    self.tasks.spawn(async move {
                        errands::clear(places, &*mounts).await;
                        Outcome::Cleared
                    });
                }
                Action::ReadTable => self.read_table(Reader::Once),
                Action::Answer(answer) => answer.deliver(),
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
            let result = errands::call(&order, connection, &*mounts).await;
            let code = match &result {
                Ok(_) => "OK".to_owned(),
                Err(error) => error.code().map_or_else(|| "none".to_owned(), |code| code.to_string()),
            };
            tracing::debug!(code, "ended");
            metrics::call(key.driver.as_str(), rpc, code, began.elapsed());
            let slot = order.slot;
            let seen = errands::verify(order, &result, &*mounts).await;
            Event::CallEnded { slot, result, seen }
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
        match command {
            Command::Request(request) => self.step(Event::Request(request)),
            Command::Read(read) => read(&self.node, self.started.elapsed()),
            Command::Registered { name, endpoint, policy } => self.register(name, endpoint, policy),
            Command::Deregistered(name) => self.deregister(name),
        }
    }

    fn register(&mut self, name: DriverName, endpoint: DriverEndpoint, policy: DriverPolicy) {
        self.deregister(name.clone());
        self.serial += 1;
        let (serial, announced) = (self.serial, Arc::new((endpoint, policy.clone())));
        let task = self.connect(&name, serial, &announced, 0);
        let since = Instant::now();
        let registered = Registered { serial, announced, connection: None, since, brief: 0, task };
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
        announced: &Arc<(DriverEndpoint, DriverPolicy)>,
        mut attempts: u8,
    ) -> AbortHandle {
        let (name, announced, links) = (name.clone(), Arc::clone(announced), Arc::clone(&self.links));
        let seed = self.settings.jitter_seed;
        let waits = BackOff::new(REDIAL.0, REDIAL.1);
        self.tasks.spawn(async move {
            loop {
                if attempts > 0 {
                    sleep(waits.wait(attempts, seed ^ serial)).await;
                }
                match links.connect(&name, &announced.0, &announced.1).await {
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
                let (announced, brief) = (Arc::clone(&driver.announced), driver.brief);
                let task = self.connect(&name, serial, &announced, brief);
                if let Some(driver) = self.drivers.get_mut(&name) {
                    driver.task = task;
                }
                self.step(Event::DriverDisconnected(name));
            }
            Outcome::TableIsDue(reader) => self.read_table(reader),
            Outcome::TableRead { event, reader } => {
                self.step(*event);
                self.await_change(reader);
            }
        }
    }

    /// Waits until the mount table is due to be read again.
    fn await_change(&mut self, reader: Reader) {
        let interval = self.settings.mount_check_interval;
        self.tasks.spawn(async move {
            match reader {
                Reader::Once => return Outcome::Cleared,
                Reader::Changes(mut changes) => match changes.changed().await {
                    Ok(()) => {
                        sleep(interval).await;
                        return Outcome::TableIsDue(Reader::Changes(changes));
                    }
                    Err(error) => tracing::warn!(
                        "changes of the mount table cannot be waited for, so it is polled: {error}"
                    ),
                },
                Reader::Poll => {}
            }
            sleep(POLL.max(interval)).await;
            Outcome::TableIsDue(Reader::Poll)
        });
    }

    /// Reads the mount table, again and again until it can be read.
    fn read_table(&mut self, reader: Reader) {
        let (since, mounts) = (self.node.epoch(), Arc::clone(&self.mounts));
        let wait = POLL.max(self.settings.mount_check_interval);
        self.tasks.spawn(async move {
            loop {
                match mounts.table().await {
                    Ok(table) => {
                        let event = Box::new(Event::MountsSeen { table, since });
                        return Outcome::TableRead { event, reader };
                    }
                    Err(error) => tracing::warn!("the mount table cannot be read: {}", chain(&error)),
                }
                sleep(wait).await;
            }
        });
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
