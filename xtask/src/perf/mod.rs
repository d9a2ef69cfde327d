//! `cargo xtask perf`: the performance table of the README, the cost of a link, of many sessions and of many nodes, the memory
//! growth under steady load, the hub under attack and on several threads, and two builds compared.
//!
//! Every part of a chain is a separate process. All chains run during the whole measurement and are measured in turn, round
//! after round, so that a ratio compares adjacent measurements; a ratio is the median of its rounds.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::authority::CertificateError;

mod all;
mod build;
mod cable;
mod carrier;
mod chain;
mod compare;
mod far;
mod hostile;
mod hung;
mod link;
mod network;
mod processes;
mod relay;
mod rounds;
mod selection;
mod sessions;
mod soak;
mod threads;

/// Options of `cargo xtask perf`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, Subcommand)]
enum Measurement {
    /// Every table, of this commit and of another one in turn: the ratio of each figure with its 95 % interval. Link needs root.
    All(all::Options),
    /// Two builds of the relay in turn: the ratio of their rates with its 95 % interval.
    Compare(compare::Options),
    /// The hub under hostile connections: its memory, the admission of another agent, and the rate of its callers.
    Hostile(hostile::Options),
    /// Latencies of many calls, alone and while one more hangs at the driver.
    Hung(hung::Options),
    /// What a link to a hub costs: bytes idle, of a connection and of a call, and the agent's wake-ups and memory. Needs root.
    Link(link::Options),
    /// One CreateVolume through the relay and its peers: calls/s, latencies, processor time, and ratios to the direct call.
    Relay(relay::Options),
    /// The selection of nodes by a proxy with many nodes and placements: latencies, memory, and the time of a restart.
    Selection(selection::Options),
    /// Many sessions on one hub: its memory and processor time, and how long they take to return after a kill.
    Sessions(sessions::Options),
    /// Memory of hub, proxy and agent under steady load.
    Soak(soak::Options),
    /// A hub on several threads and on one: calls per second of its processor time.
    Threads(threads::Options),
}

/// An error that prevents a measurement, or a bound that is exceeded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// A file or a process failed.
    #[error("{action}: {source}")]
    Io {
        /// The attempted action, such as `create PATH`.
        action: String,
        source: std::io::Error,
    },
    /// A command ended with an error.
    #[error("{command} failed: {output}")]
    Command {
        command: String,
        /// The last lines of the command's error output.
        output: String,
    },
    /// A part of a chain did not become ready.
    #[error("{chain}: no answer at {endpoint} within {seconds} s; the logs of its processes are in {logs}")]
    NotReady {
        chain: String,
        endpoint: String,
        /// The time limit, in seconds.
        seconds: u64,
        /// The folder of the logs.
        logs: PathBuf,
    },
    /// A certificate could not be created.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A tool printed a line that is not valid figures.
    #[error("{command} printed {line:?}; expected one JSON object of figures: {source}")]
    Figures { command: String, line: String, source: serde_json::Error },
    /// The measurement needs another value of an option.
    #[error("{option} {found}: expected {expected}")]
    Option { option: &'static str, found: String, expected: &'static str },
    /// A process may open too few files.
    #[error(
        "{allowed} open files are allowed; expected at least {needed}, one for each connection: run `ulimit -n {needed}` as root, and \
         start this command from the same shell"
    )]
    OpenFiles {
        /// The hard limit, RLIMIT_NOFILE.
        allowed: u64,
        needed: u64,
    },
    /// The memory of a process grew beyond its bound.
    #[error("{part} grew from {from} to {to} KiB; at most {bound} KiB are allowed")]
    Growth {
        part: String,
        /// Resident memory after warming up, in KiB.
        from: u64,
        /// Resident memory at the end, in KiB.
        to: u64,
        /// Bound of the resident memory at the end, in KiB.
        bound: u64,
    },
}

impl PerfError {
    fn ended_early(command: &str) -> Self {
        Self::Command { command: command.to_owned(), output: "ended early".to_owned() }
    }

    fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}

/// Builds the programs, measures, and prints the results.
pub(crate) fn run(options: &Options) -> Result<(), PerfError> {
    match &options.measurement {
        Measurement::All(options) => all::run(options),
        Measurement::Compare(options) => compare::run(options),
        Measurement::Hostile(options) => hostile::run(options),
        Measurement::Hung(options) => hung::run(options),
        Measurement::Link(options) => link::run(options),
        Measurement::Relay(options) => relay::run(options),
        Measurement::Selection(options) => selection::run(options),
        Measurement::Sessions(options) => sessions::run(options),
        Measurement::Soak(options) => soak::run(options),
        Measurement::Threads(options) => threads::run(options),
    }
}

/// Creates a folder for the files of one run, which is removed when dropped.
fn folder() -> Result<tempfile::TempDir, PerfError> {
    tempfile::Builder::new().prefix("csi-perf").tempdir().map_err(PerfError::io("create a folder"))
}
