//! Tasks of edge-csi, run as `cargo xtask <task>`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod authority;
mod codegen;
mod perf;

/// The tasks of edge-csi.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Generate the committed sources from their schemas, and the diagrams of the guide.
    Codegen(codegen::Options),
    /// Measure the relay, its sessions and its memory.
    Perf(perf::Options),
}

fn main() -> ExitCode {
    let outcome: Result<(), Box<dyn std::error::Error>> = match Arguments::parse().task {
        Task::Codegen(options) => codegen::run(&options).map_err(Into::into),
        Task::Perf(options) => perf::run(&options).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the workspace, independent of the current folder.
fn workspace_root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Prints one line with the error and its causes.
#[allow(clippy::print_stderr, reason = "a command line tool prints its errors on stderr")]
fn report(error: &dyn std::error::Error) {
    let mut line = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        line.push_str(&format!(": {cause}"));
    }
    eprintln!("error: {line}");
}
