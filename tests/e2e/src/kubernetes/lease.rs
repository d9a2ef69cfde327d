//! A provisioner loses its lease in the middle of a CreateVolume, and does not know.

use std::path::Path;
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings};
use super::cuts::CHOSEN;
use super::edge::{DRIVERS, NODES, STRICT, rival_log, start_rival};
use super::objects::{self, CLAIMS, LEASES, VOLUMES, class_of};
use crate::error::RealError;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// Where the volumes are made.
const NODE: &str = NODES[1];

/// The provisioners, by what they take for their hosts' names.
const RIVALS: [&str; 2] = ["first", "second"];

/// A lease so short that the other one need not be waited for.
const ELECTION: [&str; 5] = [
    "--leader-election",
    "--leader-election-namespace=default",
    "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
];

/// What the agent logs when it calls a driver, and what a provisioner logs of the same.
const DISPATCHED: &str = "CreateVolume";
const ASKED: &str = "/csi.v1.Controller/CreateVolume";

/// What the agent logs of a call that shares the operation of another one.
const JOINED: &str = "joins the same operation";

/// What the driver logs when it has made a volume.
const MADE: &str = "volume created";

/// When the one that lost its lease goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awakes {
    /// While the driver is at it still.
    Meanwhile,
    /// When the other one has the volume.
    Afterwards,
}

/// Both ways.
pub(super) fn run(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), RealError> {
    cluster.edge.end_provisioner();
    let played = [Awakes::Meanwhile, Awakes::Afterwards]
        .into_iter()
        .try_for_each(|awakes| lost(setup, cluster, findings, awakes));
    // Only now, since a claim that is left needs one.
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    cluster.api.delete(&format!("{LEASES}/{DRIVER}"))?;
    played.and_then(|()| cluster.clear(findings))
}

fn lost(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    awakes: Awakes,
) -> Result<(), RealError> {
    let log = |name: &str| setup.logs.join(format!("{name}.log"));
    let (agent, driver) = (log(&format!("agent-{NODE}")), log(&format!("driver-{NODE}-{DRIVER}")));
    let second_log = log(&rival_log(RIVALS[1]));
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

    let counted =
        |file: &Path, words: &str| std::fs::read_to_string(file).unwrap_or_default().matches(words).count();
    let asked = || counted(&second_log, ASKED);
    let (dispatched, joined) = (|| counted(&agent, DISPATCHED), || counted(&agent, JOINED));
    let before = (dispatched(), joined(), asked(), counted(&driver, MADE));
    let freeze = |frozen: bool| {
        if let Some(driver) = cluster.edge.node(NODE).and_then(|node| node.driver(DRIVER)) {
            if frozen { driver.freeze() } else { driver.thaw() }
        }
    };
    freeze(true);
    let mut claim = objects::claim("contested", &class_of(DRIVER), "16Mi");
    claim["metadata"]["annotations"][CHOSEN] = json!(NODE);
    cluster.api.create(CLAIMS, &claim)?;
    let sent = wait::poll(BOUND, || (dispatched() > before.0).then_some(()));
    if let Some(process) = first.process() {
        process.freeze();
    }
    holds(RIVALS[1])?;
    let again = wait::poll(BOUND, || (asked() > before.2 && joined() > before.1).then_some(()));
    findings.note(
        sent.is_some() && again.is_some(),
        "who holds the lease stops while the driver makes a volume; another one has it, asks for the same, and joins that",
    );
    let mut ends = || {
        if let Some(process) = first.process() {
            process.thaw();
        }
        wait::poll_every(Duration::from_millis(100), BOUND, || first.ended().map(drop)).is_some()
    };
    let ended = if awakes == Awakes::Meanwhile {
        let ended = ends();
        freeze(false);
        cluster.bound("contested")?;
        ended
    } else {
        freeze(false);
        cluster.bound("contested")?;
        ends()
    };
    findings.note(ended, format!("the first one goes on {awakes:?}, and ends by itself; the claim is bound"));
    let volumes: usize =
        cluster.edge.nodes.iter().flat_map(|node| DRIVERS.map(|driver| node.volumes(driver))).sum();
    let (made, objects) = (counted(&driver, MADE) - before.3, cluster.api.list(VOLUMES)?.len());
    findings.note(
        (volumes, made, objects) == (1, 1, 1),
        format!("volumes: {volumes}, made: {made} times, PersistentVolumes: {objects}"),
    );
    cluster.end_claim("contested")
}
