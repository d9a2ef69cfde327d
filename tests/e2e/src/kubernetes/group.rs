//! Group snapshots of several claims.

use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::objects::{self, GROUP_CLASSES, GROUP_SNAPSHOTS, PODS, SNAPSHOTS, class_of};
use crate::error::E2eError;

const NODE: &str = NODES[0];
const DRIVER: &str = DRIVERS[0];
const FILE: &str = "/data/file";

/// The claims. The file in each contains the claim's name.
const CLAIMS: [&str; 2] = ["left", "right"];

/// The label that selects the claims.
const LABEL: (&str, &str) = ("group", "together");

/// Checks that the snapshots of a group are created together, can each be restored, and are deleted together.
pub(super) fn run(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for name in CLAIMS {
        let mut claim = objects::claim(name, &class_of(DRIVER), "16Mi");
        claim["metadata"]["labels"][LABEL.0] = json!(LABEL.1);
        cluster.make(&claim, &objects::pod(name, NODE, name, &["write", FILE, name]))?;
    }
    for name in CLAIMS {
        cluster.succeeded(name)?;
        cluster.end_pod(name)?;
    }
    // A snapshot could delay the detach, and a delayed detach delays the next pod by minutes.
    cluster.detached()?;
    cluster.api.create(GROUP_CLASSES, &class())?;
    cluster.api.create(GROUP_SNAPSHOTS, &group())?;
    let ready = |object: &Value| (object["status"]["readyToUse"] == true).then_some(());
    cluster.api.until(&format!("{GROUP_SNAPSHOTS}/moment"), "ready", BOUND, ready)?;
    let members = cluster.api.until(SNAPSHOTS, "two that are ready", BOUND, |all| {
        let all = all["items"].as_array()?;
        let good = all.len() == CLAIMS.len() && all.iter().all(|one| ready(one).is_some());
        good.then(|| all.clone())
    })?;
    findings.note(true, format!("one group has the snapshots of {} claims", members.len()));
    for member in &members {
        let origin = text(&member["spec"]["source"]["persistentVolumeClaimName"]);
        let (name, restored) = (text(&member["metadata"]["name"]), format!("{origin}-restored"));
        let mut claim = objects::claim(&restored, &class_of(DRIVER), "16Mi");
        claim["spec"]["dataSource"] =
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name});
        cluster.make(&claim, &objects::pod(&restored, NODE, &restored, &["expect", FILE, &origin]))?;
    }
    for origin in CLAIMS {
        let restored = format!("{origin}-restored");
        cluster.succeeded(&restored)?;
        cluster.api.delete(&format!("{PODS}/{restored}"))?;
        findings.note(true, format!("a claim restored from the snapshot of {origin} has its data"));
    }
    let path = format!("{GROUP_SNAPSHOTS}/moment");
    cluster.api.delete(&path)?;
    cluster.api.until_removed(&path, BOUND)?;
    let none = |all: &Value| all["items"].as_array()?.is_empty().then_some(());
    cluster.api.until(SNAPSHOTS, "none", BOUND, none)?;
    findings.note(true, "with the group its snapshots are removed");
    cluster.clear(findings)?;
    cluster.api.delete(&format!("{GROUP_CLASSES}/edge"))
}

fn class() -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": "edge"},
        "driver": DRIVER,
        "deletionPolicy": "Delete",
    })
}

fn group() -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "moment"},
        "spec": {
            "volumeGroupSnapshotClassName": "edge",
            "source": {"selector": {"matchLabels": {LABEL.0: LABEL.1}}},
        },
    })
}
