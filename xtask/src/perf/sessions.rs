//! Measures many sessions on one hub: their cost, and their return after the hub was killed.

use std::fs;
use std::ops::Sub;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::build::Programs;
use super::chain::{free_port, pause};
use super::processes::{Process, Reporter, http_get, raise_open_files};
use super::{PerfError, folder};

/// Open files of a process in addition to one for each session: connections that have ended at one end only.
const SPARE_FILES: u64 = 1000;

/// Time in which the caller calls before the hub is killed.
const CALLS_BEFORE: Duration = Duration::from_secs(10);

/// Interval between two reads of the hub's metrics.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time limit for the return of all sessions.
const RETURN_TIMEOUT: Duration = Duration::from_secs(900);

/// The metric of refused links, which is followed by the cause and the number.
const REFUSED_LINKS: &str = "edge_transport_hub_refused_links_total";

/// The parts of the sessions whose return is measured, in percent.
const PARTS: [u64; 3] = [50, 99, 100];

/// Options of `cargo xtask perf sessions`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Sessions on one hub, each with its own client certificate, and over wss with its own source address. One of them
    /// is a caller. Hub and clients both need an open file for each wss session.
    #[arg(long, default_value_t = 10_000)]
    sessions: u64,
    /// The transports, each on a separate hub. Over QUIC at most 28,000 sessions have a port.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "wss")]
    transport: Vec<Transport>,
    /// Seconds in which the processor time of idle sessions is measured.
    #[arg(long, default_value_t = 60.0)]
    idle_seconds: f64,
    /// Folder with release binaries, instead of building them.
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Wss,
    Quic,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Wss => "wss",
            Self::Quic => "quic",
        }
    }
}

/// The duration of a step of the clients.
#[derive(Debug, Deserialize)]
struct Step {
    seconds: f64,
}

/// The calls of the caller. Latencies in milliseconds.
#[derive(Debug, Deserialize)]
struct Calls {
    calls: u64,
    failed: u64,
    p50: f64,
    p99: f64,
}

/// What the hub and the kernel use at one moment. Memory in KiB.
#[derive(Debug, Clone, Copy)]
struct Usage {
    hub: u64,
    /// Objects of the kernel, such as sockets, of all processes.
    slab: u64,
    /// Buffers of all TCP sockets.
    buffers: u64,
    processor_time: Duration,
}

impl Usage {
    fn of(hub: &Process) -> Self {
        let sockstat = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
        let tcp = sockstat.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
        // The last figure is in pages of 4 KiB.
        let pages = tcp.split_whitespace().last().and_then(|pages| pages.parse::<u64>().ok());
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let slab = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"));
        let slab = slab.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse().ok());
        Self {
            hub: hub.resident(),
            slab: slab.unwrap_or_default(),
            buffers: pages.unwrap_or_default() * 4,
            processor_time: hub.processor_time(),
        }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            hub: self.hub.saturating_sub(before.hub),
            slab: self.slab.saturating_sub(before.slab),
            buffers: self.buffers.saturating_sub(before.buffers),
            processor_time: self.processor_time.saturating_sub(before.processor_time),
        }
    }
}

/// Measures each transport on a separate hub.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::at_or_built(options.programs.as_deref(), false)?;
    raise_open_files(options.sessions + SPARE_FILES)?;
    for &transport in &options.transport {
        println!("{} sessions over {}.\n", options.sessions, transport.name());
        let run = folder()?;
        let (port, http) = (free_port()?, free_port()?);
        Case { options, programs: &programs, transport, run: run.path(), port, http }.measure()?;
    }
    Ok(())
}

/// One transport.
struct Case<'a> {
    options: &'a Options,
    programs: &'a Programs,
    transport: Transport,
    run: &'a Path,
    /// The port that the clients dial.
    port: u16,
    /// The port of the hub's metrics.
    http: u16,
}

impl Case<'_> {
    /// Prints each figure as soon as it is known: a run takes minutes.
    fn measure(&self) -> Result<(), PerfError> {
        let many = self.options.sessions.max(1) as f64;
        row("figure", "value");
        row("---", "---");
        let mut clients = Reporter::start(&mut self.clients())?;
        let step: Step = clients.figures()?;
        row("creation of the certificates, s", &format!("{:.1}", step.seconds));

        let mut hub = self.start_hub()?;
        clients.next_step()?;
        let _: Step = clients.figures()?; // One session is open, so the hub's code and tables are in memory.
        let empty = Usage::of(&hub);
        clients.next_step()?;
        let step: Step = clients.figures()?;
        let full = Usage::of(&hub);
        if !hub.is_running() {
            return Err(PerfError::ended_early("edge-hub"));
        }
        let used = full - empty;
        row("set-ups/s", &format!("{:.0}", many / step.seconds));
        row("hub CPU of a set-up, µs", &format!("{:.0}", micros(used.processor_time) / many));
        row("hub memory, MiB", &format!("{}", full.hub >> 10));
        row("hub memory of a session, KiB", &format!("{:.1}", used.hub as f64 / many));
        row("kernel memory of a session, both ends, KiB", &format!("{:.1}", used.slab as f64 / many));
        row("socket buffers of a session, both ends, KiB", &format!("{:.1}", used.buffers as f64 / many));

        let idle = Duration::from_secs_f64(self.options.idle_seconds.clamp(1.0, 3600.0));
        let before = Usage::of(&hub);
        pause(idle);
        let after = Usage::of(&hub);
        let cores = (after - before).processor_time.as_secs_f64() / idle.as_secs_f64();
        row("hub CPU of an idle session, µs/min", &format!("{:.0}", cores * 60e6 / many));
        row("hub CPU of all idle sessions, % of a core", &format!("{:.1}", cores * 100.0));
        row("hub memory of an idle session, KiB", &format!("{:.1}", (after - empty).hub as f64 / many));

        clients.next_step()?;
        pause(CALLS_BEFORE);
        clients.next_step()?;
        row("calls before the kill", &shown(&clients.figures()?));
        let (killed, before) = (Instant::now(), clients.processor_time());
        drop(hub);
        let hub = self.start_hub()?;
        self.await_return(&hub, killed)?;
        let spent = clients.processor_time().saturating_sub(before);
        row("CPU of the clients until then, s", &format!("{:.1}", spent.as_secs_f64()));
        clients.next_step()?;
        row("calls until then", &shown(&clients.figures()?));
        pause(CALLS_BEFORE);
        clients.next_step()?;
        row("calls afterwards", &shown(&clients.figures()?));
        clients.wait();
        Ok(())
    }

    fn clients(&self) -> Command {
        let mut clients = self.programs.rust("idle-sessions");
        clients.args(["--hub", &format!("127.0.0.1:{}", self.port), "--transport", self.transport.name()]);
        clients.args(["--sessions", &self.options.sessions.to_string(), "--folder"]).arg(self.run);
        clients
    }

    fn start_hub(&self) -> Result<Process, PerfError> {
        let mut hub = self.programs.rust("edge-hub");
        hub.args(["--listen", &format!("{}://127.0.0.1:{}", self.transport.name(), self.port)]);
        hub.args(["--http-endpoint", &format!("127.0.0.1:{}", self.http), "--allow", "caller=*:@echo"]);
        for (option, file) in [("--tls-cert", "hub.pem"), ("--tls-key", "hub.key"), ("--client-ca", "ca.pem")]
        {
            hub.arg(option).arg(self.run.join(file));
        }
        Process::start("hub", self.run, &mut hub)
    }

    /// Waits until all sessions are back, and prints when parts of them were.
    fn await_return(&self, hub: &Process, killed: Instant) -> Result<(), PerfError> {
        let (mut back, mut metrics) = (0, String::new());
        for part in PARTS {
            let wanted = (self.options.sessions * part).div_ceil(100);
            while back < wanted {
                if killed.elapsed() > RETURN_TIMEOUT {
                    let what =
                        format!("{back} sessions were back {} s after the kill", RETURN_TIMEOUT.as_secs());
                    return Err(PerfError::Command { command: "idle-sessions".to_owned(), output: what });
                }
                pause(POLL_INTERVAL);
                metrics = http_get(self.http, "/metrics").unwrap_or(metrics);
                back = peers(&metrics).unwrap_or(back);
            }
            row(
                &format!("{part} % back after the kill, s"),
                &format!("{:.1}", killed.elapsed().as_secs_f64()),
            );
        }
        let refused = metrics.lines().filter_map(|line| line.strip_prefix(REFUSED_LINKS));
        row("links refused until then", &refused.collect::<Vec<_>>().join(", "));
        row("hub CPU until then, s", &format!("{:.1}", hub.processor_time().as_secs_f64()));
        row("highest memory of the hub until then, MiB", &format!("{}", hub.peak_resident() >> 10));
        Ok(())
    }
}

/// Returns the number of connected peers in the hub's metrics.
fn peers(metrics: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix("edge_transport_hub_peers "))?;
    value.trim().parse().ok()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn shown(calls: &Calls) -> String {
    let Calls { calls, failed, p50, p99 } = calls;
    format!("{calls}, p50 {p50:.1} ms, p99 {p99:.1} ms, {failed} failed")
}

#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
fn row(name: &str, value: &str) {
    println!("| {name} | {value} |");
}
