//! Link faults during operations.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::objects::{self, CLAIMS, VOLUMES, class_of};
use crate::error::E2eError;
use crate::link_condition::LinkCondition;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The scheduler's annotation on a claim with the selected node.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The number of claims in the storm.
const CLAIMS_IN_STORM: usize = 200;

/// Time limit for all claims of the storm.
const STORM: Duration = Duration::from_secs(420);

/// The agent's log message for a call to a driver.
const DISPATCHED: &str = "CreateVolume";

/// The provisioner's log messages for a call that ended without a response of the driver.
const UNCERTAIN: [&str; 2] = ["rpc error: code = Unavailable", "rpc error: code = DeadlineExceeded"];

/// The index in [`NODES`] of the node whose link is cut.
const CUT_INDEX: usize = 1;

/// The duration of a link cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// The provisioner's call continues.
    Short,
    /// The provisioner's call ends, and the provisioner retries it.
    Long,
}

/// Cuts the link during a CreateVolume and deletes the claim, and checks that the volume is created and then deleted.
pub(super) fn deleted_meanwhile(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    delete_behind_cut(setup, cluster, findings, Absence::Short)?;
    delete_behind_cut(setup, cluster, findings, Absence::Long)?;
    cluster.clear(findings)
}

fn delete_behind_cut(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    absence: Absence,
) -> Result<(), E2eError> {
    let node = NODES[CUT_INDEX];
    let agent = format!("agent-{node}");
    let dispatched = || setup.logged(&agent, DISPATCHED);
    let before = dispatched();
    // A frozen driver simulates a slow one.
    freeze(cluster, true);
    let claim = objects::claim("lost", &class_of(DRIVER), "16Mi");
    cluster.make(&claim, &objects::pod("user", node, "lost", &["wait"]))?;
    let sent = wait::poll(BOUND, || (dispatched() > before).then_some(()));
    findings.note(sent.is_some(), format!("{absence:?} cut: CreateVolume is with the driver"));
    let provisioner = format!("csi-provisioner-{DRIVER}");
    let ended = || UNCERTAIN.iter().map(|words| setup.logged(&provisioner, words)).sum::<usize>();
    let before = ended();
    let begun = Instant::now();
    if let Some(node) = cluster.edge.nodes.get_mut(CUT_INDEX) {
        node.cut();
    }
    cluster.forget_pod("user")?;
    let claim = format!("{CLAIMS}/lost");
    cluster.api.delete(&claim)?;
    cluster.api.until_removed(&claim, BOUND)?;
    findings.note(true, "the link is cut, and pod and claim are deleted");
    if absence == Absence::Long {
        let logged = wait::poll(BOUND, || (ended() > before).then_some(()));
        let words = format!("the provisioner's call ends without an answer {:.1?} later", begun.elapsed());
        findings.note(logged.is_some(), words);
    }
    freeze(cluster, false);
    let made = wait::poll(BOUND, || {
        cluster.edge.nodes.get(CUT_INDEX).filter(|node| node.volumes(DRIVER) == 1).map(|_| ())
    });
    findings.note(made.is_some(), "the driver creates the volume although no caller waits for it");
    let healed = Instant::now();
    if let Some(node) = cluster.edge.nodes.get_mut(CUT_INDEX) {
        node.connect(setup, LinkCondition::Clean)?;
    }
    let removed = wait::poll(BOUND, || {
        cluster.edge.nodes.iter().all(|node| node.holds(DRIVER).is_empty()).then_some(())
    });
    findings.note(
        removed.is_some(),
        format!("no volume on any node {:.1?} after the link is back", healed.elapsed()),
    );
    let forgotten = wait::poll(BOUND, || cluster.api.list(VOLUMES).ok().filter(Vec::is_empty).map(|_| ()));
    findings.note(forgotten.is_some(), "no PersistentVolume is left");
    Ok(())
}

fn freeze(cluster: &Cluster, frozen: bool) {
    if let Some(driver) = cluster.edge.nodes.get(CUT_INDEX).and_then(|node| node.driver(DRIVER)) {
        if frozen { driver.freeze() } else { driver.thaw() }
    }
}

/// Creates many claims on all nodes while every link is cut every two seconds.
pub(super) fn storm(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    for node in &mut cluster.edge.nodes {
        node.connect(setup, LinkCondition::Cuts)?;
    }
    let begun = Instant::now();
    let node_of = |number: usize| NODES.get(number % NODES.len()).copied().unwrap_or_default();
    for number in 0..CLAIMS_IN_STORM {
        let mut claim = objects::claim(&format!("storm-{number}"), &class_of(DRIVER), "1Mi");
        claim["metadata"]["annotations"][SELECTED_NODE] = json!(node_of(number));
        cluster.api.create(CLAIMS, &claim)?;
    }
    let bound = |claims: &[serde_json::Value]| {
        claims.iter().filter(|claim| claim["status"]["phase"] == "Bound").count()
    };
    let mut last = 0;
    let all = wait::poll_every(Duration::from_secs(1), STORM, || {
        last = bound(&cluster.api.list(CLAIMS).ok()?);
        (last == CLAIMS_IN_STORM).then_some(())
    });
    findings.note(
        all.is_some(),
        format!("{last} of {CLAIMS_IN_STORM} claims bound after {:.0?}", begun.elapsed()),
    );
    let volumes = cluster.api.list(VOLUMES)?;
    let handles: BTreeSet<String> =
        volumes.iter().map(|volume| text(&volume["spec"]["csi"]["volumeHandle"])).collect();
    let made: Vec<usize> = cluster.edge.nodes.iter().map(|node| node.volumes(DRIVER)).collect();
    let right = handles.len() == CLAIMS_IN_STORM && made == [CLAIMS_IN_STORM / NODES.len(); NODES.len()];
    findings.note(right, format!("{} different volumes, on the nodes: {made:?}", handles.len()));
    let begun = Instant::now();
    for number in 0..CLAIMS_IN_STORM {
        cluster.api.delete(&format!("{CLAIMS}/storm-{number}"))?;
    }
    let removed = wait::poll_every(Duration::from_secs(1), STORM, || {
        last = cluster.api.list(VOLUMES).ok()?.len();
        (last == 0).then_some(())
    });
    findings.note(
        removed.is_some(),
        format!("{last} PersistentVolumes left {:.0?} after the claims were deleted", begun.elapsed()),
    );
    let held: Vec<usize> = cluster.edge.nodes.iter().map(|node| node.holds(DRIVER).len()).collect();
    findings.note(held == [0; NODES.len()], format!("left with the drivers: {held:?}"));
    for node in &mut cluster.edge.nodes {
        node.connect(setup, LinkCondition::Clean)?;
    }
    cluster.clear(findings)
}
