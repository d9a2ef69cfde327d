//! Measures how much a hanging call slows down the others.
//!
//! Each chain runs under the same load without and with one ControllerPublishVolume that hangs at the driver. Each round
//! measures without the hanging call, with it, and without it again. The ratio of the two measurements without it shows
//! the noise.

use clap::Args;

use super::build::Programs;
use super::chain::{Chain, Figures, HubTransport, Kind, Load};
use super::rounds::{Spread, median};
use super::{PerfError, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf hung`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rounds; every figure is a median over them.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Seconds of each of the three measurements of a round.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Number of concurrent callers whose calls do not hang.
    #[arg(long, default_value_t = 100)]
    in_flight: usize,
    /// Folder with release binaries, instead of building them.
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
}

const CHAINS: [Kind; 4] = [
    Kind::Direct,
    Kind::Relay(HubTransport::Uds),
    Kind::Relay(HubTransport::Wss),
    Kind::Relay(HubTransport::Quic),
];

type Figure = fn(&Figures) -> f64;

const FIGURES: [(&str, Figure); 3] = [
    ("calls/s", |figures| figures.rate),
    ("p50 µs", |figures| figures.p50),
    ("p99 µs", |figures| figures.p99),
];

/// The measurements of one round of one chain.
struct Round {
    before: Figures,
    beside: Figures,
    after: Figures,
}

/// Measures and prints the table.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::at_or_built(options.programs.as_deref(), false)?;
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    let chains = CHAINS.map(|kind| Chain::start(kind, &programs, run.path(), &authority));
    let chains = chains.into_iter().collect::<Result<Vec<_>, _>>()?;
    let load = Load { work: "publish", in_flight: options.in_flight.max(1), ..Load::new(options.seconds) };
    let mut rounds: Vec<Vec<Round>> = chains.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds.max(1) {
        for (chain, rounds) in chains.iter().zip(&mut rounds) {
            let measure = |beside_hung| Load { beside_hung, ..load }.run(&programs, &chain.endpoint);
            rounds.push(Round { before: measure(false)?, beside: measure(true)?, after: measure(false)? });
        }
    }
    print(&chains, options, &rounds);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(chains: &[Chain], options: &Options, rounds: &[Vec<Round>]) {
    let (callers, count) = (options.in_flight.max(1), options.rounds.max(1));
    println!(
        "{callers} callers publish volumes, alone and while one more call hangs; medians of {count} rounds."
    );
    println!(
        "In brackets: the quartiles. Spread: the ratio of the second measurement without the hanging call to the first.\n"
    );
    println!("| chain | figure | without | with | with/without | spread |");
    println!("|---|---|---|---|---|---|");
    for (chain, rounds) in chains.iter().zip(rounds) {
        for (name, figure) in FIGURES {
            let of = |part: &dyn Fn(&Round) -> f64| rounds.iter().map(part).collect::<Vec<f64>>();
            let alone = |round: &Round| f64::midpoint(figure(&round.before), figure(&round.after));
            println!(
                "| {} | {name} | {:.0} | {:.0} | {} | {} |",
                chain.kind.name(),
                median(of(&alone)),
                median(of(&|round| figure(&round.beside))),
                Spread::of(of(&|round| figure(&round.beside) / alone(round))),
                Spread::of(of(&|round| figure(&round.after) / figure(&round.before))),
            );
        }
    }
}
