//! A driver on many nodes with many placements: the proxy of `cargo xtask perf selection`.
//!
//! With `--prepare` creates the file of placements, and learns the nodes. Otherwise opens the file as after a restart, and
//! measures. Prints one JSON object; times are in seconds, latencies in milliseconds, memory in KiB, sizes in bytes.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

mod calls;
mod nodes;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use csi_proxy::advanced::call::{Digest, Subject};
use csi_proxy::advanced::routing::{Change, Placement, PlacementStore as _, Status};
use csi_proxy::{DriverName, Endpoint, NodeId, RedbStore, Router, Serving, TopologyRouter};
use edge_csi_benches::load;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mimalloc::MiMalloc;
use serde_json::{Value, json};
use tonic::transport::Channel;

use self::calls::Places;
use self::nodes::{DRIVER, Nodes, name, volume_id};

/// The allocator of edge-csi-driver, whose memory is measured here.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Placements that are written at once.
const CONCURRENT_WRITES: usize = 256;

/// Calls of each measurement.
const CALLS: usize = 200;

/// Volumes that are created at once after the start: the workers of a provisioner.
const WORKERS: usize = 100;

/// Interval between two reads of the number of online nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Parser)]
#[command(about = "Select nodes of a driver on many nodes with many placements")]
struct Options {
    /// Folder for the file of placements and the sockets.
    #[arg(long)]
    folder: PathBuf,
    /// Number of nodes with the driver.
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// Number of volumes, equally many on each node.
    #[arg(long, default_value_t = 200_000)]
    placements: usize,
    /// Milliseconds from a call to the answer of its node.
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// Create the file, and learn the nodes.
    #[arg(long)]
    prepare: bool,
}

type SelectionResult<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("selection: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> SelectionResult<Value> {
    if options.prepare { prepare(options).await } else { measure(options).await }
}

impl Options {
    fn store(&self) -> SelectionResult<RedbStore> {
        Ok(RedbStore::open(self.file(), &DriverName::new(DRIVER)?)?)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("placements.redb")
    }

    async fn serve(
        &self,
        router: Router,
        socket: &str,
        latency: Duration,
    ) -> SelectionResult<(Serving, Channel)> {
        let socket = format!("unix://{}", self.folder.join(socket).display());
        let endpoint = Endpoint::new(DriverName::new(DRIVER)?, router, Nodes { latency });
        let serving = endpoint.serve(socket.parse()?).await?;
        Ok((serving, load::connect(&socket).await?))
    }

    /// Opens the route, and reports all nodes as connected.
    async fn route(&self, store: RedbStore) -> SelectionResult<Arc<TopologyRouter>> {
        let route = TopologyRouter::builder(DriverName::new(DRIVER)?, []).with_discovery();
        Ok(Arc::new(route.open(store).await?))
    }

    fn connect_nodes(&self, route: &TopologyRouter) -> SelectionResult<()> {
        for number in 0..self.nodes {
            route.arrived(&NodeId::new(name(number))?);
        }
        route.synced();
        Ok(())
    }

    /// Waits until the route has reached all nodes.
    async fn reach_nodes(&self, route: &TopologyRouter) {
        while route.node_counts().1 < self.nodes {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

async fn prepare(options: &Options) -> SelectionResult<Value> {
    let (store, started) = (options.store()?, Instant::now());
    let write = |number: usize| {
        let store = store.clone();
        let change = change(options, number);
        async move { store.write(&change?).await.map(drop).map_err(Into::into) }
    };
    let writes = stream::iter(0..options.placements).map(write).buffer_unordered(CONCURRENT_WRITES);
    writes.try_collect::<()>().await.map_err(|error: Box<dyn Error>| error)?;
    let written = started.elapsed();
    let route = options.route(store).await?;
    let (serving, _) =
        options.serve(Router::topology(Arc::clone(&route)), "csi.sock", Duration::ZERO).await?;
    let started = Instant::now();
    options.connect_nodes(&route)?;
    options.reach_nodes(&route).await;
    let learnt = started.elapsed();
    // Also stores the driver info that is not stored yet.
    serving.shutdown(Duration::from_secs(10)).await;
    Ok(json!({ "written": written.as_secs_f64(), "learnt": learnt.as_secs_f64() }))
}

fn change(options: &Options, number: usize) -> SelectionResult<Change> {
    let volume = format!("pvc-{number:08x}-0000-4000-8000-000000000000");
    let node = NodeId::new(name(number % options.nodes))?;
    let status = Status::Created { id: volume_id(&volume).into() };
    let placement = Some(Placement { node, digest: Digest::from_bytes([7; 32]), status });
    Ok(Change { key: Subject::VolumeName(volume.into()), expected: None, placement })
}

async fn measure(options: &Options) -> SelectionResult<Value> {
    let latency = Duration::from_millis(options.latency);
    let (before, started) = (memory("VmRSS:"), Instant::now());
    let store = options.store()?;
    let opened = started.elapsed();
    let route = options.route(store).await?;
    let routed = started.elapsed();
    let (after, peak) = (memory("VmRSS:"), memory("VmHWM:"));
    let (serving, channel) = options.serve(Router::topology(Arc::clone(&route)), "csi.sock", latency).await?;
    options.connect_nodes(&route)?;
    let reached = async {
        options.reach_nodes(&route).await;
        started.elapsed()
    };
    let first = calls::create_at_once(&channel, options.nodes, WORKERS, started);
    let (first, reached) = tokio::join!(first, reached);

    let fixed = Router::fixed(NodeId::new(name(0))?);
    let (fixed, baseline) = options.serve(fixed, "fixed.sock", latency).await?;
    let mut creations = Vec::new();
    for places in Places::ALL {
        let routed = calls::create_volumes(&channel, places, options.nodes, CALLS).await?;
        let fixed = calls::create_volumes(&baseline, places, options.nodes, CALLS).await?;
        creations
            .push(json!({ "places": places.name(), "routed": routed.figures(), "fixed": fixed.figures() }));
    }
    let capacity = calls::capacities(&channel, options.nodes, CALLS).await?;
    let fixed_capacity = calls::capacities(&baseline, options.nodes, CALLS).await?;
    let figures = json!({
        "before": before,
        "after": after,
        "peak": peak,
        "in_use": memory("VmRSS:"),
        "file": std::fs::metadata(options.file())?.len(),
        "rows": route.rows(),
        "opened": opened.as_secs_f64(),
        "routed": routed.as_secs_f64(),
        "reached": reached.as_secs_f64(),
        "first": first?.figures(),
        "creations": creations,
        "capacity": { "routed": capacity.figures(), "fixed": fixed_capacity.figures() },
    });
    serving.shutdown(Duration::from_secs(10)).await;
    fixed.shutdown(Duration::from_secs(10)).await;
    Ok(figures)
}

/// A figure of proc(5)'s `status`, in KiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
