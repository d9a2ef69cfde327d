//! Which process serves a driver's socket.

use std::fs;
use std::io;

/// A process of this host, told apart from a later one of the same id by the time it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    id: i32,
    /// In clock ticks since the host was started.
    started: u64,
}

impl Process {
    /// The process of an id. `None` if it cannot be seen, such as one in a PID namespace that is not below this one's.
    pub(super) fn find(id: i32) -> Option<Self> {
        if id <= 0 {
            return None;
        }
        started(id).ok().flatten().map(|started| Self { id, started })
    }

    /// Whether the process is certain to have ended.
    pub(super) fn has_ended(self) -> bool {
        match started(self.id) {
            Ok(Some(started)) => started != self.started,
            Ok(None) => false,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// When the process was started; `None` if what the kernel says of it cannot be read.
fn started(id: i32) -> io::Result<Option<u64>> {
    /// Where the start stands after the name: field 22 of all, and the name is the second.
    const AFTER_NAME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name may hold anything, parentheses and spaces too.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    Ok(fields.split_ascii_whitespace().nth(AFTER_NAME).and_then(|field| field.parse().ok()))
}

/// The processes that served a driver and are not known to have ended.
#[derive(Debug, Default)]
pub(super) struct Predecessors {
    /// Whether there was any.
    some: bool,
    running: Vec<Process>,
    /// One of them could not be seen, or there were too many; then nothing can be said of all.
    unseen: bool,
}

impl Predecessors {
    const MAX: usize = 16;

    /// Notes who serves the driver now, and says who served it before. Of what was before the first one nothing is known.
    pub(super) fn succeeded_by(&mut self, process: Option<Process>) -> Earlier {
        self.running.retain(|earlier| !earlier.has_ended());
        let earlier = Earlier { known: self.some && !self.unseen, running: self.running.clone() };
        self.some = true;
        match process {
            Some(process) if self.running.contains(&process) => {}
            Some(process) if self.running.len() < Self::MAX => self.running.push(process),
            _ => self.unseen = true,
        }
        earlier
    }
}

/// Those who served a driver before somebody.
#[derive(Debug)]
pub(super) struct Earlier {
    /// Whether there were any, and each could be seen.
    known: bool,
    /// Those that ran when they were succeeded.
    running: Vec<Process>,
}

impl Earlier {
    /// Whether each of them is certain to have ended by now.
    pub(super) fn have_ended(&self) -> bool {
        self.known && self.running.iter().all(|process| process.has_ended())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_is_gone_and_not_before() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::find(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        // Another process of the same id is another process.
        let this = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(Process { started: this.started + 1, ..this }.has_ended() && !this.has_ended());
        assert_eq!(Process::find(0), None);
    }

    #[test]
    fn one_that_ends_after_its_successor_has_begun_has_ended_then() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::find(i32::try_from(child.id()).unwrap());
        let mut served = Predecessors::default();
        assert!(!served.succeeded_by(process).have_ended());
        let earlier = served.succeeded_by(Process::find(i32::try_from(std::process::id()).unwrap()));
        assert!(!earlier.have_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(earlier.have_ended());
    }

    #[test]
    fn predecessors_have_ended_only_if_every_one_of_them_is_known_to_have() {
        let this = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        let ended = Process { started: this.started + 1, ..this };
        let mut served = Predecessors::default();
        assert!(!served.succeeded_by(Some(ended)).have_ended(), "nothing is known of what was before");
        assert!(served.succeeded_by(Some(this)).have_ended());
        assert!(!served.succeeded_by(Some(this)).have_ended(), "the same process dialled again");
        assert!(!served.succeeded_by(Some(ended)).have_ended(), "one that runs beside its successor");
        let mut unseen = Predecessors::default();
        assert!(!unseen.succeeded_by(None).have_ended());
        assert!(!unseen.succeeded_by(Some(this)).have_ended());
    }
}
