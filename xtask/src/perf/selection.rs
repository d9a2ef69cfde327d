//! Measures the selection of nodes by a proxy with many nodes and placements, and its restart.

use std::path::Path;
use std::process::Command;

use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::build::Programs;
use super::processes::Reporter;
use super::{PerfError, folder};

/// Options of `cargo xtask perf selection`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Nodes with the driver, at most 10,000.
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// Volumes, equally many on each node.
    #[arg(long, default_value_t = 200_000)]
    placements: u32,
    /// Milliseconds from a call to the answer of its node.
    #[arg(long, default_value_t = 20)]
    latency: u32,
    /// Folder with release binaries, instead of building them.
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
}

/// The creation of the file, in seconds.
#[derive(Debug, Deserialize)]
struct Prepared {
    written: f64,
    learnt: f64,
}

/// A run of the proxy after a restart. Times in seconds since its start, memory in KiB.
#[derive(Debug, Deserialize)]
struct Restarted {
    before: u64,
    after: u64,
    peak: u64,
    in_use: u64,
    /// The size of the file in bytes.
    file: u64,
    rows: u64,
    opened: f64,
    routed: f64,
    reached: f64,
    first: Calls,
    creations: Vec<Creations>,
    capacity: Compared,
}

/// Creations of volumes with the same kind of request.
#[derive(Debug, Deserialize)]
struct Creations {
    places: String,
    #[serde(flatten)]
    calls: Compared,
}

/// Calls whose node is selected, and the same calls to a fixed node.
#[derive(Debug, Deserialize)]
struct Compared {
    routed: Calls,
    fixed: Calls,
}

/// Latencies of some calls in milliseconds, and the sizes of the last one in bytes.
#[derive(Debug, Deserialize)]
struct Calls {
    p50: f64,
    p99: f64,
    max: f64,
    request: u64,
    answer: u64,
}

/// Prepares a file of placements, measures a proxy that opens the file, and prints the figures.
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::at_or_built(options.programs.as_deref(), false)?;
    let run = folder()?;
    let prepared: Prepared = figures(proxy(options, &programs, run.path()).arg("--prepare"))?;
    let restarted: Restarted = figures(&mut proxy(options, &programs, run.path()))?;
    print(options, &prepared, &restarted);
    Ok(())
}

fn proxy(options: &Options, programs: &Programs, folder: &Path) -> Command {
    let mut proxy = programs.rust("selection");
    proxy.arg("--folder").arg(folder).args(["--nodes", &options.nodes.to_string()]);
    proxy.args(["--placements", &options.placements.to_string(), "--latency", &options.latency.to_string()]);
    proxy
}

fn figures<T: DeserializeOwned>(command: &mut Command) -> Result<T, PerfError> {
    let mut running = Reporter::start(command)?;
    let figures = running.figures()?;
    running.wait();
    Ok(figures)
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(options: &Options, prepared: &Prepared, restarted: &Restarted) {
    let Options { nodes, placements, latency, .. } = options;
    println!("{nodes} nodes that answer in {latency} ms, {placements} volumes.\n");
    let row = |name: &str, value: String| println!("| {name} | {value} |");
    row("figure", "value".to_owned());
    row("---", "---".to_owned());
    row("writing the placements for the first time, s", format!("{:.1}", prepared.written));
    row("learning the nodes for the first time, s", format!("{:.1}", prepared.learnt));
    row("size of the file, MiB", format!("{}", restarted.file >> 20));
    row("rows", restarted.rows.to_string());
    row("memory before opening the file, MiB", format!("{}", restarted.before >> 10));
    row("memory with the placements and the stored driver info, MiB", format!("{}", restarted.after >> 10));
    row("highest memory while opening, MiB", format!("{}", restarted.peak >> 10));
    row("memory in use, MiB", format!("{}", restarted.in_use >> 10));
    row("restart until the file is open, s", format!("{:.2}", restarted.opened));
    row("restart until the route is open, s", format!("{:.2}", restarted.routed));
    let first = |millis: f64| format!("{:.2}", millis / 1e3);
    row("restart until half of 100 CreateVolumes are answered, s", first(restarted.first.p50));
    row("restart until 100 CreateVolumes are answered, s", first(restarted.first.max));
    row("restart until all nodes are reached, s", format!("{:.1}", restarted.reached));

    println!(
        "\n| call | places in the request | request B | answer B | p50 ms | p99 ms | fixed node: p50 ms | fixed node: p99 ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let call = |method: &str, places: &str, Compared { routed, fixed }: &Compared| {
        println!(
            "| {method} | {places} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            routed.request, routed.answer, routed.p50, routed.p99, fixed.p50, fixed.p99
        );
    };
    for Creations { places, calls } in &restarted.creations {
        call("CreateVolume", places, calls);
    }
    call("GetCapacity", "one node", &restarted.capacity);
}
