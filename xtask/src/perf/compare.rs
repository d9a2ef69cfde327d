//! Compares two builds of the relay, such as before and after a change.
//!
//! Each pair starts the chains of both builds, and measures each chain in turns: one build, the other twice, the first again,
//! and so on, so that what else the machine does meanwhile meets both. New processes for each pair average out what varies
//! from start to start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, HubTransport, Kind, load};
use super::rounds::{MeanRatio, check_pairs, median};
use super::{PerfError, folder};
use crate::authority::Authority;

/// Lowest ratio of the rates that the interval may contain.
const LOWEST_RATIO: f64 = 0.95;

/// Options of `cargo xtask perf compare`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Folder with the release binaries of the old build: edge-hub, edge-agent, edge-csi-driver and bench-driver.
    #[arg(long, value_name = "DIR")]
    before: PathBuf,
    /// Folder with the release binaries of the new build, and `load`.
    #[arg(long, value_name = "DIR")]
    after: PathBuf,
    /// Pairs of measurements of each chain, at least 5.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Numbers of concurrent callers, measured one after another.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    in_flight: Vec<usize>,
}

/// Turns of each build in one measurement.
const TURNS: usize = 8;

const CHAINS: [Kind; 2] = [Kind::Relay(HubTransport::Uds), Kind::Relay(HubTransport::Wss)];

/// Rates before and after, by the number of callers and the index of the chain.
type Results = BTreeMap<(usize, usize), Vec<[f64; 2]>>;

/// Measures and prints the ratios.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    check_pairs(options.pairs)?;
    let builds = [&options.before, &options.after].map(|folder| Programs::at(folder));
    let mut results = Results::new();
    for pair in 0..options.pairs {
        measure(options, &builds, pair, &mut results)?;
    }
    print(options, &results);
    Ok(())
}

fn measure(
    options: &Options,
    builds: &[Programs; 2],
    pair: usize,
    results: &mut Results,
) -> Result<(), PerfError> {
    let mut chains = Vec::new();
    for programs in builds {
        let run = folder()?;
        let authority = Authority::new(run.path())?;
        let started = CHAINS.map(|kind| Chain::start(kind, programs, run.path(), &authority));
        chains.push((started.into_iter().collect::<Result<Vec<_>, _>>()?, run));
    }
    // The same client measures both builds.
    let [_, client] = builds;
    for &in_flight in &options.in_flight {
        for index in 0..CHAINS.len() {
            let mut rates = [0.0; 2];
            for turn in 0..TURNS {
                for build in if (pair + turn).is_multiple_of(2) { [0, 1] } else { [1, 0] } {
                    let endpoint = &chains[build].0[index].endpoint;
                    let seconds = options.seconds / TURNS as f64;
                    rates[build] += load(client, endpoint, in_flight, seconds)?.rate / TURNS as f64;
                }
            }
            results.entry((in_flight, index)).or_default().push(rates);
        }
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(options: &Options, results: &Results) {
    println!("Medians of {} pairs; ratio: geometric mean of after/before.\n", options.pairs);
    println!(
        "| chain | callers | before calls/s | after calls/s | ratio | 95 % interval | excludes a loss above 5 % |"
    );
    println!("|---|---|---|---|---|---|---|");
    for ((in_flight, index), pairs) in results {
        let of = |build: usize| median(pairs.iter().map(|rates| rates[build]).collect());
        let ratios: Vec<f64> = pairs.iter().map(|[before, after]| after / before).collect();
        let ratio = MeanRatio::of(&ratios);
        println!(
            "| {} | {in_flight} | {:.0} | {:.0} | {ratio} | {} |",
            CHAINS[*index].name(),
            of(0),
            of(1),
            if ratio.low >= LOWEST_RATIO { "yes" } else { "no" },
        );
    }
}
