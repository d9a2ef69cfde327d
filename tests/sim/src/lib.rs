//! Simulation of hub, agents and proxies.
//!
//! The parts are the real ones: `edge_transport`'s routing table, hops and sessions, `csi_proxy`'s operations and what they write,
//! driven as the tokio drivers drive them.
//! Around them everything is made up, from one seed: time, clocks, links, processes, drivers and the sidecars that ask. There is no
//! thread, no socket and no clock of the machine, so that a seed always gives the same run.
//!
//! For a time faults happen. Then they stop, and all must become well. What must hold at every moment is in `oracle`, one
//! file for each property.

mod agent;
mod answer;
mod chance;
mod clock;
mod desk;
mod fault;
mod hub;
mod journal;
mod link;
mod oracle;
mod peer;
mod plan;
mod sidecar;
mod trace;
mod vendor;
mod world;

pub use oracle::Violation;

use world::World;

/// What came of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// The property that was broken, if one was.
    pub violation: Option<Violation>,
    /// How many things happened.
    pub happened: u64,
    /// Executions in drivers.
    pub executions: usize,
    /// Attempts of sidecars that did not get their driver's answer.
    pub retries: u64,
    /// The same for two runs in which the same happened.
    pub fingerprint: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: String,
}

/// Runs what a seed decides.
#[must_use]
pub fn run(seed: u64, tracing: bool) -> Run {
    let mut world = World::new(seed, tracing);
    let violation = world.run().err();
    Run {
        violation,
        happened: world.happened,
        executions: world.executions.len(),
        retries: world.sidecars.iter().map(|sidecar| u64::from(sidecar.attempts)).sum(),
        fingerprint: world.trace.fingerprint(),
        trace: world.trace.into_text(),
    }
}
