//! Simulation of hubs, agents and proxies.
//!
//! All parts are the shipped ones: `edge_transport`'s hub and peer over memory links, `csi_proxy`'s relays, dispatcher
//! and driver client. They run on one thread in tokio's paused time. Everything else is simulated from one seed: the
//! network, the begin and end of processes, the drivers, and the sidecars. The simulation uses no socket, no file and
//! no clock of the machine, so that a seed always gives the same run.
//!
//! Faults happen for a time. Then they stop, and the system must recover. Attackers lie all the time. `oracle` checks
//! the properties that must hold at every moment, one file for each property.

mod answer;
mod attacker;
mod context;
mod driver;
mod facts;
mod fault;
mod ids;
mod network;
mod oracle;
mod plan;
mod planted;
mod process;
mod refresh;
mod rng;
mod sidecar;
mod simulation;
mod terms;
mod trace;

pub use oracle::Violation;
pub use planted::Planted;

use simulation::Simulation;

/// The result of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// The first violation of a property, if there was one.
    pub violation: Option<Violation>,
    /// The number of executions in drivers.
    pub executions: usize,
    /// The number of sidecars' attempts that ended without the driver's answer.
    pub retries: u64,
    /// A hash of all events. Two runs of one seed have the same fingerprint.
    pub fingerprint: u64,
    /// The events, one line each; empty without tracing.
    pub trace: String,
}

/// The error of [`run`]: the runtime cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("the runtime of a run cannot be built: {0}")]
pub struct RunError(#[from] std::io::Error);

/// Runs the simulation of a seed, optionally with a planted fault.
///
/// # Errors
/// If the runtime cannot be built.
pub fn run(seed: u64, planted: Option<Planted>, tracing: bool) -> Result<Run, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let (violation, context) = runtime.block_on(async {
        let mut simulation = Simulation::new(seed, planted, tracing);
        let violation = simulation.run().await.err();
        (violation, std::sync::Arc::clone(&simulation.context))
    });
    drop(runtime);
    Ok(context.with(|inner| {
        // The endpoints and the context hold each other, so neither would be dropped.
        inner.endpoints.clear();
        Run {
            violation,
            executions: inner.facts.executions.len(),
            retries: inner.retries,
            fingerprint: inner.trace.fingerprint(),
            trace: inner.trace.take(),
        }
    }))
}
