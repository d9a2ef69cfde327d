//! The lifecycle of a claim: created, attached, mounted, used by one pod after another, and deleted.

use std::path::Path;
use std::time::Instant;

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::kubelet::ROOT;
use super::objects::{self, ATTACHMENTS, CLAIMS, CLASSES, PODS, VOLUMES, class_of};
use crate::error::E2eError;

/// The text that pods write and read.
const TEXT: &str = "written by a pod";
const FILE: &str = "/data/file";

/// Creates, attaches, mounts, unmounts, detaches and deletes a volume with each driver and a real kubelet.
pub(crate) fn workflows(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for driver in DRIVERS {
        let begun = Instant::now();
        let node = NODES[0];
        cluster.make(
            &objects::claim("lifecycle", &class_of(driver), "16Mi"),
            &objects::pod("writer", node, "lifecycle", &["write", FILE, TEXT, "wait"]),
        )?;
        let volume = cluster.bound("lifecycle")?;
        let bound = begun.elapsed();
        describe(&volume, driver, node, findings);
        let name = text(&volume["metadata"]["name"]);
        let attachment = cluster.attached(&name)?;
        findings.same("attached to", &attachment["spec"]["nodeName"], &json!(node));
        findings.same("attached by", &attachment["spec"]["attacher"], &json!(driver));
        cluster.running("writer")?;
        let running = begun.elapsed();
        let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
        let file = cluster.edge.nodes.first().map(|node| node.data(driver, &handle).join("tree/file"));
        let written = file.as_deref().and_then(|file| {
            wait::poll(BOUND, || std::fs::read_to_string(file).ok().filter(|text| !text.is_empty()))
        });
        findings.same("the pod's file, with the driver", &json!(written), &json!(TEXT));
        let uid = cluster.uid("writer")?;
        let target = Path::new(ROOT).join(format!("pods/{uid}/volumes/kubernetes.io~csi/{name}/mount"));
        findings.note(mounts_at(&target) == 1, format!("mounted at {}", target.display()));
        cluster.end_pod("writer")?;
        findings.note(mounts_at(&target) == 0, "the mount is removed with the pod");

        cluster.api.create(PODS, &objects::pod("reader", node, "lifecycle", &["expect", FILE, TEXT]))?;
        cluster.succeeded("reader")?;
        findings.note(true, "the next pod reads what the first one wrote");
        cluster.end_pod("reader")?;
        let detached =
            wait::poll(BOUND, || cluster.api.list(ATTACHMENTS).ok().filter(Vec::is_empty).map(|_| ()));
        findings.note(detached.is_some(), "detached when no pod needs it");
        cluster.end_claim("lifecycle")?;
        findings.note(true, format!(
            "{driver}: bound after {bound:.1?}, its first pod running after {running:.1?}, all removed after {:.1?}",
            begun.elapsed()
        ));
    }
    cluster.clear(findings)
}

/// Checks the PersistentVolume that the provisioner created from the driver's response.
pub(super) fn describe(volume: &Value, driver: &str, node: &str, findings: &mut Findings) {
    let csi = &volume["spec"]["csi"];
    findings.same("driver", &csi["driver"], &json!(driver));
    let expressions = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
    let expected = json!([{"key": objects::topology_key(driver), "operator": "In", "values": [node]}]);
    findings.same("nodeAffinity", expressions, &expected);
    findings.same("volume_context, kind", &csi["volumeAttributes"]["kind"], &json!("directory"));
    let identity = text(&csi["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"]);
    findings.note(identity.ends_with(driver), format!("made by {identity}"));
}

/// Counts the mounts at a path.
pub(crate) fn mounts_at(path: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.to_string_lossy();
    table.lines().filter(|line| line.split(' ').nth(4) == Some(&path)).count()
}

/// Checks on the other nodes, with both drivers, that a volume is on the node that the scheduler selected.
pub(super) fn other_nodes(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for (node, driver) in [(NODES[1], DRIVERS[1]), (NODES[2], DRIVERS[0])] {
        let name = format!("on-{node}");
        cluster.make(
            &objects::claim(&name, &class_of(driver), "16Mi"),
            &objects::pod(&name, node, &name, &["wait"]),
        )?;
        let volume = cluster.bound(&name)?;
        describe(&volume, driver, node, findings);
        let attachment = cluster.attached(&text(&volume["metadata"]["name"]))?;
        findings.same("attached to", &attachment["spec"]["nodeName"], &json!(node));
        let made = cluster.edge.nodes.iter().map(|node| DRIVERS.map(|driver| node.volumes(driver)));
        let found: Vec<_> = made.collect();
        let right = cluster.edge.nodes.iter().all(|one| {
            DRIVERS
                .iter()
                .all(|other| one.volumes(other) == usize::from((one.name, *other) == (node, driver)))
        });
        findings.note(right, format!("one volume, of {driver} on {node}: {found:?}"));
        cluster.forget_pod(&name)?;
        cluster.end_claim(&name)?;
    }
    cluster.clear(findings)
}

/// Mounts an existing volume through a manually written PersistentVolume.
pub(super) fn static_volume(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let (driver, node) = (DRIVERS[0], NODES[0]);
    cluster.api.create(CLASSES, &objects::class("kept", driver, &json!({}), "Retain"))?;
    cluster.make(
        &objects::claim("before", "kept", "16Mi"),
        &objects::pod("writer", node, "before", &["write", FILE, TEXT]),
    )?;
    let mut volume = cluster.bound("before")?;
    cluster.succeeded("writer")?;
    cluster.end_pod("writer")?;
    cluster.api.delete(&format!("{CLAIMS}/before"))?;
    cluster.api.until_removed(&format!("{CLAIMS}/before"), BOUND)?;
    let path = format!("{VOLUMES}/{}", text(&volume["metadata"]["name"]));
    cluster.api.delete(&path)?;
    cluster.api.until_removed(&path, BOUND)?;
    let kept = cluster.edge.nodes.first().map_or(0, |node| node.volumes(driver));
    findings.note(kept == 1, format!("volumes that the class kept: {kept}"));

    // Written by hand: only the volume's id and node, without the provisioner's attributes.
    let csi = json!({"driver": driver, "volumeHandle": volume["spec"]["csi"]["volumeHandle"], "fsType": ""});
    volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "by-hand", "annotations": {"pv.kubernetes.io/provisioned-by": driver}},
        "spec": {
            "capacity": {"storage": "16Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "",
            "nodeAffinity": volume["spec"]["nodeAffinity"],
            "csi": csi,
        },
    });
    cluster.api.create(VOLUMES, &volume)?;
    let mut claim = objects::claim("static", "", "16Mi");
    claim["spec"]["volumeName"] = json!("by-hand");
    cluster.make(&claim, &objects::pod("reader", node, "static", &["expect", FILE, TEXT]))?;
    cluster.bound("static")?;
    cluster.succeeded("reader")?;
    findings.note(true, "a pod reads the file of a volume that is older than its PersistentVolume");
    cluster.end_pod("reader")?;
    cluster.end_claim("static")?;
    cluster.api.delete(&format!("{CLASSES}/kept"))?;
    cluster.clear(findings)
}
