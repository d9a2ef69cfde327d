//! Measures the cost of an idle session on a hub.

use clap::Args;

use super::build::Programs;
use super::processes::{Process, Reporter};
use super::{PerfError, folder};
use crate::authority::{Authority, Usage};

/// Options of `cargo xtask perf sessions`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Sessions on one hub, each with a client certificate. Hub and clients both need a file descriptor for each
    /// session (`ulimit -n`).
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
}

/// Measures wss and QUIC, each on a separate hub.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::build(false)?;
    println!(
        "| transport | sessions | hub empty KiB | hub full KiB | KiB/session | set-ups/s | hub CPU µs/set-up |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (scheme, port) in [("wss", 18_611), ("quic", 18_612)] {
        let run = folder()?;
        let authority = Authority::new(run.path())?;
        let files = authority.issue("hub", &["localhost", "127.0.0.1"], Usage::Server)?;
        let url = format!("{scheme}://127.0.0.1:{port}");
        let mut hub = programs.rust("edge-hub");
        hub.args(["--listen", &url, "--allow", "proxy=*:*"]);
        files.add_options(&mut hub, "--client-ca", &authority.root());
        let mut hub = Process::start("hub", run.path(), &mut hub)?;
        let files = authority.issue("idle", &["idle"], Usage::Client)?;
        let mut idle = programs.rust("idle-sessions");
        idle.args(["--hub", &url, "--sessions", &options.sessions.to_string()]);
        files.add_options(&mut idle, "--tls-ca", &authority.root());
        let mut idle = Reporter::start(&mut idle)?;
        idle.next_line()?; // One session is open, so the hub's code and tables are in memory.
        let (empty, spent) = (hub.resident(), hub.processor_time());
        let seconds: f64 = idle.next_line()?.parse().unwrap_or(f64::NAN); // All sessions are open.
        let (full, spent) = (hub.resident(), hub.processor_time() - spent);
        if !hub.is_running() {
            return Err(PerfError::ended_early("edge-hub"));
        }
        let many = options.sessions.max(1) as f64;
        println!(
            "| {scheme} | {} | {empty} | {full} | {:.1} | {:.0} | {:.0} |",
            options.sessions,
            full.saturating_sub(empty) as f64 / many,
            many / seconds,
            spent.as_secs_f64() * 1e6 / many,
        );
        idle.wait();
    }
    Ok(())
}
