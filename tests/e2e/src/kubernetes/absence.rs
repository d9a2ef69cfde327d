//! The behaviour of sidecars and scheduler while a node or the hub is offline.

use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES, STRICT, Victim};
use super::objects::{self, CAPACITIES, CLAIMS, CSI_DRIVERS, PODS, class_of};
use crate::error::E2eError;
use crate::link_condition::LinkCondition;
use crate::offline;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The index in [`NODES`] of the node that is disconnected.
const CUT_INDEX: usize = 1;

/// Options with which the provisioner publishes storage capacity to the scheduler, at short intervals.
const WITH_CAPACITY: [&str; 4] =
    [STRICT, "--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=2s"];

/// The default duration of the hub's outage.
const SHORT: Duration = Duration::from_secs(15);

/// Checks that the scheduler avoids an offline node, since no capacity is published for it.
pub(super) fn capacity(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let driver = format!("{CSI_DRIVERS}/{DRIVER}");
    cluster.edge.provision_with(setup, &cluster.plane, &WITH_CAPACITY)?;
    cluster.api.merge(&driver, &json!({"spec": {"storageCapacity": true}}))?;
    let room = rooms(cluster, |rooms| rooms.iter().all(|room| *room == Some(true)))?;
    findings.note(true, format!("capacity on {NODES:?}: {room:?}"));
    if let Some(node) = cluster.edge.nodes.get_mut(CUT_INDEX) {
        node.cut();
    }
    let room = rooms(cluster, |rooms| rooms.get(CUT_INDEX) == Some(&Some(false)))?;
    findings.note(true, format!("{} is disconnected: {room:?}", NODES[CUT_INDEX]));
    cluster.make(
        &objects::claim("later", &class_of(DRIVER), "16Mi"),
        &objects::pod("user", NODES[CUT_INDEX], "later", &["wait"]),
    )?;
    let said = cluster.api.until(&format!("{PODS}/user"), "unschedulable", BOUND, |pod| {
        let conditions = pod["status"]["conditions"].as_array()?;
        let kept = conditions.iter().find(|condition| condition["reason"] == "Unschedulable")?;
        Some(text(&kept["message"]))
    })?;
    findings.note(said.contains("enough free storage"), format!("a pod for that node waits: {said}"));
    if let Some(node) = cluster.edge.nodes.get_mut(CUT_INDEX) {
        node.connect(setup, LinkCondition::Clean)?;
    }
    let volume = cluster.bound("later")?;
    let expressions = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
    findings.same(
        "after the node reconnects, the volume is on",
        &expressions[0]["values"],
        &json!([NODES[CUT_INDEX]]),
    );
    cluster.api.merge(&driver, &json!({"spec": {"storageCapacity": false}}))?;
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    cluster.clear(findings)?;
    for capacity in cluster.api.list(CAPACITIES)? {
        cluster.api.delete(&format!("{CAPACITIES}/{}", text(&capacity["metadata"]["name"])))?;
    }
    Ok(())
}

/// Waits until the published capacities match `wanted`, and returns for each node whether its capacity is above zero.
/// `None`: the node has no published capacity.
fn rooms(cluster: &Cluster, wanted: impl Fn(&[Option<bool>]) -> bool) -> Result<Vec<Option<bool>>, E2eError> {
    let of_node = |all: &[Value], node: &str| {
        let capacity = all.iter().find(|capacity| {
            capacity["storageClassName"] == class_of(DRIVER)
                && capacity["nodeTopology"]["matchLabels"][objects::topology_key(DRIVER)] == node
        })?;
        Some(!matches!(capacity["capacity"].as_str(), None | Some("0")))
    };
    cluster.api.until(CAPACITIES, "the expected capacities", BOUND, |all| {
        let all = all["items"].as_array()?;
        let rooms: Vec<_> = NODES.iter().map(|node| of_node(all, node)).collect();
        wanted(&rooms).then_some(rooms)
    })
}

/// Checks that sidecars keep running without a hub, and that pending requests complete when it returns.
pub(super) fn hub(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let node = NODES[0];
    cluster.make(
        &objects::claim("old", &class_of(DRIVER), "16Mi"),
        &objects::pod("old", node, "old", &["write", "/data/file", "before", "wait"]),
    )?;
    cluster.running("old")?;
    cluster.edge.kill(Victim::Hub, node);
    let length = offline::length()?.max(SHORT);
    let begun = Instant::now();
    cluster.make(
        &objects::claim("new", &class_of(DRIVER), "16Mi"),
        &objects::pod("new", node, "new", &["write", "/data/file", "after", "wait"]),
    )?;
    cluster.end_pod("old")?;
    findings.note(true, "a pod and its mounts are removed without a hub");
    cluster.api.delete(&format!("{CLAIMS}/old"))?;
    let mut ended = Vec::new();
    wait::poll_every(Duration::from_secs(1), length, || {
        ended = cluster.edge.ended_sidecars();
        (!ended.is_empty()).then_some(())
    });
    findings.note(
        ended.is_empty(),
        format!("no hub for {:.0?}; sidecars that have ended: {ended:?}", begun.elapsed()),
    );
    let phase = cluster.api.read(&format!("{CLAIMS}/new"))?.unwrap_or_default();
    findings.same("a claim created without a hub is", &phase["status"]["phase"], &json!("Pending"));
    let begun = Instant::now();
    cluster.edge.restore(setup, Victim::Hub, node)?;
    cluster.running("new")?;
    findings.note(true, format!("{:.1?} after the hub is back, the pod of that claim runs", begun.elapsed()));
    cluster.clear(findings)
}
