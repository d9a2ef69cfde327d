//! Asking a probe process, with a deadline.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::super::Trouble;
use super::probe::{Answer, Request};
use super::reading::Reading;
use super::reaping::{Reaping, end_of};
use super::turns::{Storage, Turns, Walk};

/// How a probe process is started. The arguments of the [`probe`](super::probe) follow those that are given here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeCommand {
    /// The program. A relative path without a slash is searched for as a shell does.
    pub program: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<OsString>,
}

impl ProbeCommand {
    /// This program itself, whose `main` begins with [`serve_if_asked`](super::probe::serve_if_asked). It is the same
    /// program also after its file was replaced by an upgrade.
    ///
    /// Without that beginning of `main`, the whole program is started a second time, until the deadline ends it.
    #[must_use]
    pub fn own() -> Self {
        Self::new("/proc/self/exe")
    }

    /// Another program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new() }
    }

    /// With one more argument before those of the probe.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }
}

/// The bounds of the mounts of Linux.
#[allow(clippy::exhaustive_structs, reason = "written as a change of the default")]
#[derive(Debug, Clone)]
pub struct Settings {
    /// After what time an operation counts as hung. Default: 5 s, and then up to 0.2 s more for the process to end.
    ///
    /// The mount table has to be read within it too. So an answer of any kind comes within 6 deadlines and 0.2 s: one for
    /// the table, [`Self::DEADLINES_FOR_A_TURN`] for a turn, and one for the operation.
    pub deadline: Duration,
    /// How many operations run at the same time. Default: 16. More wait for a turn: on one
    /// storage (a device, or all shares of one server) run half of them at most, and on all those together that hung
    /// the last time a quarter.
    pub running_processes: usize,
    /// How many processes may be left behind that cannot be killed, since they hang deep in the kernel. Default: 64.
    /// One storage may have a quarter of them. On a path on which one hangs, nothing more is tried until it has ended.
    pub hung_processes: usize,
}

impl Settings {
    /// How many deadlines an operation waits for its turn before it is refused as crowded out.
    pub const DEADLINES_FOR_A_TURN: u32 = 4;
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), running_processes: 16, hung_processes: 64 }
    }
}

/// How long a process that was killed is waited for before it counts as one that cannot be killed.
const GRACE: Duration = Duration::from_millis(200);

/// How much later than its parent a probe gives itself up, so that it is the parent who decides.
const LATER: Duration = Duration::from_secs(1);

/// The probes of one node.
#[derive(Debug)]
pub(super) struct Probes {
    command: ProbeCommand,
    deadline: Duration,
    turns: Turns,
    tables: Arc<Reading>,
    reaping: Arc<Reaping>,
}

impl Probes {
    pub(super) fn new(command: ProbeCommand, settings: &Settings, tables: Arc<Reading>) -> Self {
        Self {
            command,
            deadline: settings.deadline,
            turns: Turns::new(settings.running_processes),
            tables,
            reaping: Arc::new(Reaping::new(settings.hung_processes)),
        }
    }

    /// How many processes were killed and have not ended.
    pub(super) fn hung(&self) -> usize {
        self.reaping.count()
    }

    pub(super) fn wrong(&self, source: io::Error) -> Trouble {
        Trouble::Probe { program: self.command.program.clone(), source }
    }

    /// Has one request carried out. If this is dropped, the process is killed.
    pub(super) async fn ask(&self, request: &Request) -> Result<Answer, Trouble> {
        let walk = self.walk(request).await;
        self.reaping.admit(&walk)?;
        let patience = self.deadline.saturating_mul(Settings::DEADLINES_FOR_A_TURN);
        let Ok(_turn) = timeout(patience, self.turns.turn(&walk)).await else {
            return Err(Trouble::Crowded { path: walk.path, waited: patience });
        };
        // Another of the same path may have hung while this one waited.
        self.reaping.admit(&walk)?;
        let mut probe = self.start(request, walk).await?;
        match timeout(self.deadline, probe.answer()).await {
            Ok(Ok((Some(answer), _))) => {
                self.turns.clear(&probe.walk);
                Ok(answer)
            }
            Ok(Ok((None, status))) => {
                Err(self.wrong(io::Error::other(format!("it ended ({status}) and gave no answer"))))
            }
            Ok(Err(error)) => Err(self.wrong(error)),
            Err(_) => {
                let path = probe.walk.path.clone();
                self.turns.suspect(&probe.walk);
                probe.end_now().await;
                Err(Trouble::Hung { path })
            }
        }
    }

    async fn walk(&self, request: &Request) -> Walk {
        let path = request.path().as_path().to_owned();
        // Where the table is not known, only the paths tell what hangs together.
        let table = self.tables.table().await.ok();
        let storage = table.and_then(|table| table.covering(&path).map(Storage::of));
        Walk { path, storage }
    }

    async fn start(&self, request: &Request, walk: Walk) -> Result<Probe, Trouble> {
        let mut command = Command::new(&self.command.program);
        command
            .args(&self.command.arguments)
            .args(request.encode(self.deadline.saturating_add(LATER)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let reaping = Arc::clone(&self.reaping);
        // The start of a process reads its program, which blocks.
        let started = tokio::task::spawn_blocking(move || {
            let child = command.spawn()?;
            Ok::<_, io::Error>(Probe { child: Some(child), walk, reaping })
        });
        started.await.unwrap_or_else(|error| Err(error.into())).map_err(|error| self.wrong(error))
    }
}

/// A process that runs. Dropped, it is killed, and its end is waited for elsewhere.
struct Probe {
    child: Option<Child>,
    walk: Walk,
    reaping: Arc<Reaping>,
}

impl Probe {
    /// What it printed, and how it ended.
    async fn answer(&mut self) -> io::Result<(Option<Answer>, ExitStatus)> {
        let child = self.child.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let end = end_of(child)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = read(&pipe::Receiver::from_owned_fd(OwnedFd::from(output))?).await?;
        // A process that is waited for without being ended blocks the thread.
        let _ = end.readable().await?;
        let status = child.wait()?;
        self.child = None;
        Ok((Answer::decode(&output), status))
    }

    /// Kills it, and waits a moment for its end.
    async fn end_now(&mut self) {
        let Some(child) = self.child.as_mut() else { return };
        let _ = child.kill();
        let Ok(end) = end_of(child) else { return };
        if timeout(GRACE, end.readable()).await.is_ok() && child.try_wait().is_ok_and(|ended| ended.is_some())
        {
            self.child = None;
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.reaping.take(child, self.walk.clone());
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
                return Err(io::Error::other(format!("it printed more than {bound} bytes")));
            }
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
