//! `cargo xtask drill`: hub, agent and proxy are killed in turn under load, for as long as asked.

use std::process::Command;

/// Options of `cargo xtask drill`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long they are killed, in minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,

    /// What the times between the kills are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Why the drill failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DrillError {
    /// The test could not be started.
    #[error("cargo cannot be started; run through `cargo xtask`")]
    Cargo(#[source] std::io::Error),
    /// The test has failed.
    #[error("the drill found something ({0}); what it is stands above")]
    Failed(std::process::ExitStatus),
}

/// Runs the test `process_kills` for longer than the other tests take.
///
/// # Errors
/// If it fails.
pub(crate) fn run(options: &Options) -> Result<(), DrillError> {
    let status = Command::new("cargo")
        .args([
            "test",
            "--locked",
            "--package",
            "edge-csi-tests",
            "--test",
            "process_kills",
            "--",
            "--nocapture",
        ])
        .env("EDGE_CSI_DRILL_SECONDS", (options.minutes * 60).to_string())
        .env("EDGE_CSI_SEED", options.seed.to_string())
        .current_dir(crate::workspace_root())
        .status()
        .map_err(DrillError::Cargo)?;
    if status.success() { Ok(()) } else { Err(DrillError::Failed(status)) }
}
