//! `quickstart`: hub, proxy, agent and driver in one process, and the steps of a volume through them.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod gate;
mod link;
mod namespace;
mod parts;
mod scenario;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tempfile::TempDir;

use self::parts::Parts;
use self::scenario::Scenario;
use self::steps::{PARTS, StepFailed, StepTable};
use edge_csi_common::process::{self, Fatal, Launch, Signals};

/// How long the cleanup at the end is retried.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

const CLEANUP_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The binary.
pub fn main() -> ExitCode {
    // The steps go to stdout.
    process::run_with(|_| Launch::default().level("error"), run)
}

async fn run(options: QuickstartOptions, mut signals: Signals) -> Result<(), Fatal> {
    // Before the first thread starts: only a process with one thread can enter a user namespace.
    let mounts = namespace::enter().map_err(Fatal::runtime)?;
    let directory = options.directory()?;
    let outcome = tokio::select! {
        outcome = run_steps(directory.path(), mounts) => outcome.map_err(Fatal::runtime),
        signal = signals.next() => Err(Fatal::Runtime(format!("{signal}: stopped; mounts and files are removed"))),
    };
    let cleaned = clean(directory).await;
    outcome.and(cleaned)
}

async fn run_steps(directory: &Path, mounts: &'static str) -> Result<(), StepFailed> {
    process::print_line(mounts);
    let mut table = StepTable::begin();
    let parts = table.step(PARTS, "start", Parts::start(directory), Parts::description).await?;
    let outcome = Scenario::new(&parts).run(&mut table).await;
    let stop = async {
        parts.stop().await;
        Ok::<_, StepFailed>(())
    };
    table.step(PARTS, "stop", stop, |()| "hub, proxy, agent and driver have ended").await?;
    if outcome.is_ok() {
        table.end();
    }
    outcome
}

/// Removes the mounts and the directory, whatever has failed before.
async fn clean(directory: TempDir) -> Result<(), Fatal> {
    // The directory is no longer removed on drop, which could delete files through a mount.
    let path = directory.keep();
    let since = Instant::now();
    loop {
        let removed = namespace::unmount_all(&path).and_then(|()| fs::remove_dir_all(&path));
        match removed {
            // A call of the driver that was running at the stop may still create files.
            Err(_) if since.elapsed() < CLEANUP_TIMEOUT => tokio::time::sleep(CLEANUP_RETRY_INTERVAL).await,
            Err(cause) => return Err(Fatal::Runtime(format!("cannot remove {}: {cause}", path.display()))),
            Ok(()) => return Ok(()),
        }
    }
}

/// Runs a volume from CreateVolume in the cloud to a file on a node and back, and prints each step.
///
/// Runs hub, proxy, agent and the hostpath driver in one process, cuts the link during a call, and cleans up. As
/// root it mounts in its own mount namespace, otherwise in a user namespace.
#[derive(Debug, Clone, Parser)]
#[command(name = "quickstart", version)]
pub struct QuickstartOptions {
    /// Parent of the directory for sockets, state and mounts, which is removed at the end. Must be short, since
    /// the length of socket paths is limited [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

impl QuickstartOptions {
    /// Creates the directory.
    ///
    /// # Errors
    /// If the directory cannot be created.
    fn directory(&self) -> Result<TempDir, Fatal> {
        let parent = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("edge-csi-").tempdir_in(&parent);
        made.map_err(|cause| {
            Fatal::Input(format!("--directory: cannot create a directory in {}: {cause}", parent.display()))
        })
    }
}
