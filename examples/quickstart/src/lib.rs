//! `quickstart`: hub, proxy, agent and driver in one process, and a volume's life through them, step by step.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod cable;
mod gate;
mod life;
mod namespace;
mod parts;
mod story;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tempfile::TempDir;

use self::life::Life;
use self::parts::Parts;
use self::story::{PARTS, StepFailed, Story, say};
use edge_csi_common::process::{self, Fatal, Signals};

/// How long is tried to take everything away at the end.
const CLEAN_WITHIN: Duration = Duration::from_secs(5);

const CLEAN_AGAIN: Duration = Duration::from_millis(20);

/// The binary.
pub fn main() -> ExitCode {
    // The steps go to stdout.
    process::run_with_level(|_| "error", run)
}

async fn run(options: QuickstartOptions, mut signals: Signals) -> Result<(), Fatal> {
    // Before anything starts a thread: only then can a process enter a user namespace.
    let mounts = namespace::enter().map_err(Fatal::runtime)?;
    let directory = options.directory()?;
    let outcome = tokio::select! {
        outcome = tell(directory.path(), mounts) => outcome.map_err(Fatal::runtime),
        signal = signals.next() => Err(Fatal::Runtime(format!("{signal}: stopped; everything is taken down"))),
    };
    let cleaned = clean(directory).await;
    outcome.and(cleaned)
}

async fn tell(directory: &Path, mounts: &'static str) -> Result<(), StepFailed> {
    say(mounts);
    let mut story = Story::begin();
    let parts = story.step(PARTS, "start", Parts::start(directory), Parts::told).await?;
    let outcome = Life::new(&parts).lead(&mut story).await;
    let stop = async {
        parts.stop().await;
        Ok::<_, StepFailed>(())
    };
    story.step(PARTS, "stop", stop, |()| "hub, proxy, agent and driver have ended").await?;
    if outcome.is_ok() {
        story.end();
    }
    outcome
}

/// Leaves nothing behind, whatever has happened before.
async fn clean(directory: TempDir) -> Result<(), Fatal> {
    // From here on a removal that would reach through a mount cannot happen by itself.
    let path = directory.keep();
    let since = Instant::now();
    loop {
        let removed = namespace::unmount_all(&path).and_then(|()| fs::remove_dir_all(&path));
        match removed {
            // A call of the driver that was under way when all was stopped may still be making files.
            Err(_) if since.elapsed() < CLEAN_WITHIN => tokio::time::sleep(CLEAN_AGAIN).await,
            Err(cause) => return Err(Fatal::Runtime(format!("cannot remove {}: {cause}", path.display()))),
            Ok(()) => return Ok(()),
        }
    }
}

/// Leads a volume through its life, from CreateVolume in the cloud to a file on a node and back, and prints each step.
///
/// Runs hub, proxy, agent and the hostpath driver in one process, cuts the link in mid-call, and leaves nothing behind. As
/// root it mounts in a mount namespace of its own, otherwise in a user namespace.
#[derive(Debug, Clone, Parser)]
#[command(name = "quickstart", version)]
pub struct QuickstartOptions {
    /// Where the directory for sockets, state and mounts is made, and removed at the end; short, since socket paths are
    /// [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

impl QuickstartOptions {
    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made.
    fn directory(&self) -> Result<TempDir, Fatal> {
        let above = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("edge-csi-").tempdir_in(&above);
        made.map_err(|cause| {
            Fatal::Input(format!("--directory: cannot make a directory in {}: {cause}", above.display()))
        })
    }
}
