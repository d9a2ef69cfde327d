//! Runs probe processes with a deadline.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::super::ProbeError;
use super::limits::{ProbeLimits, ProbeTarget, Storage};
use super::probe::{Answer, Request};
use super::reader::SharedReader;
use super::reaper::{ChildReaper, open_pidfd};

/// The command of the probe process, before the arguments of the [`probe`](super::probe). That of this program is returned
/// by [`serve_if_asked`](super::probe::serve_if_asked).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Whether this process has called `serve_if_asked`, so that a probe does so too.
    pub(super) is_served: bool,
}

impl ProbeCommand {
    /// The file of the program that this process executes.
    pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

    /// Returns the command of this program, which has called `serve_if_asked`.
    pub(super) fn own() -> Self {
        Self { is_served: true, ..Self::new(Self::OWN_PROGRAM) }
    }

    /// Returns the command of another program, which calls [`probe::serve`](super::probe::serve). A name without a slash is
    /// searched in `PATH`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), is_served: false }
    }

    /// Adds an argument before those of the probe.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }
}

/// The limits of [`LinuxMounts`](super::LinuxMounts).
#[allow(clippy::exhaustive_structs, reason = "constructed with struct update syntax")]
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// The time after which an operation counts as hung. Default: 5 s. The process then has up to 0.2 s to exit.
    ///
    /// The deadline also bounds the read of the mount table. Every call returns within 6 deadlines and 0.2 s: one
    /// for the table, [`Self::QUEUE_DEADLINES`] in the queue, and one for the operation.
    pub deadline: Duration,
    /// The maximum number of operations that run at the same time. Default: 16. Others are queued. One storage (a
    /// device, or all shares of one server) uses at most half of them, and all storages whose last operation hung
    /// together use a quarter.
    pub running_processes: usize,
    /// The maximum number of processes that hang in the kernel and cannot be killed. Default: 64. One storage may
    /// have a quarter of them. While a process hangs on a path, no other operation is started on that path.
    pub hung_processes: usize,
}

impl MountSettings {
    /// The number of deadlines that an operation may be queued before it fails with [`ProbeError::Overloaded`].
    pub const QUEUE_DEADLINES: u32 = 4;
}

impl Default for MountSettings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), running_processes: 16, hung_processes: 64 }
    }
}

/// How long a killed process may take to exit before it counts as hung in the kernel.
const KILL_GRACE: Duration = Duration::from_millis(200);

/// How much later than its parent's timeout a probe exits by itself, so that the parent's timeout comes first.
const PROBE_EXTRA: Duration = Duration::from_secs(1);

/// Runs the probes of a node.
#[derive(Debug)]
pub(super) struct Probes {
    command: ProbeCommand,
    deadline: Duration,
    limits: ProbeLimits,
    tables: Arc<SharedReader>,
    reaper: Arc<ChildReaper>,
}

impl Probes {
    pub(super) fn new(command: ProbeCommand, settings: &MountSettings, tables: Arc<SharedReader>) -> Self {
        Self {
            command,
            deadline: settings.deadline,
            limits: ProbeLimits::new(settings.running_processes),
            tables,
            reaper: Arc::new(ChildReaper::new(settings.hung_processes)),
        }
    }

    /// The number of killed processes that have not exited.
    pub(super) fn hung(&self) -> usize {
        self.reaper.count()
    }

    pub(super) fn broken(&self, source: io::Error) -> ProbeError {
        ProbeError::Broken { program: self.command.program.clone(), source }
    }

    /// Executes a request in a probe process. If the future is dropped, the process is killed.
    pub(super) async fn run(&self, request: &Request) -> Result<Answer, ProbeError> {
        let target = self.target(request).await;
        self.reaper.admit(&target)?;
        let queue_timeout = self.deadline.saturating_mul(MountSettings::QUEUE_DEADLINES);
        let Ok(_permit) = timeout(queue_timeout, self.limits.acquire(&target)).await else {
            return Err(ProbeError::Overloaded { path: target.path, waited: queue_timeout });
        };
        // Another operation on this path may have hung meanwhile.
        self.reaper.admit(&target)?;
        let mut probe = self.start(request, target).await?;
        match timeout(self.deadline, probe.answer()).await {
            Ok(Ok((Some(answer), _))) => {
                self.limits.unmark_suspect(&probe.target);
                Ok(answer)
            }
            Ok(Ok((None, status))) => {
                Err(self.broken(io::Error::other(format!("the process exited ({status}) without an answer"))))
            }
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => {
                let path = probe.target.path.clone();
                self.limits.mark_suspect(&probe.target);
                probe.kill().await;
                Err(ProbeError::Hung { path })
            }
        }
    }

    async fn target(&self, request: &Request) -> ProbeTarget {
        let path = request.path().as_path().to_owned();
        // If the table cannot be read, the storage is unknown.
        let table = self.tables.table().await.ok();
        let storage = table.and_then(|table| table.covering(&path).map(Storage::of));
        ProbeTarget { path, storage }
    }

    async fn start(&self, request: &Request, target: ProbeTarget) -> Result<Probe, ProbeError> {
        let mut command = Command::new(&self.command.program);
        command
            .args(&self.command.arguments)
            .args(request.encode(self.deadline.saturating_add(PROBE_EXTRA)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let reaper = Arc::clone(&self.reaper);
        // Starting a process reads its program file, which blocks.
        let started = tokio::task::spawn_blocking(move || {
            let child = command.spawn()?;
            Ok::<_, io::Error>(Probe { child: Some(child), target, reaper })
        });
        started.await.unwrap_or_else(|error| Err(error.into())).map_err(|error| self.broken(error))
    }
}

/// A running probe process. On drop it is killed, and reaped in the background.
struct Probe {
    child: Option<Child>,
    target: ProbeTarget,
    reaper: Arc<ChildReaper>,
}

impl Probe {
    /// Waits for the output and the exit status.
    async fn answer(&mut self) -> io::Result<(Option<Answer>, ExitStatus)> {
        let child = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let end = open_pidfd(child)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = read(&pipe::Receiver::from_owned_fd(OwnedFd::from(output))?).await?;
        // `wait` blocks the thread until the process has exited.
        let _ = end.readable().await?;
        let status = child.wait()?;
        self.child = None;
        Ok((Answer::decode(&output), status))
    }

    /// Kills the process and waits up to [`KILL_GRACE`] for its exit.
    async fn kill(&mut self) {
        let Some(child) = self.child.as_mut() else { return };
        let _ = child.kill();
        let Ok(end) = open_pidfd(child) else { return };
        if timeout(KILL_GRACE, end.readable()).await.is_ok()
            && child.try_wait().is_ok_and(|ended| ended.is_some())
        {
            self.child = None;
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.reaper.reap(child, self.target.clone());
        }
    }
}

async fn read(output: &pipe::Receiver) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        output.readable().await?;
        match output.try_read(&mut buffer) {
            Ok(0) => return Ok(read),
            Ok(count) if read.len() + count > Answer::MAX_OUTPUT => {
                let bound = Answer::MAX_OUTPUT;
                return Err(io::Error::other(format!("the process printed more than {bound} bytes")));
            }
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
