//! `cargo xtask perf`: the performance table of the README, and what a session and an hour of load cost.
//!
//! Every part of a chain is a process of its own. All chains stand during the whole run and are measured in turn, round
//! after round, so that a ratio compares neighbours in time; a ratio is the median of its rounds.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::authority::CertificateError;

mod build;
mod chain;
mod hung;
mod processes;
mod relay;
mod rounds;
mod sessions;
mod soak;

/// What `cargo xtask perf` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Latencies of many calls, alone and while one more hangs at the driver.
    Hung(hung::Options),
    /// One CreateVolume through the relay and its peers: calls/s, latencies, processor time, and ratios to the direct call.
    Relay(relay::Options),
    /// Memory of the hub for each idle session, over wss and QUIC with client certificates.
    Sessions(sessions::Options),
    /// Memory of hub, proxy and agent under steady load.
    Soak(soak::Options),
}

/// A measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// A file or a process failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A command ended with an error.
    #[error("{command} failed: {output}")]
    Command {
        /// The command.
        command: String,
        /// What it said last.
        output: String,
    },
    /// A part of a chain did not become ready.
    #[error("{chain}: no answer at {endpoint} within {seconds} s; the last lines of its parts are in {logs}")]
    NotReady {
        /// The chain.
        chain: String,
        /// Where it should answer.
        endpoint: String,
        /// How long was waited.
        seconds: u64,
        /// The folder of the logs.
        logs: PathBuf,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A tool printed something else than expected.
    #[error("{command} printed {line:?}, not a line of figures: {source}")]
    Figures {
        /// The tool.
        command: String,
        /// What it printed.
        line: String,
        /// Why it cannot be read.
        source: serde_json::Error,
    },
    /// The memory grew.
    #[error("{part} grew from {from} to {to} KiB under steady load; at most {bound} KiB are allowed")]
    Growth {
        /// Which process.
        part: String,
        /// Resident memory after warming up, in KiB.
        from: u64,
        /// At the end, in KiB.
        to: u64,
        /// Bound for the end, in KiB.
        bound: u64,
    },
}

impl PerfError {
    fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// Builds what is measured, measures, prints.
pub(crate) fn run(options: &Options) -> Result<(), PerfError> {
    match &options.what {
        What::Hung(options) => hung::run(options),
        What::Relay(options) => relay::run(options),
        What::Sessions(options) => sessions::run(options),
        What::Soak(options) => soak::run(options),
    }
}

/// A folder for the files of one run, gone with it.
fn folder() -> Result<tempfile::TempDir, PerfError> {
    tempfile::Builder::new().prefix("csi-perf").tempdir().map_err(PerfError::io("create a folder"))
}
