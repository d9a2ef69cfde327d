//! `cargo xtask sim`: builds the simulation with optimisation and overflow checks, and runs it.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::workspace_root;

/// What `cargo xtask sim` takes: the options of the simulation itself.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// As `--help` says.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The simulation could not be run, or found something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimError {
    /// Cargo could not be started.
    #[error("start {command}: {source}")]
    Start {
        /// The command.
        command: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It said why.
    #[error("the simulation ended with {status}")]
    Ended {
        /// Its exit status.
        status: std::process::ExitStatus,
    },
}

/// Builds and runs.
pub(crate) fn run(options: &Options) -> Result<(), SimError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root());
    command.args(["run", "--quiet", "--locked", "--profile", "sim", "--package", "edge-csi-sim", "--"]);
    command.args(&options.arguments);
    let status =
        command.status().map_err(|source| SimError::Start { command: format!("{command:?}"), source })?;
    if status.success() { Ok(()) } else { Err(SimError::Ended { status }) }
}
