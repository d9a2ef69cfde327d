//! Measures every chain at several numbers of callers, round after round, and prints the table.

use std::collections::BTreeMap;

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, Figures, Kind, load};
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
}

struct Measured {
    figures: Figures,
    /// Microseconds of processor time per call, of all processes of the chain except the load generator.
    processor: f64,
}

/// Measurements of all rounds, by the number of callers and the index of the chain.
type Results = BTreeMap<(usize, usize), Vec<Measured>>;

/// Measures and prints the table.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::build(!options.without_peers)?;
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    let mut chains = Vec::new();
    for kind in Kind::ALL {
        if options.without_peers && matches!(kind, Kind::GrpcProxy | Kind::Nats) {
            continue;
        }
        chains.push(Chain::start(kind, &programs, run.path(), &authority)?);
    }
    let mut results = Results::new();
    for _ in 0..options.rounds.max(1) {
        for &in_flight in &options.in_flight {
            for (index, chain) in chains.iter().enumerate() {
                let before = chain.processor_time();
                let figures = load(&programs, &chain.endpoint, in_flight, options.seconds)?;
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
        println!("| chain | calls/s | p50 µs | p99 µs | CPU µs/call | p50 to direct | rate to direct |");
        println!("|---|---|---|---|---|---|---|");
        let Some(base) = results.get(&(in_flight, 0)) else { continue };
        for (index, chain) in chains.iter().enumerate() {
            let Some(rounds) = results.get(&(in_flight, index)) else { continue };
            let of = |figure: fn(&Measured) -> f64| median(rounds.iter().map(figure).collect());
            let ratio = |figure: fn(&Measured) -> f64| {
                median(
                    rounds.iter().zip(base).map(|(relay, direct)| figure(relay) / figure(direct)).collect(),
                )
            };
            println!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
                chain.kind.name(),
                of(|m| m.figures.rate),
                of(|m| m.figures.p50),
                of(|m| m.figures.p99),
                of(|m| m.processor),
                ratio(|m| m.figures.p50),
                ratio(|m| m.figures.rate),
            );
        }
    }
}
