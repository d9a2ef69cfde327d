//! Builds the binaries and the Go peers, and returns their paths.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::PerfError;
use crate::workspace_root;

/// The paths of the built programs.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    rust: PathBuf,
    go: PathBuf,
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

pub(super) fn run_to_end(command: &mut Command) -> Result<(), PerfError> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(PerfError::io(shown.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last: Vec<_> = stderr.lines().rev().take(15).collect();
    Err(PerfError::Command { command: shown, output: last.into_iter().rev().collect::<Vec<_>>().join("\n") })
}

impl Programs {
    /// Builds the release binaries; with `peers` also the NATS relay and the Go programs of the comparison.
    pub(super) fn build(peers: bool) -> Result<Self, PerfError> {
        let programs = Self { rust: target().join("release"), go: target().join("peers") };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.current_dir(workspace_root()).args(["build", "--release", "-p", "edge-csi-benches"]);
        build.args(["-p", "edge-hub", "-p", "edge-agent", "-p", "edge-csi-driver", "-p", "hostpath-driver"]);
        for name in [
            "edge-hub",
            "edge-agent",
            "edge-csi-driver",
            "hostpath-driver",
            "bare",
            "bench-driver",
            "load",
            "idle-sessions",
            "hostile-links",
            "selection",
        ] {
            build.args(["--bin", name]);
        }
        if peers {
            build.args(["-p", "nats-bus", "--bin", "nats-relay", "--features", "nats-bus/nats"]);
        }
        run_to_end(&mut build)?;
        if peers {
            std::fs::create_dir_all(&programs.go)
                .map_err(PerfError::io(format!("create {}", programs.go.display())))?;
            let mut build = Command::new("go");
            build
                .current_dir(workspace_root().join("benches/peers"))
                .env("CGO_ENABLED", "0")
                .env("GOTOOLCHAIN", "local");
            run_to_end(
                build.args(["build", "-buildvcs=false", "-o"]).arg(&programs.go).args(["./...", "tool"]),
            )?;
        }
        Ok(programs)
    }

    /// Returns the programs in a folder; Go programs are run from the PATH.
    pub(super) fn at(folder: &Path) -> Self {
        Self { rust: folder.to_owned(), go: PathBuf::new() }
    }

    /// Returns the programs in a folder; without one, builds them, with `peers` also those of the comparison.
    pub(super) fn at_or_built(folder: Option<&Path>, peers: bool) -> Result<Self, PerfError> {
        folder.map_or_else(|| Self::build(peers), |folder| Ok(Self::at(folder)))
    }

    /// Returns the folder of the binaries.
    pub(super) fn folder(&self) -> &Path {
        &self.rust
    }

    /// Returns a command for a binary of this workspace.
    pub(super) fn rust(&self, name: &str) -> Command {
        Command::new(self.rust.join(name))
    }

    /// Returns a command for a Go program of `benches/peers`.
    pub(super) fn go(&self, name: &str) -> Command {
        let mut command = Command::new(self.go.join(name));
        command.env("GOMAXPROCS", "2");
        command
    }
}
