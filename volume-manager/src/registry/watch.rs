//! The driver of the registry: reads the directory, makes the calls, hands over the events.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::pluginregistration::v1::RegistrationStatus;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::connection;
use super::core::{Action, Attempt, Event, Registry, SocketFile};
use super::directory::{self, ListError};
use super::event::DriverEvent;

/// How many events wait for their receiver. When so many do, the registry stands still until they are taken.
const WAITING_EVENTS: usize = Registry::MAX_SOCKETS;

/// What can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    poll_interval: Duration,
}

impl Settings {
    /// The shortest interval between two readings of the directory.
    pub const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

    /// The longest interval between two readings of the directory.
    pub const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

    /// How often the directory is read. Default: 500 ms.
    ///
    /// A driver that comes or goes is noticed within this time. Polling, since it misses nothing on any file system;
    /// a reading costs one system call for each entry.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { poll_interval: Duration::from_millis(500) }
    }
}

/// Why a directory is not watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The directory cannot be made or read.
    #[error("plugin registry directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The interval is out of bounds.
    #[error(
        "poll interval {found:?}: at least {:?} and at most {:?} are allowed",
        Settings::MIN_POLL_INTERVAL,
        Settings::MAX_POLL_INTERVAL
    )]
    PollInterval {
        /// The interval that was set.
        found: Duration,
    },
}

/// Watches a directory for registration sockets, from now until the receiver is dropped.
///
/// The directory is made if it is not there. Each call watches for itself: two watches of one directory both register
/// its drivers, and confuse the registrars. At most 64 events wait to be received; meanwhile registration stands still.
///
/// # Errors
/// If the directory cannot be made or read, or a setting is out of bounds.
///
/// # Panics
/// Outside of a tokio runtime with its I/O and time drivers enabled.
pub fn watch(
    directory: impl Into<PathBuf>,
    settings: Settings,
) -> Result<mpsc::Receiver<DriverEvent>, WatchError> {
    let path = directory.into();
    let found = settings.poll_interval;
    if !(Settings::MIN_POLL_INTERVAL..=Settings::MAX_POLL_INTERVAL).contains(&found) {
        return Err(WatchError::PollInterval { found });
    }
    // A relative path would move with the process's working directory, and is no base for an endpoint.
    let prepared = std::path::absolute(&path).and_then(|absolute| {
        directory::create(&absolute)?;
        std::fs::read_dir(&absolute)?;
        Ok(absolute)
    });
    let path = prepared.map_err(|source| WatchError::Directory { path, source })?;
    let (events, receiver) = mpsc::channel(WAITING_EVENTS);
    tokio::spawn(Watch::new(path).run(events, found));
    Ok(receiver)
}

/// The calls that are under way, and what was last said of the directory.
struct Watch {
    directory: PathBuf,
    registry: Registry,
    started: Instant,
    calls: JoinSet<Event>,
    abort: BTreeMap<Attempt, AbortHandle>,
    trouble: Option<String>,
}

impl Watch {
    fn new(directory: PathBuf) -> Self {
        Self {
            registry: Registry::new(&directory),
            directory,
            started: Instant::now(),
            calls: JoinSet::new(),
            abort: BTreeMap::new(),
            trouble: None,
        }
    }

    /// Runs until nobody receives the events. Calls that are under way then end with it.
    async fn run(mut self, events: mpsc::Sender<DriverEvent>, poll_interval: Duration) {
        let mut polls = interval(poll_interval);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reading = None;
        loop {
            let event = tokio::select! {
                () = events.closed() => return,
                Some(ended) = self.calls.join_next() => match ended {
                    Ok(event) => event,
                    Err(error) if error.is_cancelled() => continue,
                    // The call would never be answered to the core: better to end loudly than to hang.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                _ = polls.tick(), if reading.is_none() => {
                    reading = Some(read(&self.directory));
                    continue;
                }
                files = ended(&mut reading) => match self.noted(files) {
                    Some(files) => Event::Listed(files),
                    None => continue,
                },
            };
            if let Event::Inspected { attempt, .. } | Event::Notified { attempt, .. } = &event {
                self.abort.remove(attempt);
            }
            for action in self.registry.step(event, self.started.elapsed()) {
                if let Action::Tell(event) = action {
                    tracing::info!(?event, "plugin registry");
                    if events.send(event).await.is_err() {
                        return;
                    }
                } else {
                    self.act(action);
                }
            }
        }
    }

    /// Logs what is new of the directory's state, once for each change.
    fn noted(&mut self, files: Result<Vec<SocketFile>, ListError>) -> Option<Vec<SocketFile>> {
        let untracked = self.registry.untracked();
        let trouble = match &files {
            Err(error) => Some(error.to_string()),
            Ok(_) if untracked > 0 => {
                Some(format!("{untracked} sockets wait, because {} others are open", Registry::MAX_SOCKETS))
            }
            Ok(_) => None,
        };
        if trouble != self.trouble {
            let directory = self.directory.display();
            match &trouble {
                Some(trouble) => tracing::warn!(%directory, "plugin registry directory: {trouble}"),
                None => tracing::info!(%directory, "plugin registry directory is in order again"),
            }
            self.trouble = trouble;
        }
        files.ok()
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Inspect { attempt, socket } => {
                let path = self.directory.join(&socket);
                self.begin(attempt, async move {
                    let answer = connection::get_info(&path).await;
                    let answer = answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {error}"));
                    Event::Inspected { attempt, info: answer.ok() }
                });
            }
            Action::Notify { attempt, socket, verdict } => {
                let error = match verdict {
                    Ok(()) => String::new(),
                    Err(refusal) => {
                        tracing::warn!(%socket, "plugin refused: {refusal}");
                        refusal.to_string()
                    }
                };
                let path = self.directory.join(&socket);
                self.begin(attempt, async move {
                    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
                    let answer = connection::notify(&path, status).await;
                    let answer = answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {error}"));
                    Event::Notified { attempt, delivered: answer.is_ok() }
                });
            }
            Action::Ignored { socket, found } => {
                tracing::debug!(%socket, r#type = found, "a plugin of another type is left alone");
            }
            Action::Abandon(attempt) => {
                if let Some(call) = self.abort.remove(&attempt) {
                    call.abort();
                }
            }
            // Told by the caller, who can wait for the receiver.
            Action::Tell(_) => {}
        }
    }

    fn begin(&mut self, attempt: Attempt, call: impl Future<Output = Event> + Send + 'static) {
        self.abort.insert(attempt, self.calls.spawn(call));
    }
}

/// A reading of the directory, on a thread where it may block.
type Reading = JoinHandle<Result<Vec<SocketFile>, ListError>>;

fn read(directory: &Path) -> Reading {
    let directory = directory.to_owned();
    tokio::task::spawn_blocking(move || directory::list(&directory))
}

/// The end of the reading that is under way; pending if there is none. Nothing is lost if it is dropped.
async fn ended(reading: &mut Option<Reading>) -> Result<Vec<SocketFile>, ListError> {
    let Some(handle) = reading else { return std::future::pending().await };
    let files = handle.await;
    *reading = None;
    files.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}
