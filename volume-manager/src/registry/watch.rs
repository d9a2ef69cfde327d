//! The driver of the registry: reads the directory, makes the calls, hands over the events.

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

use super::core::{Action, Attempt, DriverEvent, Event, Generation, Registry, SocketFile, SocketName};
use crate::excerpt::chain;

/// How many events wait for their receiver. When so many do, the registry stands still until they are taken.
const WAITING_EVENTS: usize = Registry::MAX_SOCKETS;

/// How often the directory is read. Polling, since it misses nothing on any file system; a reading costs one system call for
/// each entry.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(10);

/// How long GetInfo may take.
const GET_INFO: Duration = Duration::from_secs(1);

/// How long NotifyRegistrationStatus may take.
const NOTIFY: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// The directory of the registration sockets cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("plugin registry directory {} cannot be used", path.display())]
#[non_exhaustive]
pub struct WatchError {
    /// The directory.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// Watches a directory for registration sockets, from now until the receiver is dropped.
///
/// The directory is made if it is not there. Each call watches for itself: two watches of one directory both register
/// its drivers, and confuse the registrars. At most 64 events wait to be received; meanwhile registration stands still. A
/// driver that comes or goes is noticed within 500 ms.
///
/// # Errors
/// If the directory cannot be made or read.
///
/// # Panics
/// Outside of a tokio runtime with its I/O and time drivers enabled.
pub fn watch(directory: impl Into<PathBuf>) -> Result<mpsc::Receiver<DriverEvent>, WatchError> {
    let path = directory.into();
    // A relative path would move with the process's working directory, and is no base for an endpoint.
    let prepared = std::path::absolute(&path).and_then(|absolute| {
        create_directory(&absolute)?;
        fs::read_dir(&absolute)?;
        Ok(absolute)
    });
    let path = prepared.map_err(|source| WatchError { path, source })?;
    let (events, receiver) = mpsc::channel(WAITING_EVENTS);
    tokio::spawn(Watch::new(path).run(events));
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
            Err(error) => Some(chain(error)),
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
                    let answer = get_info(&path).await;
                    let answer =
                        answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {}", chain(error)));
                    Event::Inspected { attempt, info: answer.ok() }
                });
            }
            Action::Notify { attempt, socket, verdict } => {
                let error = match verdict {
                    Ok(()) => String::new(),
                    Err(refusal) => {
                        tracing::warn!(%socket, "plugin refused: {}", chain(&refusal));
                        chain(&refusal)
                    }
                };
                let path = self.directory.join(&socket);
                self.begin(attempt, async move {
                    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
                    let answer = notify(&path, status).await;
                    let answer =
                        answer.inspect_err(|error| tracing::warn!(%socket, "registrar: {}", chain(error)));
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
    tokio::task::spawn_blocking(move || list(&directory))
}

/// The end of the reading that is under way; pending if there is none. Nothing is lost if it is dropped.
async fn ended(reading: &mut Option<Reading>) -> Result<Vec<SocketFile>, ListError> {
    let Some(handle) = reading else { return std::future::pending().await };
    let files = handle.await;
    *reading = None;
    files.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

/// The most entries that are read. More than this is no directory of registration sockets.
const MAX_ENTRIES: usize = 4096;

/// Why the sockets of a directory are not known.
#[derive(Debug, thiserror::Error)]
enum ListError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Sockets may be among the entries that were not read, so nothing can be said of any.
    #[error("more than {MAX_ENTRIES} entries; use a directory that holds nothing but registration sockets")]
    TooLarge,
}

/// Makes the directory, open to its owner and readable to the group as kubelet makes it, unless it is there.
fn create_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Every socket directly in the directory. A directory that is gone has none.
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
        // A link to a socket is no socket: its target could change without a trace here.
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if metadata.file_type().is_socket() {
            let modified_nanos =
                i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            sockets
                .push(SocketFile { name, generation: Generation { inode: metadata.ino(), modified_nanos } });
        }
    }
    Ok(sockets)
}

/// Why a registrar gave no answer. It is called twice in its life, so there is no pool and no reconnect: the connection ends
/// with the call.
#[derive(Debug, thiserror::Error)]
enum CallError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] grpc::ConnectError),
    /// Not in time.
    #[error("{call} took longer than {} s", bound.as_secs())]
    Late { call: &'static str, bound: Duration },
    /// Answered with an error, or not.
    #[error("{call} failed")]
    Call { call: &'static str, source: UnaryError },
}

/// Asks the registrar on a socket for its driver.
async fn get_info(path: &Path) -> Result<PluginInfo, CallError> {
    call_registrar(path, "GetInfo", GET_INFO, InfoRequest {}).await
}

/// Tells the registrar on a socket what became of its driver.
async fn notify(path: &Path, status: RegistrationStatus) -> Result<(), CallError> {
    let RegistrationStatusResponse {} =
        call_registrar(path, "NotifyRegistrationStatus", NOTIFY, status).await?;
    Ok(())
}

async fn call_registrar<Q: Message, A: Message + Default>(
    path: &Path,
    call: &'static str,
    bound: Duration,
    request: Q,
) -> Result<A, CallError> {
    let connection = Connection::open(path, Windows::AT_ONCE, DIAL).await?;
    let method = format!("/pluginregistration.Registration/{call}");
    let answer = timeout(bound, connection.unary(&method, request, bound, MAX_ANSWER)).await;
    answer.map_err(|_| CallError::Late { call, bound })?.map_err(|source| CallError::Call { call, source })
}
