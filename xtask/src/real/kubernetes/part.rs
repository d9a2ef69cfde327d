//! A process that may die, and be there again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Ground;
use crate::real::arguments::Arguments;
use crate::real::error::RealError;
use crate::real::process::Process;
use crate::real::wait;

/// When it is there.
#[derive(Debug)]
pub(super) enum Ready {
    /// Once its status page at this port says so.
    Page(u16),
    /// Once somebody accepts on this socket.
    Socket(PathBuf),
    /// As soon as it runs.
    AtOnce,
}

/// What is to run, and the process if it does. Killed when dropped.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    ready: Ready,
    process: Option<Process>,
}

impl Part {
    /// Starts it, and waits until it is there.
    pub(super) fn start(
        ground: &Ground<'_>,
        name: String,
        program: &Path,
        arguments: Arguments,
        ready: Ready,
    ) -> Result<Self, RealError> {
        let mut part =
            Self { name, program: program.to_owned(), arguments: arguments.0, ready, process: None };
        part.restart(ground)?;
        Ok(part)
    }

    /// Starts it anew, after its death if it runs.
    pub(super) fn restart(&mut self, ground: &Ground<'_>) -> Result<(), RealError> {
        self.kill();
        let mut command = Command::new(&self.program);
        // The provisioner's objects for capacities are in a namespace.
        command.args(&self.arguments).env("NAMESPACE", "default");
        let mut process = Process::respawn(&self.name, &mut command, ground.logs)?;
        match &self.ready {
            Ready::Page(port) => {
                process.ready("/readyz", || wait::is_ready(([127, 0, 0, 1], *port).into()))?;
            }
            Ready::Socket(socket) => process.ready("its socket", || wait::accepts(socket))?,
            Ready::AtOnce => {}
        }
        self.process = Some(process);
        Ok(())
    }

    /// It dies.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to stop, if it runs.
    pub(super) fn stop(self) -> Result<(), RealError> {
        self.process.map_or(Ok(()), Process::stop)
    }

    pub(super) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// What it said last, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        (!process.runs()).then(|| process.tail())
    }
}
