//! `cargo xtask sim`: runs seeds until one breaks a property.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

/// Runs seeds. The first that breaks a property is told, with the end of its trace and the command that runs it again.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print all that happens. For one seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Go on after a seed that breaks a property, and tell them all in one line each.
    #[arg(long)]
    keep_going: bool,
}

/// How many lines of a trace are told without `--trace`.
const LINES: usize = 60;

fn main() -> ExitCode {
    let options = Options::parse();
    match seeds(&options, &mut io::stdout().lock()) {
        Ok(0) => ExitCode::SUCCESS,
        // A reader that has gone, as in a pipe to `head`, is no trouble of ours.
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// How many seeds broke a property.
fn seeds(options: &Options, out: &mut impl Write) -> io::Result<u64> {
    let (first, count) = options.seed.map_or((options.first, options.seeds), |seed| (seed, 1));
    let began = Instant::now();
    let (mut broken, mut happened, mut executions, mut retries) = (0, 0, 0, 0);
    for seed in first..first.saturating_add(count) {
        let run = edge_csi_sim::run(seed, options.trace);
        happened += run.happened;
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
            let trace = edge_csi_sim::run(seed, true).trace;
            let lines: Vec<&str> = trace.lines().collect();
            for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
                writeln!(out, "{line}")?;
            }
        }
        writeln!(out, "seed {seed} breaks a property: {violation}")?;
        writeln!(out, "replay: cargo xtask sim --seed {seed} --trace")?;
        return Ok(broken);
    }
    let seconds = began.elapsed().as_secs_f64();
    writeln!(
        out,
        "{count} seeds in {seconds:.1} s, {:.0} a second; {happened} happenings, {executions} executions, {retries} retries; {broken} broken",
        count as f64 / seconds.max(1e-9),
    )?;
    Ok(broken)
}
