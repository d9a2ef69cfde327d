//! Child processes that are killed when dropped, and the kernel's figures for them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::de::DeserializeOwned;

use super::PerfError;

/// The length of the kernel's ticks for processor time (USER_HZ, proc(5)).
const TICK: Duration = Duration::from_millis(10);

/// Returns the used processor time of a process, user and system.
fn processor_time(child: &Child) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The process name may contain spaces and brackets, so fields are counted from its last bracket. utime and
    // stime are fields 14 and 15 in proc(5).
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: u32 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}

/// Returns the figure after this name in a text of proc(5).
fn figure_of(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// A running part of a chain. Killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    /// The name in the tables.
    pub(super) name: String,
    child: Child,
}

impl Process {
    /// Starts a command with its output in `LOGS/NAME.log`.
    pub(super) fn start(name: &str, logs: &Path, command: &mut Command) -> Result<Self, PerfError> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).map_err(PerfError::io(format!("create {}", log.display())))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(PerfError::io(format!("start {command:?}")))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Returns the used processor time, user and system.
    pub(super) fn processor_time(&self) -> Duration {
        processor_time(&self.child)
    }

    /// Returns the resident memory in KiB.
    pub(super) fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Returns the highest resident memory since the start of the process, in KiB.
    pub(super) fn peak_resident(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Returns how often the threads of the process have begun to wait since their start: each time, something has woken one.
    pub(super) fn wake_ups(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let statuses = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            figure_of(&status, "voluntary_ctxt_switches:")
        });
        statuses.sum()
    }

    /// Returns a figure of proc(5)'s `status`.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        figure_of(&status, name).unwrap_or_default()
    }

    /// Returns true if the process still runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that prints lines about its progress, and ends when its standard input is closed. Killed when dropped.
#[derive(Debug)]
pub(super) struct Reporter {
    shown: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Reporter {
    /// Starts a command.
    pub(super) fn start(command: &mut Command) -> Result<Self, PerfError> {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(PerfError::io(format!("start {shown}")))?;
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
        Ok(Self { shown, input: child.stdin.take(), child, lines })
    }

    /// Waits for the next line.
    pub(super) fn next_line(&mut self) -> Result<String, PerfError> {
        match self.lines.as_mut().and_then(Iterator::next) {
            Some(Ok(line)) => Ok(line),
            _ => Err(PerfError::ended_early(&self.shown)),
        }
    }

    /// Waits for the next line, and reads it as JSON.
    pub(super) fn figures<T: DeserializeOwned>(&mut self) -> Result<T, PerfError> {
        let line = self.next_line()?;
        serde_json::from_str(&line).map_err(|source| {
            let command = self.shown.clone();
            PerfError::Figures { command, line, source }
        })
    }

    /// Sends an empty line, with which the command begins its next step.
    pub(super) fn next_step(&mut self) -> Result<(), PerfError> {
        let sent = self.input.as_mut().map_or(Ok(()), |input| input.write_all(b"\n"));
        sent.map_err(PerfError::io(format!("write to {}", self.shown)))
    }

    /// Returns the used processor time, user and system.
    pub(super) fn processor_time(&self) -> Duration {
        processor_time(&self.child)
    }

    /// Closes the standard input, after which the command may print more lines and ends.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until the command has ended.
    pub(super) fn wait(mut self) {
        self.close_input();
        let _ = self.child.wait();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Raises the number of open files that this process and its children may have to the allowed maximum, and that to
/// `needed` if this process has the right to do so.
pub(super) fn raise_open_files(needed: u64) -> Result<(), PerfError> {
    let failed = |error: nix::Error| PerfError::io("raise the number of open files")(error.into());
    let (_, allowed) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    let most = allowed.max(needed);
    match setrlimit(Resource::RLIMIT_NOFILE, most, most) {
        Ok(()) => Ok(()),
        Err(_) if allowed < needed => Err(PerfError::OpenFiles { allowed, needed }),
        Err(error) => Err(failed(error)),
    }
}

/// Sends a GET request to the HTTP endpoint of a process at this port, and returns the body of a successful response.
pub(super) fn http_get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}
