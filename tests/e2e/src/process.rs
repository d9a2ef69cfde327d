//! A child process with its log, which cannot outlive us.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edge_csi_tests::wait;
use rustix::process::{Pid, Signal, kill_process};

use super::error::RealError;

/// Time for a process to come up.
const START: Duration = Duration::from_secs(20);

/// Time for a process to end after SIGTERM.
const STOP: Duration = Duration::from_secs(15);

/// Lines of a log that an error shows.
const TAIL: usize = 15;

/// A running component.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program`; what it prints goes to `<logs>/<name>.log`.
    pub(crate) fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        logs: &Path,
    ) -> Result<Self, RealError> {
        Self::spawn(name, Command::new(program).args(arguments), logs)
    }

    /// Starts a command; what it prints goes to `<logs>/<name>.log`.
    pub(crate) fn spawn(name: &str, command: &mut Command, logs: &Path) -> Result<Self, RealError> {
        let log = logs.join(format!("{name}.log"));
        let emptied = File::create(&log);
        emptied.map_err(|cause| RealError::File { path: log, cause })?;
        Self::respawn(name, command, logs)
    }

    /// The same, with the log of the process that it follows going on.
    pub(crate) fn respawn(name: &str, command: &mut Command, logs: &Path) -> Result<Self, RealError> {
        let log = logs.join(format!("{name}.log"));
        let file = |cause| RealError::File { path: log.clone(), cause };
        let out = File::options().create(true).append(true).open(&log).map_err(file)?;
        let err = out.try_clone().map_err(file)?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|cause| {
            RealError::Missing {
                program: command.get_program().to_string_lossy().into_owned(),
                cause,
                fix: "the build, or `.ci/run tools`, should have made it",
            }
        })?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Waits until `reached`, which `waited_for` names.
    pub(crate) fn ready(
        &mut self,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), RealError> {
        self.ready_within(START, waited_for, reached)
    }

    /// Waits so long until `reached`, which `waited_for` names.
    pub(crate) fn ready_within(
        &mut self,
        bound: Duration,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), RealError> {
        let ended = wait::poll(bound, || match self.child.try_wait() {
            Ok(Some(status)) => Some(Err(status.to_string())),
            Err(cause) => Some(Err(cause.to_string())),
            Ok(None) => reached().then_some(Ok(())),
        });
        match ended {
            Some(Ok(())) => Ok(()),
            Some(Err(status)) => {
                let tail = self.tail();
                let (process, log) = (self.name.clone(), self.log.clone());
                Err(RealError::Ended { process, waited_for, status, log, tail })
            }
            None => Err(self.late(waited_for, bound)),
        }
    }

    /// Waits at most `bound` for the process to end by itself; whether it says that all is well.
    pub(crate) fn finish(&mut self, bound: Duration) -> Result<bool, RealError> {
        match self.ended_within(bound) {
            Some(status) => Ok(status.success()),
            None => Err(self.late("its end", bound)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// All that it has printed.
    pub(crate) fn printed(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Stops the process where it is, as long as it is not told to go on.
    pub(crate) fn freeze(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
    }

    /// Whether it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the process to stop.
    pub(crate) fn terminate(&self) {
        // A process that is gone already shows in its status.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Asks the process to stop, and expects exit code zero.
    pub(crate) fn stop(mut self) -> Result<(), RealError> {
        self.terminate();
        let status = match self.ended_within(STOP) {
            Some(status) if status.success() => return Ok(()),
            Some(status) => status.to_string(),
            None => format!("still there after {} s", STOP.as_secs()),
        };
        let tail = self.tail();
        Err(RealError::BadStop { process: self.name.clone(), status, log: self.log.clone(), tail })
    }

    /// The last lines that the process printed.
    pub(crate) fn tail(&self) -> String {
        tail_of(&self.log)
    }

    /// What it printed from its panic on, or else the last lines.
    pub(crate) fn reason(&self) -> String {
        let text = self.printed();
        match text.lines().position(|line| line.contains("panicked at")) {
            Some(first) => text.lines().skip(first).take(TAIL).collect::<Vec<_>>().join("\n"),
            None => self.tail(),
        }
    }

    fn late(&self, waited_for: &'static str, bound: Duration) -> RealError {
        RealError::NotInTime {
            process: self.name.clone(),
            waited_for,
            bound,
            log: self.log.clone(),
            tail: self.tail(),
        }
    }

    fn ended_within(&mut self, bound: Duration) -> Option<std::process::ExitStatus> {
        wait::poll(bound, || self.child.try_wait().ok().flatten())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a file, as far as it can be read.
fn tail_of(path: &Path) -> String {
    let text =
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n")
}
