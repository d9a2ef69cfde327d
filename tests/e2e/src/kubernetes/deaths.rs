//! Kills each process that takes part in the creation of a volume, and checks that the volume is created once.

use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings};
use super::cuts::SELECTED_NODE;
use super::edge::{DRIVERS, NODES, Victim};
use super::node::MADE;
use super::objects::{self, CLAIMS, class_of};
use crate::error::E2eError;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The index in [`NODES`] of the node of the volumes.
const NODE_INDEX: usize = 1;

/// The agent's log message for a call to a driver.
const DISPATCHED: &str = "CreateVolume";

const VICTIMS: [Victim; 5] = [Victim::Provisioner, Victim::Proxy, Victim::Hub, Victim::Agent, Victim::Driver];

/// Runs the case for each process, one after another.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for victim in VICTIMS {
        dies(setup, cluster, findings, victim)?;
    }
    cluster.edge.renew_sidecars(setup)?;
    cluster.clear(findings)
}

fn dies(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    victim: Victim,
) -> Result<(), E2eError> {
    let node = NODES[NODE_INDEX];
    let (agent, driver) = (format!("agent-{node}"), format!("driver-{node}-{DRIVER}"));
    let (asked, made) = (setup.logged(&agent, DISPATCHED), setup.logged(&driver, MADE));
    if let Some(process) = cluster.edge.nodes.get(NODE_INDEX).and_then(|node| node.driver(DRIVER)) {
        process.freeze();
    }
    let mut claim = objects::claim("orphan", &class_of(DRIVER), "16Mi");
    claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
    cluster.api.create(CLAIMS, &claim)?;
    let sent = wait::poll(BOUND, || (setup.logged(&agent, DISPATCHED) > asked).then_some(()));
    let begun = Instant::now();
    cluster.edge.kill(victim, node);
    cluster.edge.restore(setup, victim, node)?;
    // A restarted driver serves again.
    if let Some(process) = cluster.edge.nodes.get(NODE_INDEX).and_then(|node| node.driver(DRIVER)) {
        process.thaw();
    }
    let path = format!("{CLAIMS}/orphan");
    let bound = wait::poll_every(Duration::from_millis(200), BOUND, || {
        cluster.edge.revive_sidecars(setup).ok()?;
        let claim = cluster.api.read(&path).ok()??;
        (claim["status"]["phase"] == "Bound").then_some(())
    });
    let words = format!(
        "{victim:?} is killed while the driver creates a volume: bound {:.1?} later",
        begun.elapsed()
    );
    findings.note(sent.is_some() && bound.is_some(), words);
    let volumes: usize = cluster.edge.nodes.iter().map(|node| node.volumes(DRIVER)).sum();
    let made = setup.logged(&driver, MADE) - made;
    findings.note(volumes == 1 && made == 1, format!("volumes: {volumes}, made: {made} times"));
    cluster.api.delete(&path)?;
    let removed = wait::poll_every(Duration::from_millis(200), BOUND, || {
        cluster.edge.revive_sidecars(setup).ok()?;
        cluster.edge.nodes.iter().all(|node| node.holds(DRIVER).is_empty()).then_some(())
    });
    findings.note(removed.is_some(), "the volume is deleted with its claim");
    Ok(())
}
