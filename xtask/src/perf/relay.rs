//! Measures every chain at several numbers of callers, round after round, and prints the table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, Figures, Kind};
use super::rounds::median;
use super::{PerfError, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf relay`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rounds; every figure is a median over them.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds to measure one chain at one number of callers.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Numbers of concurrent callers, measured one after another.
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    in_flight: Vec<usize>,
    /// Measure only the chains of edge-csi, without the Go peers and NATS.
    #[arg(long)]
    without_peers: bool,
    /// Folder with release binaries, instead of building them; without the Go peers, NATS, and chains that they do not have.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

struct Measured {
    figures: Figures,
    /// Microseconds of processor time per call, of all processes of the chain except the load generator.
    processor: f64,
}

/// Measurements of all rounds, by the number of callers and the index of the chain.
type Results = BTreeMap<(usize, usize), Vec<Measured>>;

/// Measures and prints the table.
#[allow(clippy::print_stderr, reason = "the output of a command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let peers = !options.without_peers && options.programs.is_none();
    let programs = Programs::at_or_built(options.programs.as_deref(), peers)?;
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    let mut chains = Vec::new();
    for kind in Kind::ALL {
        if !peers && matches!(kind, Kind::GrpcProxy | Kind::Nats) {
            continue;
        }
        match Chain::start(kind, &programs, run.path(), &authority) {
            Ok(chain) => chains.push(chain),
            // The programs of another commit may not have it.
            Err(error) if options.programs.is_some() => eprintln!("left out: {error}"),
            Err(error) => return Err(error),
        }
    }
    let mut results = Results::new();
    for _ in 0..options.rounds.max(1) {
        for &in_flight in &options.in_flight {
            for (index, chain) in chains.iter().enumerate() {
                let before = chain.processor_time();
                let figures = chain.load(&programs, in_flight, options.seconds)?;
                // The processor time includes the warm-up, the calls do not: scale by the measured share of the time.
                let share = options.seconds / (options.seconds + (options.seconds / 5.0).min(1.0));
                let processor = (chain.processor_time() - before).as_secs_f64() * 1e6 * share
                    / figures.calls.max(1) as f64;
                results.entry((in_flight, index)).or_default().push(Measured { figures, processor });
            }
        }
    }
    print(&chains, options, &results);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(chains: &[Chain], options: &Options, results: &Results) {
    for &in_flight in &options.in_flight {
        println!("\n{in_flight} in flight, medians of {} rounds\n", options.rounds.max(1));
        println!(
            "| chain | calls/s | p50 µs | p99 µs | CPU µs/call | p50 to direct | p50 to bare | rate to direct | CPU to direct |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        // As in `Kind::ALL`.
        let Some((direct, bare)) = results.get(&(in_flight, 0)).zip(results.get(&(in_flight, 1))) else {
            continue;
        };
        for (index, chain) in chains.iter().enumerate() {
            let Some(rounds) = results.get(&(in_flight, index)) else { continue };
            let of = |figure: fn(&Measured) -> f64| median(rounds.iter().map(figure).collect());
            let ratio = |base: &[Measured], figure: fn(&Measured) -> f64| {
                median(rounds.iter().zip(base).map(|(relay, base)| figure(relay) / figure(base)).collect())
            };
            println!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} |",
                chain.kind.name(),
                of(|m| m.figures.rate),
                of(|m| m.figures.p50),
                of(|m| m.figures.p99),
                of(|m| m.processor),
                ratio(direct, |m| m.figures.p50),
                ratio(bare, |m| m.figures.p50),
                ratio(direct, |m| m.figures.rate),
                ratio(direct, |m| m.processor),
            );
        }
    }
}
