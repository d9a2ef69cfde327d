//! A thousand nodes: checks the size of requests and the choice of the node.

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings, add_node};
use super::edge::{DRIVERS, NODES, STRICT};
use super::objects::{self, CSI_NODES, NODES as ALL_NODES, class_of};
use crate::error::E2eError;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// Nodes that exist, and have the driver, only in the API server.
const NODE_COUNT: usize = 1000;

/// The index in [`NODES`] of the node that the claims select.
const SELECTED_INDEX: usize = 2;

/// A text in the provisioner's log of a request, and the text that starts each segment of it. The log escapes quotes.
const REQUEST: &str = "accessibility_requirements";
const SEGMENT: &str = "segments";

/// Runs the case with a strict provisioner, as in the guide, and then with one that lists all nodes.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for number in 0..NODE_COUNT {
        add_node(cluster.api, &format!("many-{number}"), &[DRIVER])?;
    }
    claim_one(setup, cluster, findings, "strict")?;
    cluster.edge.provision_with(setup, &cluster.plane, &[])?;
    claim_one(setup, cluster, findings, "loose")?;
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    for number in 0..NODE_COUNT {
        cluster.api.delete(&format!("{CSI_NODES}/many-{number}"))?;
        cluster.api.delete(&format!("{ALL_NODES}/many-{number}"))?;
    }
    cluster.clear(findings)
}

fn claim_one(
    setup: &Setup<'_>,
    cluster: &Cluster,
    findings: &mut Findings,
    name: &str,
) -> Result<(), E2eError> {
    let node = NODES[SELECTED_INDEX];
    cluster
        .make(&objects::claim(name, &class_of(DRIVER), "16Mi"), &objects::pod(name, node, name, &["wait"]))?;
    let volume = cluster.bound(name)?;
    let expressions = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
    findings.same(&format!("{name}: the volume is on"), &expressions[0]["values"], &json!([node]));
    let log = setup.logs.join(format!("csi-provisioner-{DRIVER}.log"));
    let request = wait::poll(BOUND, || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.lines().rev().find_map(|line| line.split_once(REQUEST)).map(|(_, request)| request.to_owned())
    });
    let request = request.unwrap_or_default();
    let (segments, length) = (request.matches(SEGMENT).count(), request.len());
    let expected = if name == "strict" { 2 } else { NODE_COUNT };
    let right = if name == "strict" { segments == expected } else { segments >= expected };
    findings.note(
        right,
        format!("{name}: of {NODE_COUNT} additional nodes, a request names {segments} segments, {length} bytes as text"),
    );
    cluster.forget_pod(name)?;
    cluster.end_claim(name)
}
