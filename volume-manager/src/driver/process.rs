//! Finds out which processes serve a driver's socket, and whether they have exited.

use std::fs;
use std::io;

/// A process of this host, identified by its id and its start time, since ids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    id: i32,
    /// The start time, in clock ticks since the host booted.
    start_time: u64,
}

impl Process {
    /// Finds a process by its id. `None` if it is not visible, such as one in a PID namespace outside of this one.
    pub(super) fn find(id: i32) -> Option<Self> {
        if id <= 0 {
            return None;
        }
        start_time(id).ok().flatten().map(|start_time| Self { id, start_time })
    }

    /// Whether the process has certainly exited.
    pub(super) fn has_exited(self) -> bool {
        match start_time(self.id) {
            Ok(Some(start_time)) => start_time != self.start_time,
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// The start time of a process; `None` if its `stat` file cannot be parsed.
fn start_time(id: i32) -> io::Result<Option<u64>> {
    /// The index of the start time (field 22) among the fields after the name (field 2).
    const AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name may contain parentheses and spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    Ok(fields.split_ascii_whitespace().nth(AFTER_NAME).and_then(|field| field.parse().ok()))
}

/// The processes that served a driver and may still run.
#[derive(Debug, Default)]
pub(super) struct ProcessHistory {
    /// Whether a process was recorded before.
    recorded: bool,
    running: Vec<Process>,
    /// Whether a process was not visible, or more than [`Self::MAX`] were running, so that the history is
    /// incomplete.
    incomplete: bool,
}

impl ProcessHistory {
    /// The maximum number of processes that are tracked.
    const MAX: usize = 16;

    /// Records the process that serves the driver now, and returns the previous ones. The processes before the first one are
    /// unknown.
    pub(super) fn record(&mut self, process: Option<Process>) -> PreviousProcesses {
        self.running.retain(|earlier| !earlier.has_exited());
        let earlier =
            PreviousProcesses { known: self.recorded && !self.incomplete, running: self.running.clone() };
        self.recorded = true;
        match process {
            Some(process) if self.running.contains(&process) => {}
            Some(process) if self.running.len() < Self::MAX => self.running.push(process),
            _ => self.incomplete = true,
        }
        earlier
    }
}

/// The processes that served a driver before the present one.
#[derive(Debug)]
pub(super) struct PreviousProcesses {
    /// Whether there were previous processes, and all of them were visible.
    known: bool,
    /// The processes that were still running when their successor was recorded.
    running: Vec<Process>,
}

impl PreviousProcesses {
    /// Whether all previous processes have certainly exited.
    pub(super) fn have_exited(&self) -> bool {
        self.known && self.running.iter().all(|process| process.has_exited())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn process_has_exited_after_wait() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::find(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!process.has_exited());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_exited());
        // A process of the same id with another start time is another process.
        let this = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(Process { start_time: this.start_time + 1, ..this }.has_exited() && !this.has_exited());
        assert_eq!(Process::find(0), None);
    }

    #[test]
    fn sees_exit_after_successor_started() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::find(i32::try_from(child.id()).unwrap());
        let mut served = ProcessHistory::default();
        assert!(!served.record(process).have_exited());
        let earlier = served.record(Process::find(i32::try_from(std::process::id()).unwrap()));
        assert!(!earlier.have_exited());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(earlier.have_exited());
    }

    #[test]
    fn needs_every_previous_process_to_be_known_and_exited() {
        let this = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        let ended = Process { start_time: this.start_time + 1, ..this };
        let mut served = ProcessHistory::default();
        assert!(!served.record(Some(ended)).have_exited(), "the processes before the first are unknown");
        assert!(served.record(Some(this)).have_exited());
        assert!(!served.record(Some(this)).have_exited(), "the same process dialled again");
        assert!(!served.record(Some(ended)).have_exited(), "a process that runs beside its successor");
        let mut with_invisible = ProcessHistory::default();
        assert!(!with_invisible.record(None).have_exited());
        assert!(!with_invisible.record(Some(this)).have_exited());
    }
}
