//! Features that a class, a claim or a snapshot can request beyond a plain directory volume.

use std::time::Duration;

use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::objects::{
    self, ATTRIBUTE_CLASSES, CLAIMS, CLASSES, DEVICE, PODS, SNAPSHOT_CLASSES, SNAPSHOTS, class_of,
};
use crate::error::E2eError;

const NODE: &str = NODES[0];
const DRIVER: &str = DRIVERS[0];
const FILE: &str = "/data/file";

/// Time for which a pod that must not start is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// Checks that a snapshot, and a claim restored from it, contain the data of the snapshot's time.
pub(crate) fn snapshot(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    cluster.api.create(SNAPSHOT_CLASSES, &objects::snapshot_class("edge", DRIVER))?;
    cluster.make(
        &objects::claim("origin", &class_of(DRIVER), "16Mi"),
        &objects::pod("before", NODE, "origin", &["write", FILE, "before"]),
    )?;
    cluster.succeeded("before")?;
    cluster.end_pod("before")?;
    // The volume is being detached: of ControllerUnpublishVolume and CreateSnapshot, the second call waits for the
    // first. If the second call were refused, Kubernetes would attach the next pod by a VolumeAttachment that is being
    // deleted, which delays the pod by two minutes.
    cluster.api.create(SNAPSHOTS, &objects::snapshot("moment", "edge", "origin"))?;
    let size = cluster.api.until(&format!("{SNAPSHOTS}/moment"), "ready", BOUND, |snapshot| {
        let status = &snapshot["status"];
        (status["readyToUse"] == true).then(|| status["restoreSize"].clone())
    })?;
    findings.note(true, format!("a snapshot is ready to use, of size {size}"));
    let after = objects::pod("after", NODE, "origin", &["write", FILE, "after!"]);
    cluster.api.create(PODS, &after)?;
    cluster.succeeded("after")?;
    let mut copy = objects::claim("copy", &class_of(DRIVER), "16Mi");
    copy["spec"]["dataSource"] =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "moment"});
    cluster.make(&copy, &objects::pod("restored", NODE, "copy", &["expect", FILE, "before"]))?;
    cluster.succeeded("restored")?;
    findings.note(true, "a claim restored from the snapshot has the data of the snapshot's time");
    let mut clone = objects::claim("clone", &class_of(DRIVER), "16Mi");
    clone["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "origin"});
    cluster.make(&clone, &objects::pod("cloned", NODE, "clone", &["expect", FILE, "after!"]))?;
    cluster.succeeded("cloned")?;
    findings.note(true, "a clone of the claim has the present data");
    cluster.clear(findings)?;
    cluster.api.delete(&format!("{SNAPSHOT_CLASSES}/edge"))
}

/// Expands a claim under a running pod.
pub(super) fn expansion(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    // A mounted ext4 grows only with CAP_SYS_RESOURCE, which root does not have everywhere.
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs"});
    cluster.api.create(CLASSES, &objects::class("growing", DRIVER, &parameters, "Delete"))?;
    cluster.make(
        &objects::claim("grows", "growing", "320Mi"),
        &objects::pod("user", NODE, "grows", &["write", FILE, "kept", "wait"]),
    )?;
    let volume = text(&cluster.bound("grows")?["metadata"]["name"]);
    cluster.running("user")?;
    let before = size_of(&volume);
    let path = format!("{CLAIMS}/grows");
    cluster.api.merge(&path, &json!({"spec": {"resources": {"requests": {"storage": "480Mi"}}}}))?;
    cluster.api.until(&path, "grown", BOUND, |claim| {
        (claim["status"]["capacity"]["storage"] == "480Mi").then_some(())
    })?;
    let after = size_of(&volume);
    let right = before.zip(after).is_some_and(|(before, after)| after > before + (100 << 20));
    findings.note(right, format!("the filesystem under the pod: {before:?} bytes before, {after:?} after"));
    let pod = cluster.api.read(&format!("{PODS}/user"))?.unwrap_or_default();
    findings.same(
        "restarts of the pod's container",
        &pod["status"]["containerStatuses"][0]["restartCount"],
        &json!(0),
    );
    findings.same("the pod is", &pod["status"]["phase"], &json!("Running"));
    cluster.clear(findings)?;
    cluster.api.delete(&format!("{CLASSES}/growing"))
}

/// Returns the size in bytes of the filesystem that is mounted for a PersistentVolume.
pub(super) fn size_of(volume: &str) -> Option<u64> {
    let (target, _) = mount_of(volume)?;
    let facts = rustix::fs::statvfs(target).ok()?;
    Some(facts.f_blocks * facts.f_frsize)
}

/// Returns a pod's mount point of a PersistentVolume, and the filesystem type.
fn mount_of(volume: &str) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let end = format!("/volumes/kubernetes.io~csi/{volume}/mount");
    let line = table.lines().find(|line| line.split(' ').nth(4).is_some_and(|path| path.ends_with(&end)))?;
    let kind = line.split(" - ").nth(1)?.split(' ').next()?;
    Some((line.split(' ').nth(4)?.to_owned(), kind.to_owned()))
}

/// Checks that a pod gets the filesystem that the class specifies.
pub(crate) fn filesystem(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for kind in ["xfs", "ext4"] {
        let parameters = json!({"csi.storage.k8s.io/fstype": kind});
        cluster.api.create(CLASSES, &objects::class(kind, DRIVER, &parameters, "Delete"))?;
        cluster.make(
            &objects::claim(kind, kind, "320Mi"),
            &objects::pod(kind, NODE, kind, &["write", FILE, kind, "wait"]),
        )?;
        let volume = cluster.bound(kind)?;
        cluster.running(kind)?;
        findings.same("fsType of the volume", &volume["spec"]["csi"]["fsType"], &json!(kind));
        let found = mount_of(&text(&volume["metadata"]["name"])).map(|(_, kind)| kind);
        findings.same("filesystem at the pod's mount", &json!(found), &json!(kind));
    }
    cluster.clear(findings)?;
    ["xfs", "ext4"].into_iter().try_for_each(|kind| cluster.api.delete(&format!("{CLASSES}/{kind}")))
}

/// Moves a raw block device from one pod to the next.
pub(crate) fn block(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let claim = objects::device_claim("device", &class_of(DRIVER), "16Mi");
    cluster.make(&claim, &objects::pod_with_device("writer", NODE, "device", &["write", DEVICE, "raw"]))?;
    cluster.succeeded("writer")?;
    let volume = cluster.bound("device")?;
    findings.same("volumeMode", &volume["spec"]["volumeMode"], &json!("Block"));
    cluster.end_pod("writer")?;
    let reader = objects::pod_with_device("reader", NODE, "device", &["expect", DEVICE, "raw"]);
    cluster.api.create(PODS, &reader)?;
    cluster.succeeded("reader")?;
    findings.note(true, "what one pod wrote to the device, the next one reads from it");
    cluster.clear(findings)
}

/// Checks that a claim for a single pod is used by one pod only.
pub(crate) fn one_pod(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let mut claim = objects::claim("single", &class_of(DRIVER), "16Mi");
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    cluster.make(&claim, &objects::pod("first", NODE, "single", &["write", FILE, "mine", "wait"]))?;
    let volume = cluster.bound("single")?;
    cluster.running("first")?;
    findings.same("accessModes", &volume["spec"]["accessModes"], &json!(["ReadWriteOncePod"]));
    cluster.api.create(PODS, &objects::pod("second", NODE, "single", &["expect", FILE, "mine", "wait"]))?;
    let path = format!("{PODS}/second");
    let refused = cluster.api.until(&path, "refused by the scheduler", BOUND, |pod| {
        let conditions = pod["status"]["conditions"].as_array()?;
        let refused = conditions.iter().find(|condition| condition["reason"] == "Unschedulable")?;
        Some(text(&refused["message"]))
    })?;
    findings.note(refused.contains("ReadWriteOncePod"), format!("a second pod waits: {refused}"));
    let started = cluster
        .api
        .until(&path, "started", WATCHED, |pod| (pod["status"]["phase"] != "Pending").then_some(()));
    findings.note(started.is_err(), "the second pod keeps waiting");
    cluster.end_pod("first")?;
    cluster.running("second")?;
    findings.note(true, "the second pod starts when the first one is removed");
    cluster.clear(findings)
}

/// Moves a claim, and with it the volume, to another VolumeAttributesClass.
pub(crate) fn modification(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    for (name, iops) in [("silver", "100"), ("gold", "1000")] {
        cluster
            .api
            .create(ATTRIBUTE_CLASSES, &objects::attribute_class(name, DRIVER, &json!({"iops": iops})))?;
    }
    let mut claim = objects::claim("tuned", &class_of(DRIVER), "16Mi");
    claim["spec"]["volumeAttributesClassName"] = json!("silver");
    cluster.make(&claim, &objects::pod("user", NODE, "tuned", &["write", FILE, "kept", "wait"]))?;
    cluster.bound("tuned")?;
    cluster.running("user")?;
    let path = format!("{CLAIMS}/tuned");
    let current = |wanted: &str| {
        cluster.api.until(&path, wanted, BOUND, |claim| {
            (claim["status"]["currentVolumeAttributesClassName"] == wanted).then_some(())
        })
    };
    current("silver")?;
    cluster.api.merge(&path, &json!({"spec": {"volumeAttributesClassName": "gold"}}))?;
    current("gold")?;
    let records = cluster.edge.nodes.first().map(|node| node.records(DRIVER)).unwrap_or_default();
    let right = records.iter().any(|record| record["mutable_parameters"]["iops"] == "1000");
    findings.note(right, "the driver has the parameters of the new class");
    cluster.clear(findings)?;
    ["silver", "gold"]
        .into_iter()
        .try_for_each(|name| cluster.api.delete(&format!("{ATTRIBUTE_CLASSES}/{name}")))
}
