//! What can be set of the mounts of Linux.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

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

/// What can be set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    pub(super) deadline: Duration,
    pub(super) running: usize,
    pub(super) hung: usize,
}

/// Why settings are not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSettings {
    /// The deadline is out of bounds.
    #[error(
        "probe deadline {found:?}: at least {:?} and at most {:?} are allowed",
        Settings::MIN_DEADLINE,
        Settings::MAX_DEADLINE
    )]
    Deadline {
        /// What was set.
        found: Duration,
    },
    /// The number of processes is out of bounds.
    #[error("{field} {found}: at least 1 and at most {} are allowed", Settings::MAX_PROCESSES)]
    Processes {
        /// Which of the numbers.
        field: &'static str,
        /// What was set.
        found: usize,
    },
}

impl Settings {
    /// The shortest deadline: a process has to be started within it.
    pub const MIN_DEADLINE: Duration = Duration::from_millis(50);

    /// The longest deadline.
    pub const MAX_DEADLINE: Duration = Duration::from_secs(600);

    /// The most processes of a kind.
    pub const MAX_PROCESSES: usize = 1024;

    /// How many deadlines an operation waits for its turn before it is refused as crowded out.
    pub const DEADLINES_FOR_A_TURN: u32 = 4;

    /// After what time an operation counts as hung. Default: 5 s, and then up to 0.2 s more for the process to end.
    ///
    /// The mount table has to be read within it too. So an answer of any kind comes within 6 deadlines and 0.2 s: one for
    /// the table, [`Self::DEADLINES_FOR_A_TURN`] for a turn, and one for the operation.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many operations run at the same time. Default: 16. More wait for a turn: on one
    /// storage (a device, or all shares of one server) run half of them at most, and on all those together that hung
    /// the last time a quarter.
    #[must_use]
    pub fn running_processes(mut self, running: usize) -> Self {
        self.running = running;
        self
    }

    /// How many processes may be left behind that cannot be killed, since they hang deep in the kernel. Default: 64.
    /// One storage may have a quarter of them. On a path on which one hangs, nothing more is tried until it has ended.
    #[must_use]
    pub fn hung_processes(mut self, hung: usize) -> Self {
        self.hung = hung;
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidSettings> {
        if !(Self::MIN_DEADLINE..=Self::MAX_DEADLINE).contains(&self.deadline) {
            return Err(InvalidSettings::Deadline { found: self.deadline });
        }
        for (field, found) in [("running processes", self.running), ("hung processes", self.hung)] {
            if !(1..=Self::MAX_PROCESSES).contains(&found) {
                return Err(InvalidSettings::Processes { field, found });
            }
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), running: 16, hung: 64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_bounds_is_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        let found = Duration::from_millis(49);
        assert_eq!(Settings::default().deadline(found).check(), Err(InvalidSettings::Deadline { found }));
        for (settings, field, found) in [
            (Settings::default().running_processes(0), "running processes", 0),
            (Settings::default().hung_processes(1025), "hung processes", 1025),
        ] {
            assert_eq!(settings.check(), Err(InvalidSettings::Processes { field, found }));
        }
    }
}
