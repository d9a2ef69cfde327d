//! `cargo xtask drill`: hub, agent and proxy, or some of them, are killed in turn under load, for as long as asked.

use std::process::Command;

/// Options of `cargo xtask drill`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long they are killed, in minutes
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,

    /// Which of them are killed, in turn. The others have to live through it without growing
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_value = "hub,agent,proxy")]
    kill: Vec<Part>,

    /// What the times between the kills are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Hub,
    Agent,
    Proxy,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Agent => "agent",
            Self::Proxy => "proxy",
        }
    }
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
    // No less than what can be told apart, no more than a day.
    let seconds = (options.minutes * 60.0).clamp(30.0, 86_400.0) as u64;
    let killed: Vec<&str> = options.kill.iter().map(|part| part.name()).collect();
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
        .env("EDGE_CSI_DRILL_SECONDS", seconds.to_string())
        .env("EDGE_CSI_DRILL_KILL", killed.join(","))
        .env("EDGE_CSI_SEED", options.seed.to_string())
        .current_dir(crate::workspace_root())
        .status()
        .map_err(DrillError::Cargo)?;
    if status.success() { Ok(()) } else { Err(DrillError::Failed(status)) }
}
