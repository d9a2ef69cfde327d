//! A process that cannot outlive the test, with its log.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{binaries, wait};

/// The maximum time from SIGTERM to the end of a process.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// The kernel's unit of processor time (USER_HZ, proc(5)).
const TICK: Duration = Duration::from_millis(10);

/// The number of a log's last lines that an error shows.
const TAIL: usize = 15;

/// Variables that would change what the reference binaries do, and are removed from the environment.
const REMOVED_VARIABLES: [&str; 5] =
    ["RUST_LOG", "CSI_ENDPOINT", "CSI_DRIVERNAME", "KUBEEDGE_ENDPOINT", "KUBE_NODE_NAME"];

/// The text of every Rust panic.
const PANIC: &str = "panicked at";

/// The failure of a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ProcessError {
    #[error("cannot write the log {path}: {cause}", path = path.display())]
    Log { path: PathBuf, cause: io::Error },
    #[error("cannot run {program}: {cause}; build the workspace, or run `.ci/run tools`")]
    Missing { program: String, cause: io::Error },
    #[error("{process} ended before {waited_for} ({status}); the end of {log}:\n{tail}", log = log.display())]
    Ended { process: String, waited_for: &'static str, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{process} did not reach {waited_for} within {seconds} s; the end of {log}:\n{tail}", seconds = bound.as_secs(), log = log.display())]
    NotInTime { process: String, waited_for: &'static str, bound: Duration, log: PathBuf, tail: String },
    #[error("{process} did not end with code zero after SIGTERM ({status}); the end of {log}:\n{tail}", log = log.display())]
    BadStop { process: String, status: ExitStatus, log: PathBuf, tail: String },
}

/// A running process, which is killed when dropped.
///
/// On drop, a process of [`start`](Self::start), [`start_with`](Self::start_with), [`start_after`](Self::start_after)
/// or [`searched`](Self::searched) prints its log if the test is failing, and otherwise fails the test if the log has a
/// panic. For other processes the caller searches the logs.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// The open log, which is searched on drop even if its path was removed.
    searched: Option<File>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts the reference binary `binary`, or a program by its absolute path. Its output is appended to
    /// `DIRECTORY/NAME.log`.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start<A: AsRef<OsStr>>(
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self::start_with(directory, name, binary, arguments, &[])
    }

    /// Starts a process as [`start`](Self::start) does, with these variables in its environment.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start_with<A: AsRef<OsStr>>(
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_after(&[], directory, name, binary, arguments, environment)
    }

    /// Starts a process as [`start_with`](Self::start_with) does, through the command `before`, such as one that enters
    /// a network namespace.
    ///
    /// # Panics
    /// If the process cannot be started.
    #[must_use]
    pub fn start_after<A: AsRef<OsStr>>(
        before: &[&str],
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &str)],
    ) -> Self {
        let binary = match Path::new(binary) {
            path if path.is_absolute() => path.to_owned(),
            _ => binaries::path(binary),
        };
        let mut command = match before {
            [] => Command::new(binary),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(binary);
                command
            }
        };
        command.args(arguments).envs(environment.iter().copied());
        let started = Self::respawn(directory, name, &mut command);
        started.and_then(Self::searched).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Makes the drop print the log if the test fails, and otherwise fail the test if the log has a panic.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn searched(mut self) -> Result<Self, ProcessError> {
        let log = File::open(&self.log);
        self.searched = Some(log.map_err(|cause| ProcessError::Log { path: self.log.clone(), cause })?);
        Ok(self)
    }

    /// Starts `command`. Its output is written to `DIRECTORY/NAME.log`, which is emptied first.
    ///
    /// # Errors
    /// If the log cannot be written or the program not be started.
    pub fn spawn(directory: &Path, name: &str, command: &mut Command) -> Result<Self, ProcessError> {
        let log = directory.join(format!("{name}.log"));
        File::create(&log).map_err(|cause| ProcessError::Log { path: log, cause })?;
        Self::respawn(directory, name, command)
    }

    /// Starts a process as [`spawn`](Self::spawn) does, but appends to the log of the previous process.
    ///
    /// # Errors
    /// If the log cannot be written or the program not be started.
    pub fn respawn(directory: &Path, name: &str, command: &mut Command) -> Result<Self, ProcessError> {
        let log = directory.join(format!("{name}.log"));
        let failed = |cause| ProcessError::Log { path: log.clone(), cause };
        // The developer's environment must not change what the tests observe. A value that `command` sets stays.
        for variable in REMOVED_VARIABLES {
            if command.get_envs().all(|(name, _)| name != variable) {
                command.env_remove(variable);
            }
        }
        let out = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|cause| {
            let program = command.get_program().to_string_lossy().into_owned();
            ProcessError::Missing { program, cause }
        })?;
        Ok(Self { name: name.to_owned(), child, log, searched: None, ended: None })
    }

    /// Returns the name of the process, which is also the name of its log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the output of the process so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Returns the last 15 lines of the log.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n")
    }

    /// Returns 15 lines of the log: from its first panic on, or the last ones if there is no panic.
    #[must_use]
    pub fn reason(&self) -> String {
        let log = self.log();
        match log.lines().position(|line| line.contains(PANIC)) {
            Some(first) => log.lines().skip(first).take(TAIL).collect::<Vec<_>>().join("\n"),
            None => self.tail(),
        }
    }

    /// Waits until the log holds `text`.
    ///
    /// # Panics
    /// If the text does not appear within [`wait::SOON`].
    pub async fn logged(&self, text: &str) {
        wait::until(&format!("{} logs {text:?}", self.name), async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    /// Blocks until `reached` returns true. Errors describe that condition with `waited_for`.
    ///
    /// # Errors
    /// If the process ends before, or the condition is not reached within [`wait::SOON`].
    pub fn ready(
        &mut self,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), ProcessError> {
        self.ready_within(wait::SOON, waited_for, reached)
    }

    /// Blocks until `reached` returns true, for at most `bound`. Errors describe that condition with `waited_for`.
    ///
    /// # Errors
    /// If the process ends before, or the condition is not reached within `bound`.
    pub fn ready_within(
        &mut self,
        bound: Duration,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), ProcessError> {
        let result = wait::poll(bound, || match self.status() {
            Some(status) => Some(Err(self.ended_before(waited_for, status))),
            None => reached().then_some(Ok(())),
        });
        result.unwrap_or_else(|| Err(self.late(waited_for, bound)))
    }

    /// Waits as [`ready`](Self::ready) does, on a tokio runtime, without blocking the thread.
    ///
    /// # Errors
    /// If the process ends before, or the condition is not reached within [`wait::SOON`].
    pub async fn reached(
        &mut self,
        waited_for: &'static str,
        reached: impl AsyncFn() -> bool,
    ) -> Result<(), ProcessError> {
        let result = wait::try_until(wait::SOON, async || match self.status() {
            Some(status) => Some(Err(self.ended_before(waited_for, status))),
            None => reached().await.then_some(Ok(())),
        });
        match result.await {
            Some(result) => result,
            None => Err(self.late(waited_for, wait::SOON)),
        }
    }

    fn ended_before(&self, waited_for: &'static str, status: ExitStatus) -> ProcessError {
        let (process, log, tail) = (self.name.clone(), self.log.clone(), self.tail());
        ProcessError::Ended { process, waited_for, status, log, tail }
    }

    /// Waits for the process to end by itself, for at most `bound`. Returns whether its exit code is zero.
    ///
    /// # Errors
    /// If the process still runs after `bound`.
    pub fn finish(&mut self, bound: Duration) -> Result<bool, ProcessError> {
        let status = wait::poll(bound, || self.status());
        status.map(|status| status.success()).ok_or_else(|| self.late("its end", bound))
    }

    /// Sends SIGTERM to the process, if it has not ended.
    pub fn terminate(&self) {
        let _ = self.send(Signal::TERM);
    }

    /// Sends SIGTERM to the process, and waits for its end.
    ///
    /// # Errors
    /// If the exit code is not zero, or the process still runs after 15 s.
    pub fn stop(mut self) -> Result<(), ProcessError> {
        self.terminate();
        let Some(status) = wait::poll(STOP_TIMEOUT, || self.status()) else {
            return Err(self.late("its end after SIGTERM", STOP_TIMEOUT));
        };
        if status.success() {
            return Ok(());
        }
        let (process, log, tail) = (self.name.clone(), self.log.clone(), self.tail());
        Err(ProcessError::BadStop { process, status, log, tail })
    }

    fn late(&self, waited_for: &'static str, bound: Duration) -> ProcessError {
        let (process, log, tail) = (self.name.clone(), self.log.clone(), self.tail());
        ProcessError::NotInTime { process, waited_for, bound, log, tail }
    }

    /// Sends SIGSTOP to the process, if it has not ended. [`thaw`](Self::thaw) continues it.
    pub fn freeze(&self) {
        let _ = self.send(Signal::STOP);
    }

    /// Sends SIGCONT to the process, if it has not ended.
    pub fn thaw(&self) {
        let _ = self.send(Signal::CONT);
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory of the process in KiB; `None` once it has ended.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the process's resident memory in KiB; `None` once it has ended.
    #[must_use]
    pub fn peak_kib(&self) -> Option<u64> {
        self.memory("VmHWM:")
    }

    /// Returns the processor time that the process has used, user and system; zero once it has ended.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name may contain spaces and brackets. utime and stime are the fields 14 and 15 (proc(5)).
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        TICK * ticks.filter_map(|field| field.parse::<u32>().ok()).sum::<u32>()
    }

    fn memory(&self, name: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        self.send(signal).unwrap_or_else(|cause| panic!("{}: {cause}", self.name));
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        // The process id of an ended process may belong to another one.
        if self.ended.is_some() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }

    /// Returns whether the process still runs.
    pub fn runs(&mut self) -> bool {
        self.status().is_none()
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If the process still runs after [`wait::SOON`].
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        wait::until(&what, async || self.status()).await
    }

    /// Returns the exit status, if the process has ended.
    fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("name", &self.name)
            .field("pid", &self.child.id())
            .finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let Some(mut searched) = self.searched.take() else { return };
        if std::thread::panicking() {
            eprintln!("---- log of {} ----\n{}", self.name, self.log());
            return;
        }
        // A panic ends only its task, and a retry may hide it from the test.
        let mut written = Vec::new();
        let read = searched.read_to_end(&mut written);
        assert!(read.is_ok(), "log of {}: {read:?}", self.name);
        let written = String::from_utf8_lossy(&written);
        let panic = written.lines().find(|line| line.contains(PANIC));
        assert!(panic.is_none(), "{}: {panic:?}\n{written}", self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_removed_log_fails_the_test() {
        let line = "thread 'tokio-rt-worker' panicked at x.rs:1:2:";
        for (removed, text, fails) in [(false, "all is well", false), (false, line, true), (true, line, true)]
        {
            let directory = tempfile::tempdir().unwrap();
            let mut process =
                Process::start(directory.path(), "sh", "/bin/sh", ["-c", &format!("echo \"{text}\" >&2")]);
            let _ = process.ended().await;
            if removed {
                std::fs::remove_file(directory.path().join("sh.log")).unwrap();
            }
            let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(process)));
            assert_eq!(dropped.is_err(), fails, "{text}, {removed}");
        }
    }

    fn shell(directory: &Path, script: &str) -> Process {
        Process::spawn(directory, "sh", Command::new("/bin/sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn sigterm_must_end_a_process_with_code_zero() {
        let directory = tempfile::tempdir().unwrap();
        for (code, good) in [(0, true), (3, false)] {
            let script = format!("trap 'exit {code}' TERM; echo up; while :; do sleep 0.01; done");
            let mut process = shell(directory.path(), &script);
            process
                .ready("its trap", || directory.path().join("sh.log").metadata().unwrap().len() > 0)
                .unwrap();
            let stopped = process.stop();
            assert_eq!(stopped.is_ok(), good, "{stopped:?}");
        }
    }

    #[test]
    fn the_wait_for_an_ended_process_fails_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell(directory.path(), "echo too bad; exit 1");
        let ended = process.ready("nothing", || false).unwrap_err().to_string();
        assert!(ended.contains("exit status: 1") && ended.ends_with("too bad"), "{ended}");
    }

    #[test]
    fn a_dropped_process_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell(directory.path(), "exec sleep 1000");
        let proc = format!("/proc/{}", process.id());
        assert!(Path::new(&proc).exists());
        drop(process);
        assert!(!Path::new(&proc).exists());
    }
}
