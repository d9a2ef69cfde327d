//! A process that may die, and be there again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

use crate::error::RealError;
use crate::setup::Setup;

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
    arguments: Arguments,
    /// Options beside those that it has always.
    more: Arguments,
    ready: Ready,
    process: Option<Process>,
}

impl Part {
    /// Starts it, and waits until it is there.
    pub(super) fn start(
        setup: &Setup<'_>,
        name: String,
        program: &Path,
        arguments: Arguments,
        ready: Ready,
    ) -> Result<Self, RealError> {
        let (program, more) = (program.to_owned(), Arguments::new());
        let mut part = Self { name, program, arguments, more, ready, process: None };
        part.restart(setup)?;
        Ok(part)
    }

    /// Starts it anew with these options beside its own, in the place of those that it was given so before.
    pub(super) fn restart_with(&mut self, setup: &Setup<'_>, more: Arguments) -> Result<(), RealError> {
        self.more = more;
        self.restart(setup)
    }

    /// Starts it anew, after its death if it runs.
    pub(super) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), RealError> {
        self.revive(setup)?;
        let Some(process) = &mut self.process else { return Ok(()) };
        match &self.ready {
            Ready::Page(port) => {
                process.ready("/readyz", || wait::is_ready(([127, 0, 0, 1], *port).into()))?;
            }
            Ready::Socket(socket) => process.ready("its socket", || wait::accepts(socket))?,
            Ready::AtOnce => {}
        }
        Ok(())
    }

    /// The same without waiting until it is there, since what it needs for that is away.
    pub(super) fn revive(&mut self, setup: &Setup<'_>) -> Result<(), RealError> {
        self.kill();
        let mut command = Command::new(&self.program);
        // The provisioner's objects for capacities are in a namespace.
        command.args(&self.arguments).args(&self.more).env("NAMESPACE", "default");
        self.process = Some(Process::respawn(setup.logs, &self.name, &mut command)?);
        Ok(())
    }

    /// Waits so long until `reached`, which `waited_for` names.
    pub(super) fn ready_within(
        &mut self,
        bound: Duration,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), RealError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        Ok(process.ready_within(bound, waited_for, reached)?)
    }

    /// It dies.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to stop, if it runs.
    pub(super) fn stop(self) -> Result<(), RealError> {
        Ok(self.process.map_or(Ok(()), Process::stop)?)
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
