//! The event loop around the core: accepts requests, makes calls and runs timers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument;

use super::change::{ChangeKind, VolumeChange};
use super::connector::{Connection, DriverConnector};
use super::core::{Action, CommitFailure, Event, Node};
use super::settings::VolumeSettings;
use super::store_worker::{FinishedTask, StoreWorker, TaskKind};
use super::volumes::Command;
use super::{executor, metrics};
use crate::backoff::BackOff;
use crate::driver::{ConnectError, DriverPolicy};
use crate::excerpt::chain;
use crate::mounts::{MountChanges, Mounts};
use crate::registry::DriverEndpoint;

/// The interval of metrics updates.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);

/// The interval of mount table reads where change notifications are unavailable, and of retries.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The shortest and the longest delay before a reconnect. A connection that lasted longer resets the back-off.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The result of a background task.
enum Outcome {
    Event(Box<Event>),
    Done,
    Connected {
        name: DriverName,
        serial: u64,
        connection: Arc<dyn Connection>,
    },
    NotConnected {
        name: DriverName,
        serial: u64,
        error: ConnectError,
    },
    Closed {
        name: DriverName,
        serial: u64,
    },
    /// The mount table changed, and the minimum interval since the last read has elapsed.
    TableReadDue(ReadTrigger),
    TableRead {
        event: Box<Event>,
        trigger: ReadTrigger,
    },
}

/// The trigger of a mount table read, and of the read after it.
enum ReadTrigger {
    /// Change notifications.
    Changes(Box<dyn MountChanges>),
    /// Periodic reads, without change notifications.
    Poll,
    /// A request of the core.
    Once,
}

/// A registered driver.
struct Registered {
    /// The number of the registration, which a repeated registration of the driver replaces.
    serial: u64,
    registration: Arc<(DriverEndpoint, DriverPolicy)>,
    connection: Option<Arc<dyn Connection>>,
    /// The time of the last connection.
    since: Instant,
    /// The number of consecutive attempts that failed, or led to a short connection.
    failures: u8,
    /// The task that connects, or waits until the connection is closed.
    task: AbortHandle,
}

/// The event loop. Dropping it is equivalent to a crash: the volumes continue from disk.
pub(super) struct Run {
    pub(super) node: Node,
    pub(super) store: StoreWorker,
    pub(super) mounts: Arc<dyn Mounts>,
    pub(super) connector: Arc<dyn DriverConnector>,
    pub(super) settings: VolumeSettings,
    pub(super) changes: broadcast::Sender<VolumeChange>,
    drivers: BTreeMap<DriverName, Registered>,
    tasks: JoinSet<Outcome>,
    started: Instant,
    serial: u64,
}

impl Run {
    pub(super) fn new(
        node: Node,
        store: StoreWorker,
        mounts: Arc<dyn Mounts>,
        connector: Arc<dyn DriverConnector>,
        settings: VolumeSettings,
        changes: broadcast::Sender<VolumeChange>,
    ) -> Self {
        Self {
            node,
            store,
            mounts,
            connector,
            settings,
            changes,
            drivers: BTreeMap::new(),
            tasks: JoinSet::new(),
            started: Instant::now(),
            serial: 0,
        }
    }

    /// Runs until the last handle is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, opening: Vec<Action>) {
        metrics::describe();
        self.started = Instant::now();
        let mut next_metrics = self.started;
        self.perform(opening);
        match self.mounts.changes() {
            // A change between the opening and the subscription causes no notification.
            Ok(changes) => self.read_table(ReadTrigger::Changes(changes)),
            Err(error) => {
                tracing::warn!("cannot watch the mount table, polling: {error}");
                self.read_table(ReadTrigger::Poll);
            }
        }
        loop {
            let due = self.node.next_deadline().map(|at| self.started + at);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                done = self.store.done() => self.committed(done),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(outcome) => self.outcome(outcome),
                    Err(error) if error.is_cancelled() => {}
                    // The core would never receive the task's result. A panic is better than a hang.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = sleep_until_due(due) => self.step(Event::Tick),
            }
            if cfg!(feature = "metrics") && next_metrics <= Instant::now() {
                next_metrics = Instant::now() + METRICS_INTERVAL;
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
                    self.store.commit(changes);
                }
                Action::Reopen => self.store.reopen(),
                Action::Call(order) => self.call(order),
                Action::Check { slot, check } => {
                    let mounts = Arc::clone(&self.mounts);
                    self.spawn_event(async move {
                        Event::Checked { slot, observed: executor::check(check, &*mounts).await }
                    });
                }
                Action::RemoveEmpty(paths) => {
                    let mounts = Arc::clone(&self.mounts);
                    self.tasks.spawn(async move {
                        executor::remove_empty(paths, &*mounts).await;
                        Outcome::Done
                    });
                }
                Action::ReadTable => self.read_table(ReadTrigger::Once),
                Action::Answer(answer) => answer.deliver(),
                Action::Notify(change) => {
                    match &change.kind {
                        ChangeKind::State { from, time_in_state, .. } => {
                            metrics::time_in_state(*from, *time_in_state);
                            tracing::debug!("{change}");
                        }
                        ChangeKind::Failed(_) | ChangeKind::MountLost(_) => tracing::warn!("{change}"),
                        _ => tracing::info!("{change}"),
                    }
                    // There may be no watcher.
                    let _ = self.changes.send(change);
                }
            }
        }
    }

    fn spawn_event(&mut self, event: impl Future<Output = Event> + Send + 'static) {
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
            let result = executor::call(&order, connection, &*mounts).await;
            let code = match &result {
                Ok(_) => "OK".to_owned(),
                Err(error) => error.code().map_or_else(|| "none".to_owned(), |code| code.to_string()),
            };
            tracing::debug!(code, "call ended");
            metrics::call(key.driver.as_str(), rpc, code, began.elapsed());
            let slot = order.slot;
            let observed = executor::verify(order, &result, &*mounts).await;
            Event::CallEnded { slot, result, observed }
        };
        self.spawn_event(call.instrument(span));
    }

    fn committed(&mut self, done: FinishedTask) {
        let outcome = done.outcome.map_err(|error| CommitFailure::of(&error));
        match (done.kind, &outcome) {
            (_, Ok(())) => {}
            (TaskKind::Commit, Err(failure)) => tracing::error!("commit failed: {}", failure.reason),
            (TaskKind::Reopen, Err(failure)) => {
                tracing::warn!("cannot reopen the store: {}", failure.reason);
            }
        }
        match done.kind {
            TaskKind::Commit => {
                metrics::committed(outcome.is_ok(), done.took);
                self.step(Event::Committed(outcome));
            }
            TaskKind::Reopen => self.step(Event::Reopened(outcome.map_err(|failure| failure.reason))),
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
        let (serial, registration) = (self.serial, Arc::new((endpoint, policy.clone())));
        let task = self.connect(&name, serial, &registration, 0);
        let since = Instant::now();
        let registered = Registered { serial, registration, connection: None, since, failures: 0, task };
        self.drivers.insert(name.clone(), registered);
        self.step(Event::DriverRegistered { driver: name, policy });
    }

    fn deregister(&mut self, name: DriverName) {
        if let Some(driver) = self.drivers.remove(&name) {
            driver.task.abort();
            self.step(Event::DriverDeregistered(name));
        }
    }

    /// Connects to a driver once, after this number of failures.
    fn connect(
        &mut self,
        name: &DriverName,
        serial: u64,
        registration: &Arc<(DriverEndpoint, DriverPolicy)>,
        failures: u8,
    ) -> AbortHandle {
        let (name, registration, connector) =
            (name.clone(), Arc::clone(registration), Arc::clone(&self.connector));
        let seed = self.settings.jitter_seed;
        let back_off = BackOff::new(RECONNECT_DELAY.0, RECONNECT_DELAY.1);
        self.tasks.spawn(async move {
            if failures > 0 {
                sleep(back_off.wait(failures, seed ^ serial)).await;
            }
            match connector.connect(&name, &registration.0, &registration.1).await {
                Ok(connection) => Outcome::Connected { name, serial, connection },
                Err(error) => Outcome::NotConnected { name, serial, error },
            }
        })
    }

    /// Connects to a registered driver again. Without the back-off, a driver that accepts and closes connections would be
    /// dialed in a hot loop.
    fn reconnect(&mut self, name: &DriverName) {
        let Some(driver) = self.drivers.get(name) else { return };
        let (serial, registration, failures) =
            (driver.serial, Arc::clone(&driver.registration), driver.failures);
        let task = self.connect(name, serial, &registration, failures);
        if let Some(driver) = self.drivers.get_mut(name) {
            driver.task = task;
        }
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Event(event) => self.step(*event),
            Outcome::Done => {}
            Outcome::Connected { name, serial, connection } => {
                let Some(driver) = self.drivers.get_mut(&name).filter(|driver| driver.serial == serial)
                else {
                    return;
                };
                let (facts, ended) =
                    (Box::new(connection.facts().clone()), connection.earlier_processes_ended());
                driver.connection = Some(Arc::clone(&connection));
                driver.since = Instant::now();
                let closed = name.clone();
                driver.task = self.tasks.spawn(async move {
                    connection.closed().await;
                    Outcome::Closed { name: closed, serial }
                });
                tracing::info!(driver = %name, version = facts.vendor_version, "connected");
                self.step(Event::DriverConnected { facts, earlier_processes_ended: ended });
            }
            Outcome::NotConnected { name, serial, error } => {
                let Some(driver) = self.drivers.get_mut(&name).filter(|driver| driver.serial == serial)
                else {
                    return;
                };
                let error = chain(&error);
                tracing::warn!(driver = %name, "connection failed, retrying: {error}");
                driver.failures = driver.failures.saturating_add(1);
                self.reconnect(&name);
                self.step(Event::DriverUnreachable { driver: name, error });
            }
            Outcome::Closed { name, serial } => {
                let Some(driver) = self.drivers.get_mut(&name).filter(|driver| driver.serial == serial)
                else {
                    return;
                };
                tracing::warn!(driver = %name, "connection lost, reconnecting");
                driver.connection = None;
                let lasted = driver.since.elapsed() > RECONNECT_DELAY.1;
                driver.failures = if lasted { 0 } else { driver.failures.saturating_add(1) };
                self.reconnect(&name);
                self.step(Event::DriverDisconnected(name));
            }
            Outcome::TableReadDue(trigger) => self.read_table(trigger),
            Outcome::TableRead { event, trigger } => {
                self.step(*event);
                self.await_change(trigger);
            }
        }
    }

    /// Waits until the next read of the mount table is due.
    fn await_change(&mut self, trigger: ReadTrigger) {
        let interval = self.settings.mount_check_interval;
        self.tasks.spawn(async move {
            match trigger {
                ReadTrigger::Once => return Outcome::Done,
                ReadTrigger::Changes(mut changes) => match changes.changed().await {
                    Ok(()) => {
                        sleep(interval).await;
                        return Outcome::TableReadDue(ReadTrigger::Changes(changes));
                    }
                    Err(error) => tracing::warn!("cannot watch the mount table, polling: {error}"),
                },
                ReadTrigger::Poll => {}
            }
            sleep(POLL_INTERVAL.max(interval)).await;
            Outcome::TableReadDue(ReadTrigger::Poll)
        });
    }

    /// Reads the mount table, and retries until it can be read.
    fn read_table(&mut self, trigger: ReadTrigger) {
        let (since, mounts) = (self.node.epoch(), Arc::clone(&self.mounts));
        let wait = POLL_INTERVAL.max(self.settings.mount_check_interval);
        self.tasks.spawn(async move {
            loop {
                match mounts.table().await {
                    Ok(table) => {
                        let event = Box::new(Event::MountsSeen { table, since });
                        return Outcome::TableRead { event, trigger };
                    }
                    Err(error) => tracing::warn!("cannot read the mount table, retrying: {}", chain(&error)),
                }
                sleep(wait).await;
            }
        });
    }
}

async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
