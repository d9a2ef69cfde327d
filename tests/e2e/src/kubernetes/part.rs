//! A process that can be killed and restarted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

use crate::error::E2eError;
use crate::setup::Setup;

/// The condition under which a process is ready.
#[derive(Debug)]
pub(crate) enum Ready {
    /// Once its status page at this port reports ready.
    Page(u16),
    /// Once this socket accepts connections.
    Socket(PathBuf),
    /// As soon as it runs.
    AtOnce,
}

/// The command line of a process, and the process while it runs. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    program: PathBuf,
    arguments: Arguments,
    /// Options in addition to `arguments`.
    more: Arguments,
    ready: Ready,
    process: Option<Process>,
}

impl Part {
    /// Starts the process, and waits until it is ready.
    pub(crate) fn start(
        setup: &Setup<'_>,
        name: String,
        program: &Path,
        arguments: Arguments,
        ready: Ready,
    ) -> Result<Self, E2eError> {
        let (program, more) = (program.to_owned(), Arguments::new());
        let mut part = Self { name, program, arguments, more, ready, process: None };
        part.restart(setup)?;
        Ok(part)
    }

    /// Restarts the process with these options in place of earlier additional ones.
    pub(crate) fn restart_with(&mut self, setup: &Setup<'_>, more: Arguments) -> Result<(), E2eError> {
        self.more = more;
        self.restart(setup)
    }

    /// Kills the process if it runs, starts it, and waits until it is ready.
    pub(crate) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
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

    /// Restarts the process without a wait, since its dependencies may be unavailable.
    pub(crate) fn revive(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.kill();
        let mut command = Command::new(&self.program);
        // The provisioner needs a namespace for its capacity objects.
        command.args(&self.arguments).args(&self.more).env("NAMESPACE", "default");
        self.process = Some(Process::respawn(setup.logs, &self.name, &mut command)?);
        Ok(())
    }

    /// Waits at most `bound` until `reached` returns true. `waited_for` names the condition in errors.
    pub(crate) fn ready_within(
        &mut self,
        bound: Duration,
        waited_for: &'static str,
        reached: impl Fn() -> bool,
    ) -> Result<(), E2eError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        Ok(process.ready_within(bound, waited_for, reached)?)
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the process gracefully, if it runs.
    pub(crate) fn stop(mut self) -> Result<(), E2eError> {
        self.end()
    }

    /// Stops the process gracefully, if it runs; it can be restarted.
    pub(crate) fn end(&mut self) -> Result<(), E2eError> {
        Ok(self.process.take().map_or(Ok(()), Process::stop)?)
    }

    pub(crate) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Returns the end of the log if the process has exited by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        (!process.runs()).then(|| process.tail())
    }
}
