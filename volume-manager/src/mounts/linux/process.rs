//! Asking a probe process, with a deadline.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::super::Trouble;
use super::probe::{Answer, Request};
use super::reading::Reading;
use super::reaping::{Reaping, Walk, end_of};
use super::settings::{ProbeCommand, Settings};
use super::storage::Storage;
use super::turns::Turns;

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
            turns: Turns::new(settings.running),
            tables,
            reaping: Arc::new(Reaping::new(settings.hung)),
        }
    }

    /// How many processes were killed and have not ended.
    pub(super) fn hung(&self) -> usize {
        self.reaping.count()
    }

    pub(super) fn wrong(&self, reason: impl ToString) -> Trouble {
        Trouble::Probe { program: self.command.program.clone(), reason: reason.to_string() }
    }

    /// Has one request carried out. If this is dropped, the process is killed.
    pub(super) async fn ask(&self, request: &Request) -> Result<Answer, Trouble> {
        let walk = self.walk(request).await;
        self.reaping.admit(&walk)?;
        let patience = self.deadline.saturating_mul(Settings::DEADLINES_FOR_A_TURN);
        let Ok(_turn) = timeout(patience, self.turns.turn(&walk)).await else {
            return Err(Trouble::Crowded { path: walk.at().to_owned(), waited: patience });
        };
        // Another of the same path may have hung while this one waited.
        self.reaping.admit(&walk)?;
        let mut probe = self.start(request, walk).await?;
        match timeout(self.deadline, probe.answer()).await {
            Ok(Ok((Some(answer), _))) => {
                self.turns.clear(&probe.walk);
                Ok(answer)
            }
            Ok(Ok((None, status))) => Err(self.wrong(format!("it ended ({status}) and gave no answer"))),
            Ok(Err(error)) => Err(self.wrong(error)),
            Err(_) if *request == Request::Hello => Err(self.wrong("it does not answer")),
            Err(_) => {
                let path = probe.walk.at().to_owned();
                self.turns.suspect(&probe.walk);
                probe.end_now().await;
                Err(Trouble::Hung { path })
            }
        }
    }

    async fn walk(&self, request: &Request) -> Walk {
        let path = request.path().map(|path| path.as_path().to_owned());
        // Where the table is not known, only the paths tell what hangs together.
        let table = match path {
            Some(_) => self.tables.table().await.ok(),
            None => None,
        };
        let storage = table.as_ref().zip(path.as_ref()).and_then(|(table, path)| table.covering(path));
        Walk { storage: storage.map(Storage::of), path }
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
        match started.await {
            Ok(Ok(probe)) => Ok(probe),
            Ok(Err(error)) => Err(self.wrong(error)),
            Err(error) => Err(self.wrong(error)),
        }
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
