//! Runs one random trace of orders to a node's volumes on any driver, and records the state after each step. The
//! program mounts: run it as root, in private namespaces for mounts and processes.
//!
//! `volume-trace --directory EMPTY --program volume-node --seed N --steps N --record FILE --drivername NAME
//! [--deviation WORD]... -- PROGRAM ARGUMENT...`. `{socket}` and `{state}` in the arguments are replaced by the
//! driver's paths.

#![allow(clippy::print_stderr, reason = "a command line tool reports on stderr")]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use edge_csi_tests::volumes::rounds::Rounds;
use edge_csi_tests::volumes::trace::{Trace, TracedDriver, run};

fn main() -> ExitCode {
    match trace() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("volume-trace: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn trace() -> Result<(), Box<dyn Error>> {
    let driver = TracedDriver { name: String::new(), command: Vec::new(), deviations: Vec::new() };
    let mut trace = Trace { directory: PathBuf::new(), program: PathBuf::new(), driver, steps: 0 };
    let (mut seed, mut record) = (0, PathBuf::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        if option == "--" {
            trace.driver.command = arguments.collect();
            break;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--directory" => trace.directory = value.into(),
            "--program" => trace.program = value.into(),
            "--seed" => seed = value.parse()?,
            "--steps" => trace.steps = value.parse()?,
            "--record" => record = value.into(),
            "--drivername" => trace.driver.name = value,
            "--deviation" => trace.driver.deviations.push(value.parse()?),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lines = runtime.block_on(run(&trace, &mut Rounds::new(seed)));
    Ok(std::fs::write(record, lines.join("\n"))?)
}
