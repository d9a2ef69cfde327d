//! Runs a steady load for minutes, and checks that no part of the relay grows.

use std::time::{Duration, Instant};

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, HubTransport, Kind, load};
use super::processes::Process;
use super::{PerfError, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf soak`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Minutes of load after the first ten seconds.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Number of concurrent callers.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Maximum growth of each process's resident memory, in KiB.
    #[arg(long, default_value_t = 1024)]
    growth: u64,
}

const WARM_UP: f64 = 10.0;
const SAMPLE_INTERVAL: f64 = 15.0;

/// Loads the relay over wss, and fails if a process grew beyond its bound.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::build(false)?;
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    let chain = Chain::start(Kind::Relay(HubTransport::Wss), &programs, run.path(), &authority)?;
    load(&programs, &chain.endpoint, options.in_flight, WARM_UP)?;
    let from: Vec<u64> = chain.parts.iter().map(Process::resident).collect();
    let until = Instant::now() + Duration::from_secs_f64(options.minutes.max(0.1) * 60.0);
    let mut calls = 0;
    let names: Vec<String> = chain.parts.iter().map(|part| format!("{} KiB", part.name)).collect();
    println!("| seconds left | calls | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(chain.parts.len()));
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        calls += load(
            &programs,
            &chain.endpoint,
            options.in_flight,
            left.as_secs_f64().clamp(0.5, SAMPLE_INTERVAL),
        )?
        .calls;
        let now: Vec<String> = chain.parts.iter().map(|part| part.resident().to_string()).collect();
        println!("| {:.0} | {calls} | {} |", left.as_secs_f64(), now.join(" | "));
    }
    for (part, from) in chain.parts.iter().zip(from) {
        let (to, bound) = (part.resident(), from + options.growth);
        if to > bound {
            return Err(PerfError::Growth { part: part.name.clone(), from, to, bound });
        }
    }
    Ok(())
}
