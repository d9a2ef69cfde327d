//! `cargo sim`: runs seeds until one breaks a property.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum as _};
use edge_csi_sim::Planted;

/// Runs seeds. Prints the first seed that breaks a property, the end of its trace, and the command that runs it again.
#[derive(Debug, Parser)]
#[command(name = "cargo sim", bin_name = "cargo sim")]
struct Options {
    /// Number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print all events of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Continue after a seed that breaks a property, and print one line for each.
    #[arg(long)]
    keep_going: bool,
    /// Plant this fault, which a property has to find.
    #[arg(long)]
    planted: Option<Planted>,
}

/// The number of trace lines that are printed without `--trace`.
const LINES: usize = 60;

fn main() -> ExitCode {
    let options = Options::parse();
    match seeds(&options, &mut io::stdout().lock()) {
        Ok(0) => ExitCode::SUCCESS,
        // A closed reader, as in a pipe to `head`, is not an error.
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Runs the seeds. Returns how many of them broke a property.
fn seeds(options: &Options, out: &mut impl Write) -> io::Result<u64> {
    let (first, count) = options.seed.map_or((options.first, options.seeds), |seed| (seed, 1));
    let began = Instant::now();
    let (mut broken, mut executions, mut retries) = (0, 0, 0);
    for seed in first..first.saturating_add(count) {
        let run = simulate(seed, options.planted, options.trace)?;
        executions += run.executions;
        retries += run.retries;
        write!(out, "{}", run.trace)?;
        let Some(violation) = run.violation else { continue };
        broken += 1;
        if options.keep_going {
            writeln!(out, "seed {seed}: {violation}")?;
            continue;
        }
        if !options.trace {
            let trace = simulate(seed, options.planted, true)?.trace;
            let lines: Vec<&str> = trace.lines().collect();
            for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
                writeln!(out, "{line}")?;
            }
        }
        writeln!(out, "seed {seed} breaks a property: {violation}")?;
        let planted = options.planted.and_then(|planted| planted.to_possible_value());
        let planted =
            planted.map_or_else(String::new, |planted| format!(" --planted {}", planted.get_name()));
        writeln!(out, "replay: cargo sim --seed {seed}{planted} --trace")?;
        return Ok(broken);
    }
    let seconds = began.elapsed().as_secs_f64();
    writeln!(
        out,
        "{count} seeds in {seconds:.1} s, {:.0} a second; {executions} executions, {retries} retries; {broken} broken",
        count as f64 / seconds.max(1e-9),
    )?;
    Ok(broken)
}

fn simulate(seed: u64, planted: Option<Planted>, tracing: bool) -> io::Result<edge_csi_sim::Run> {
    edge_csi_sim::run(seed, planted, tracing).map_err(io::Error::other)
}
