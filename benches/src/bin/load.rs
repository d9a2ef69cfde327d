//! Drives any CSI socket in a closed loop and prints calls per second and latencies.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use edge_csi_benches::load::{self, LoadError, Plan, Steps, Work};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

#[derive(Debug, Parser)]
#[command(about = "Drive a CSI socket in a closed loop; print calls/s, p50, p99 and p999")]
struct Options {
    /// The socket, for example unix:///run/csi/csi.sock.
    #[arg(long)]
    endpoint: String,
    /// The calls that each caller repeats.
    #[arg(long, value_enum, default_value = "create-volume")]
    work: Work,
    /// Number of concurrent callers on one connection; several numbers are measured one after another.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    in_flight: Vec<usize>,
    /// Seconds to measure at each number of callers; 0: one call of each.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Count failed calls and continue.
    #[arg(long)]
    tolerate: bool,
    /// Let one more ControllerPublishVolume hang during the measurement; the driver must be bench-driver.
    #[arg(long)]
    beside_hung: bool,
    /// Make the calls of one caller for each line at standard input, and print a line after them.
    #[arg(long, conflicts_with = "json")]
    by_step: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(&options)).map_err(|error| error.to_string()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), LoadError> {
    let channel = load::connect(&options.endpoint).await?;
    if options.by_step {
        let (mut steps, mut lines) = (Steps::new(&channel, options.work), BufReader::new(stdin()).lines());
        while let Ok(Some(_)) = lines.next_line().await {
            steps.next().await?;
            println!("done");
        }
        return Ok(());
    }
    if !options.json {
        println!(
            "{:>9} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}",
            "in flight", "calls", "errors", "calls/s", "p50 us", "p99 us", "p999 us"
        );
    }
    for &in_flight in &options.in_flight {
        let mut plan = Plan::new(
            options.work,
            in_flight.max(1),
            Duration::from_secs_f64(options.seconds.clamp(0.0, 86_400.0)),
        );
        plan.tolerate = options.tolerate;
        plan.beside_hung = options.beside_hung;
        let figures = load::run(&channel, plan).await?;
        if options.json {
            println!("{}", serde_json::json!(figures));
        } else {
            println!(
                "{:>9} {:>10} {:>8} {:>10.0} {:>10.1} {:>10.1} {:>10.1}",
                figures.in_flight,
                figures.calls,
                figures.errors,
                figures.rate,
                figures.p50,
                figures.p99,
                figures.p999
            );
        }
    }
    Ok(())
}
