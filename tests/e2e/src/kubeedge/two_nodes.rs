//! A second node of KubeEdge on the same machine: each claim is made on the node of its pod.

use std::fs;
use std::time::Instant;

use edge_csi_tests::wait;

use super::cloudcore;
use super::cluster::{KubeEdge, NODE, register};
use super::edgecore::{EdgeCore, Place};
use super::pods::{self, Pod};
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings, add_node, remove_node};
use crate::kubernetes::edge::{DRIVERS, NODES};
use crate::setup::Setup;

/// The second node.
const SECOND: &str = NODES[1];

const DRIVER: &str = DRIVERS[0];

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let cluster = &mut kubeedge.cluster;
    // Until now a Node that the tests have written.
    remove_node(cluster.api, SECOND)?;
    let begun = Instant::now();
    let token = cloudcore::token(setup, &cluster.plane)?;
    let place = Place::within(&setup.folder("ke2")?);
    let edgecore = EdgeCore::start(setup, &cluster.plane, (SECOND, place), &token)?;
    let registrars = register(setup, cluster, (SECOND, &edgecore.place.root))?;
    let cluster = &kubeedge.cluster;
    findings.note(true, format!("a second node, with its drivers registered, after {:.1?}", begun.elapsed()));

    let first = Pod::make(cluster, "first", DRIVER)?;
    let (claim, pod) = pods::wanted("second", DRIVER, SECOND);
    cluster.make(&claim, &pod)?;
    cluster.running("second")?;
    let second = Pod::find(cluster, "second", DRIVER, (SECOND, &edgecore.place.root))?;
    for (pod, node, other) in [(&first, NODE, SECOND), (&second, SECOND, NODE)] {
        let written = wait::poll(BOUND, || pod.is_written().then_some(()));
        let right = written.is_some() && pod.is_mounted() && pod.sees_its_file();
        findings.note(right, format!("the claim of a pod on {node} is there, and not on {other}"));
    }
    let counts = [NODE, SECOND].map(|node| cluster.edge.node(node).map_or(0, |node| node.volumes(DRIVER)));
    findings.note(counts == [1, 1], format!("volumes of {DRIVER} on both nodes: {counts:?}"));
    cluster.end_pod("second")?;
    cluster.end_pod("first")?;
    let left = || fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let root = edgecore.place.root.to_string_lossy().into_owned();
    let is_left = |line: &&str| line.contains(&root) && line.contains("kubernetes.io");
    let ended = wait::poll(BOUND, || left().lines().all(|line| !is_left(&line)).then_some(()));
    findings.note(ended.is_some(), format!("no volume is left mounted on {SECOND}"));
    kubeedge.cluster.clear(findings)?;
    drop(registrars);
    drop(edgecore);
    kubeedge.cluster.edge.restart_agent(setup, SECOND, &[])?;
    let api = kubeedge.cluster.api;
    remove_node(api, SECOND)?;
    add_node(api, SECOND, &DRIVERS)
}
