//! The processor time of a hub on several threads, against one thread.

use std::path::PathBuf;

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, HubTransport, Kind, load};
use super::processes::Process;
use super::rounds::{MeanRatio, check_pairs, median};
use super::{PerfError, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf threads`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Threads of the hub that is compared with one on a single thread.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Pairs of measurements, at least 5.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Concurrent callers.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Folder with release binaries, instead of building them.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// A pair of figures, of the hub on one thread and on several.
type Pair = [f64; 2];

/// Measures and prints both hubs. Each has an agent over wss and a proxy over a unix socket.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    check_pairs(options.pairs)?;
    let programs = Programs::at_or_built(options.programs.as_deref(), false)?;
    let (mut rates, mut per_second) = (Vec::new(), Vec::new());
    for pair in 0..options.pairs {
        // New processes for each pair average out what varies from start to start.
        let mut chains = Vec::new();
        for threads in [1, options.threads] {
            let run = folder()?;
            let authority = Authority::new(run.path())?;
            let hub_options = ["--threads".to_owned(), threads.to_string()];
            let kind = Kind::Relay(HubTransport::Wss);
            chains.push((Chain::start_with(kind, &programs, run.path(), &authority, &hub_options)?, run));
        }
        let (mut rate, mut calls_per_second): (Pair, Pair) = ([0.0; 2], [0.0; 2]);
        for index in if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            let (chain, _) = &chains[index];
            let hub = chain.part("hub");
            let used = || hub.map(Process::processor_time).unwrap_or_default();
            let before = used();
            let figures = load(&programs, &chain.endpoint, options.in_flight, options.seconds)?;
            // The processor time includes the warm-up, the calls do not, in both chains alike.
            calls_per_second[index] = figures.calls as f64 / (used() - before).as_secs_f64();
            rate[index] = figures.rate;
        }
        rates.push(rate);
        per_second.push(calls_per_second);
    }
    print(options, &rates, &per_second);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(options: &Options, rates: &[Pair], per_second: &[Pair]) {
    let threads = options.threads;
    println!("Medians of {} pairs; ratio: geometric mean of {threads} threads/1 thread.\n", options.pairs);
    println!(
        "| {} callers, uds + wss | 1 thread | {threads} threads | ratio | 95 % interval |",
        options.in_flight
    );
    println!("|---|---|---|---|---|");
    for (name, pairs) in [("calls/s", rates), ("calls per second of the hub's CPU", per_second)] {
        let of = |index: usize| median(pairs.iter().map(|pair| pair[index]).collect());
        let ratio = MeanRatio::of(&pairs.iter().map(|[one, several]| several / one).collect::<Vec<_>>());
        println!("| {name} | {:.0} | {:.0} | {ratio} |", of(0), of(1));
    }
}
