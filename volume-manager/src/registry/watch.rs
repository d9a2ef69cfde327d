//! Runs the registry: polls the directory, calls the registrars, and sends the events.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::grpc::{self, Connection, UnaryError, Windows};
use csi_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::core::{Action, Attempt, DriverEvent, Event, Registry, SocketFile, SocketIdentity, SocketName};
use crate::excerpt::chain;

/// The capacity of the event channel. When it is full, the registry pauses until events are received.
const EVENT_CAPACITY: usize = Registry::MAX_SOCKETS;

/// The poll interval of the directory. Polling is reliable on any file system; it costs one system call per entry.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The timeout of a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of GetInfo.
const GET_INFO_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout of NotifyRegistrationStatus.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of an answer in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// The directory of the registration sockets cannot be created or read.
#[derive(Debug, thiserror::Error)]
#[error("plugin registry directory {} cannot be used", path.display())]
#[non_exhaustive]
pub struct WatchError {
    /// The directory.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Watches a directory for registration sockets until the receiver is dropped.
///
/// The directory is created if it is missing. Watches are independent: two watches of one directory would both register its
/// drivers, and confuse the registrars. At most 64 events are queued; when the queue is full, registration pauses. A new or
/// removed socket is noticed within 500 ms.
///
/// # Errors
/// If the directory cannot be created or read.
///
/// # Panics
/// Outside of a tokio runtime with its I/O and time drivers enabled.
pub fn watch(directory: impl Into<PathBuf>) -> Result<mpsc::Receiver<DriverEvent>, WatchError> {
    let path = directory.into();
    // A relative path depends on the working directory, and an endpoint needs an absolute one.
    let prepared = std::path::absolute(&path).and_then(|absolute| {
        create_directory(&absolute)?;
        fs::read_dir(&absolute)?;
        Ok(absolute)
    });
    let path = prepared.map_err(|source| WatchError { path, source })?;
    let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
    tokio::spawn(Watch::new(path).run(events));
    Ok(receiver)
}

/// A registry with its running calls, and the last logged problem of the directory.
struct Watch {
    directory: PathBuf,
    registry: Registry,
    started: Instant,
    calls: JoinSet<Event>,
    abort: BTreeMap<Attempt, AbortHandle>,
    problem: Option<String>,
}

impl Watch {
    fn new(directory: PathBuf) -> Self {
        Self {
            registry: Registry::new(&directory),
            directory,
            started: Instant::now(),
            calls: JoinSet::new(),
            abort: BTreeMap::new(),
            problem: None,
        }
    }

    /// Runs until the receiver is dropped. Running calls are then aborted.
    async fn run(mut self, events: mpsc::Sender<DriverEvent>) {
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reading = None;
        loop {
            let event = tokio::select! {
                () = events.closed() => return,
                Some(ended) = self.calls.join_next() => match ended {
                    Ok(event) => event,
                    Err(error) if error.is_cancelled() => continue,
                    // The core would wait forever for the event of a call that panicked, so propagate the panic.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                _ = polls.tick(), if reading.is_none() => {
                    reading = Some(read(&self.directory));
                    continue;
                }
                files = finished(&mut reading) => match self.log_changes(files) {
                    Some(files) => Event::Listed(files),
                    None => continue,
                },
            };
            if let Event::Inspected { attempt, .. } | Event::Notified { attempt, .. } = &event {
                self.abort.remove(attempt);
            }
            for action in self.registry.step(event, self.started.elapsed()) {
                if let Action::Emit(event) = action {
                    tracing::info!(?event, "plugin registry");
                    if events.send(event).await.is_err() {
                        return;
                    }
                } else {
                    self.execute(action);
                }
            }
        }
    }

    /// Logs each change of the directory's state once.
    fn log_changes(&mut self, files: Result<Vec<SocketFile>, ListError>) -> Option<Vec<SocketFile>> {
        let untracked = self.registry.untracked();
        let problem = match &files {
            Err(error) => Some(chain(error)),
            Ok(_) if untracked > 0 => Some(format!(
                "{untracked} sockets are ignored; at most {} are supported",
                Registry::MAX_SOCKETS
            )),
            Ok(_) => None,
        };
        if problem != self.problem {
            let directory = self.directory.display();
            match &problem {
                Some(problem) => tracing::warn!(%directory, "plugin registry directory: {problem}"),
                None => tracing::info!(%directory, "plugin registry directory recovered"),
            }
            self.problem = problem;
        }
        files.ok()
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Inspect { attempt, socket } => {
                let path = self.directory.join(&socket);
                self.spawn(attempt, async move {
                    let answer = get_info(&path).await;
                    let answer =
                        answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {}", chain(error)));
                    Event::Inspected { attempt, info: answer.ok() }
                });
            }
            Action::Notify { attempt, socket, result } => {
                let error = match result {
                    Ok(()) => String::new(),
                    Err(reason) => {
                        tracing::warn!(%socket, "plugin rejected: {}", chain(&reason));
                        chain(&reason)
                    }
                };
                let path = self.directory.join(&socket);
                self.spawn(attempt, async move {
                    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
                    let answer = notify(&path, status).await;
                    let answer =
                        answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {}", chain(error)));
                    Event::Notified { attempt, delivered: answer.is_ok() }
                });
            }
            Action::Ignored { socket, found } => {
                tracing::debug!(%socket, r#type = found, "ignoring plugin of another type");
            }
            Action::Abandon(attempt) => {
                if let Some(call) = self.abort.remove(&attempt) {
                    call.abort();
                }
            }
            // Sent by the caller, which can wait for capacity.
            Action::Emit(_) => {}
        }
    }

    fn spawn(&mut self, attempt: Attempt, call: impl Future<Output = Event> + Send + 'static) {
        self.abort.insert(attempt, self.calls.spawn(call));
    }
}

/// A read of the directory, on a blocking thread.
type Reading = JoinHandle<Result<Vec<SocketFile>, ListError>>;

fn read(directory: &Path) -> Reading {
    let directory = directory.to_owned();
    tokio::task::spawn_blocking(move || list(&directory))
}

/// Waits for the running read; pending if there is none. Cancel safe.
async fn finished(reading: &mut Option<Reading>) -> Result<Vec<SocketFile>, ListError> {
    let Some(handle) = reading else { return std::future::pending().await };
    let files = handle.await;
    *reading = None;
    files.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

/// The maximum number of directory entries that are read.
const MAX_ENTRIES: usize = 4096;

/// Why the directory could not be listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The listing would be incomplete, and a missing socket would appear as removed.
    #[error("more than {MAX_ENTRIES} entries; use a directory for registration sockets only")]
    TooLarge,
}

/// Creates the directory with kubelet's mode 0750, unless it exists.
fn create_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Lists the sockets directly in the directory. A missing directory has none.
fn list(directory: &Path) -> Result<Vec<SocketFile>, ListError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut sockets = Vec::new();
    for (index, entry) in entries.enumerate() {
        if index == MAX_ENTRIES {
            return Err(ListError::TooLarge);
        }
        let entry = entry?;
        let Some(name) = SocketName::new(entry.file_name()) else { continue };
        // Symbolic links are ignored: a change of the target would go unnoticed.
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if metadata.file_type().is_socket() {
            let modified_nanos =
                i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            sockets.push(SocketFile {
                name,
                identity: SocketIdentity { inode: metadata.ino(), modified_nanos },
            });
        }
    }
    Ok(sockets)
}

/// Why a call to a registrar failed. Each registrar is called twice, so every call has its own connection.
#[derive(Debug, thiserror::Error)]
enum CallError {
    /// The socket could not be dialled.
    #[error(transparent)]
    Connect(#[from] grpc::ConnectError),
    /// The deadline was exceeded.
    #[error("{call} took longer than {} s", bound.as_secs())]
    Timeout { call: &'static str, bound: Duration },
    /// The registrar answered with an error, or the connection broke.
    #[error("{call} failed")]
    Call { call: &'static str, source: UnaryError },
}

/// Calls GetInfo on a registrar's socket.
async fn get_info(path: &Path) -> Result<PluginInfo, CallError> {
    call_registrar(path, "GetInfo", GET_INFO_TIMEOUT, InfoRequest {}).await
}

/// Calls NotifyRegistrationStatus on a registrar's socket.
async fn notify(path: &Path, status: RegistrationStatus) -> Result<(), CallError> {
    let RegistrationStatusResponse {} =
        call_registrar(path, "NotifyRegistrationStatus", NOTIFY_TIMEOUT, status).await?;
    Ok(())
}

async fn call_registrar<Q: Message, A: Message + Default>(
    path: &Path,
    call: &'static str,
    bound: Duration,
    request: Q,
) -> Result<A, CallError> {
    let connection = Connection::open(path, Windows::UNARY, DIAL_TIMEOUT).await?;
    let method = format!("/pluginregistration.Registration/{call}");
    let answer = timeout(bound, connection.unary(&method, request, bound, MAX_ANSWER)).await;
    answer.map_err(|_| CallError::Timeout { call, bound })?.map_err(|source| CallError::Call { call, source })
}
