//! Simulation of hubs, agents and proxies.
//!
//! All parts are the shipped ones: `edge_transport`'s hub and peer over memory links, `csi_proxy`'s relays, dispatcher and
//! driver client. They run on one thread in tokio's paused time. Around them everything is made up, from one seed: the network,
//! when processes begin and end, the drivers, and the sidecars that ask. No socket, no file and no clock of the machine takes
//! part, so that a seed always gives the same run.
//!
//! Faults happen for a time. Then they stop, and the system must recover. What must hold at every moment is in `oracle`, one
//! file for each property.

mod answer;
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
mod rng;
mod sidecar;
mod simulation;
mod terms;
mod trace;

pub use oracle::Violation;
pub use planted::Planted;

use simulation::Simulation;

/// What came of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// The property that was broken, if one was.
    pub violation: Option<Violation>,
    /// Executions in drivers.
    pub executions: usize,
    /// Attempts of sidecars that did not get their driver's answer.
    pub retries: u64,
    /// The same for two runs in which the same happened.
    pub fingerprint: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: String,
}

/// The runtime cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("the runtime of a run cannot be built: {0}")]
pub struct RunError(#[from] std::io::Error);

/// Runs what a seed decides, with a fault of our own planted or without.
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
        // What they ask through holds the context in its turn: neither would ever be dropped.
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
