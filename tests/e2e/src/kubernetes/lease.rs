//! A provisioner loses its lease in the middle of a CreateVolume without noticing.

use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings};
use super::cuts::SELECTED_NODE;
use super::edge::{DRIVERS, NODES, STRICT, rival_log, start_rival};
use super::node::MADE;
use super::objects::{self, CLAIMS, LEASES, VOLUMES, class_of};
use crate::error::E2eError;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The node of the volumes.
const NODE: &str = NODES[1];

/// The provisioners, by the host names that they see.
const RIVALS: [&str; 2] = ["first", "second"];

/// A lease so short that the other provisioner takes over without a long wait.
const ELECTION: [&str; 5] = [
    "--leader-election",
    "--leader-election-namespace=default",
    "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
];

/// The agent's log message for a call to a driver, and the provisioner's for the same call.
const DISPATCHED: &str = "CreateVolume";
const ASKED: &str = "/csi.v1.Controller/CreateVolume";

/// The agent's log message for a call that joined another call's operation.
const JOINED: &str = "joined the running operation";

/// When the provisioner that lost its lease continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resumes {
    /// While the driver still executes the call.
    Meanwhile,
    /// After the other provisioner has the volume.
    Afterwards,
}

/// Runs the case for both values of [`Resumes`].
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    cluster.edge.end_provisioner();
    let outcome = [Resumes::Meanwhile, Resumes::Afterwards]
        .into_iter()
        .try_for_each(|resumes| lost(setup, cluster, findings, resumes));
    // Also after a failure: deleting a remaining claim needs a provisioner.
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    cluster.api.delete(&format!("{LEASES}/{DRIVER}"))?;
    outcome.and_then(|()| cluster.clear(findings))
}

fn lost(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    resumes: Resumes,
) -> Result<(), E2eError> {
    let (agent, driver) = (format!("agent-{NODE}"), format!("driver-{NODE}-{DRIVER}"));
    let second_log = rival_log(RIVALS[1]);
    let lease = format!("{LEASES}/{DRIVER}");
    let holds = |host: &'static str| {
        cluster.api.until(&lease, &format!("held by {host}"), BOUND, |lease| {
            (lease["spec"]["holderIdentity"] == host).then_some(())
        })
    };
    cluster.api.delete(&lease)?;
    let mut first = start_rival(setup, &cluster.plane, RIVALS[0], &ELECTION)?;
    holds(RIVALS[0])?;
    let _second = start_rival(setup, &cluster.plane, RIVALS[1], &ELECTION)?;

    let asked = || setup.logged(&second_log, ASKED);
    let (dispatched, joined) = (|| setup.logged(&agent, DISPATCHED), || setup.logged(&agent, JOINED));
    let before = (dispatched(), joined(), asked(), setup.logged(&driver, MADE));
    let freeze = |frozen: bool| {
        if let Some(driver) = cluster.edge.node(NODE).and_then(|node| node.driver(DRIVER)) {
            if frozen { driver.freeze() } else { driver.thaw() }
        }
    };
    freeze(true);
    let mut claim = objects::claim("contested", &class_of(DRIVER), "16Mi");
    claim["metadata"]["annotations"][SELECTED_NODE] = json!(NODE);
    cluster.api.create(CLAIMS, &claim)?;
    let sent = wait::poll(BOUND, || (dispatched() > before.0).then_some(()));
    if let Some(process) = first.process() {
        process.freeze();
    }
    holds(RIVALS[1])?;
    let again = wait::poll(BOUND, || (asked() > before.2 && joined() > before.1).then_some(()));
    findings.note(
        sent.is_some() && again.is_some(),
        "the lease holder is frozen while the driver creates a volume; another one gets the lease, requests the same volume, and joins that operation",
    );
    let mut ends = || {
        if let Some(process) = first.process() {
            process.thaw();
        }
        wait::poll_every(Duration::from_millis(100), BOUND, || first.ended().map(drop)).is_some()
    };
    let ended = if resumes == Resumes::Meanwhile {
        let ended = ends();
        freeze(false);
        cluster.bound("contested")?;
        ended
    } else {
        freeze(false);
        cluster.bound("contested")?;
        ends()
    };
    findings
        .note(ended, format!("the first provisioner continues {resumes:?}, and exits; the claim is bound"));
    let volumes: usize =
        cluster.edge.nodes.iter().flat_map(|node| DRIVERS.map(|driver| node.volumes(driver))).sum();
    let (made, objects) = (setup.logged(&driver, MADE) - before.3, cluster.api.list(VOLUMES)?.len());
    findings.note(
        (volumes, made, objects) == (1, 1, 1),
        format!("volumes: {volumes}, made: {made} times, PersistentVolumes: {objects}"),
    );
    cluster.end_claim("contested")
}
