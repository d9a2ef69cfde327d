//! The lifecycle of a claim on nodes with the agent's volume plugin: created, attached, mounted, used by one pod after another,
//! and deleted.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::cluster::{Cluster, Findings, text};
use super::edge::DRIVERS;
use super::lifecycle::describe;
use super::objects::{self, CLAIMS, PODS, class_of};
use super::plugin::{self, OWN};
use crate::error::E2eError;
use crate::setup::Setup;

/// The text that a pod leaves for the next pod.
const TEXT: &str = "written by a pod";

/// A claim, its node and driver, and its kind of volume.
#[derive(Debug)]
struct Case {
    name: String,
    node: &'static str,
    driver: &'static str,
    device: bool,
}

impl Case {
    /// Returns a case with a folder for each driver on each node, and one with a device.
    fn all() -> Vec<Self> {
        let folders = OWN.iter().flat_map(|node| DRIVERS.map(|driver| (*node, driver, false)));
        let cases = folders.chain([(OWN[0], DRIVERS[1], true)]).enumerate();
        let case =
            |(number, (node, driver, device))| Self { name: format!("own-{number}"), node, driver, device };
        cases.map(case).collect()
    }

    fn claim(&self) -> Value {
        let claim = if self.device { objects::device_claim } else { objects::claim };
        claim(&self.name, &class_of(self.driver), "16Mi")
    }

    /// Returns a pod of this case for a node without a container runtime, with this prefix in its name.
    fn pod(&self, prefix: &str) -> Value {
        let pod = if self.device { objects::pod_with_device } else { objects::pod };
        pod(&self.pod_name(prefix), self.node, &self.name, &["wait"])
    }

    fn pod_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.name)
    }

    /// Waits until the pod has the volume, and returns the file or device that the pod would read and write.
    fn opened(&self, cluster: &Cluster, prefix: &str, volume: &str) -> Result<PathBuf, E2eError> {
        let uid = cluster.uid(&self.pod_name(prefix))?;
        let Some(node) = cluster.edge.node(self.node) else { return Ok(PathBuf::new()) };
        let place = node.mounted(&node.place_of(&uid, volume, self.device))?.place;
        Ok(if self.device { place } else { place.join("file") })
    }

    /// Waits until nothing is left of the pod on the node.
    fn check_removed(&self, cluster: &Cluster, uid: &str) -> Result<(), E2eError> {
        cluster.edge.node(self.node).map_or(Ok(()), |node| node.check_removed(uid))
    }
}

/// Writes a text as a pod does, and syncs it to the disk.
pub(super) fn write(path: &Path, text: &str) -> Result<(), E2eError> {
    use std::io::Write as _;
    let written = || {
        let mut file = fs::File::options().write(true).create(true).truncate(false).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    written().map_err(|cause| E2eError::File { path: path.to_owned(), cause })
}

/// Reads as many bytes as another pod has written.
pub(super) fn read(path: &Path, written: &str) -> Result<String, E2eError> {
    use std::io::Read as _;
    let read = || {
        let mut text = vec![0; written.len()];
        let length = fs::File::open(path)?.read(&mut text)?;
        text.truncate(length);
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    read().map_err(|cause| E2eError::File { path: path.to_owned(), cause })
}

/// Creates, attaches, mounts, unmounts, detaches and deletes volumes concurrently, on two nodes with two drivers.
pub(super) fn workflows(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    plugin::with(setup, cluster, findings, &OWN, |cluster, findings| {
        lifecycles(cluster, findings, &Case::all())
    })
}

fn lifecycles(cluster: &mut Cluster, findings: &mut Findings, cases: &[Case]) -> Result<(), E2eError> {
    let begun = Instant::now();
    for case in cases {
        cluster.make(&case.claim(), &case.pod("writer"))?;
    }
    let mut volumes = Vec::new();
    for case in cases {
        let volume = cluster.bound(&case.name)?;
        if !case.device {
            describe(&volume, case.driver, case.node, findings);
        }
        let name = text(&volume["metadata"]["name"]);
        let attachment = cluster.attached(&name)?;
        findings.same("attached to", &attachment["spec"]["nodeName"], &json!(case.node));
        write(&case.opened(cluster, "writer", &name)?, TEXT)?;
        volumes.push((name, text(&volume["spec"]["csi"]["volumeHandle"])));
    }
    findings.note(true, format!("{} pods have their volumes after {:.1?}", cases.len(), begun.elapsed()));
    for name in OWN {
        let of_node = cases.iter().zip(&volumes).filter(|(case, _)| case.node == name);
        let volumes = of_node.map(|(case, (_, handle))| plugin::used(case.driver, handle)).collect();
        plugin::uses(cluster, name, volumes)?;
    }
    findings.note(true, "each Node reports the volumes in use");

    // Pods end when their containers end, or when they are deleted and have been stopped.
    for (number, case) in cases.iter().enumerate() {
        let name = case.pod_name("writer");
        let uid = cluster.uid(&name)?;
        if number % 2 == 0 {
            cluster
                .api
                .merge(&format!("{PODS}/{name}/status"), &json!({"status": {"phase": "Succeeded"}}))?;
            case.check_removed(cluster, &uid)?;
            cluster.forget_pod(&name)?;
        } else {
            cluster.forget_pod(&name)?;
            case.check_removed(cluster, &uid)?;
        }
    }
    findings.note(true, "nothing is left on the nodes of pods that have ended or were deleted");
    cluster.detached()?;
    findings.note(true, "detached when no pod needs them");

    for case in cases {
        cluster.api.create(PODS, &case.pod("reader"))?;
    }
    for (case, (volume, _)) in cases.iter().zip(&volumes) {
        let found = read(&case.opened(cluster, "reader", volume)?, TEXT)?;
        findings.same(&format!("{}: the next pod reads", case.name), &json!(found), &json!(TEXT));
    }
    for (case, (volume, _)) in cases.iter().zip(&volumes) {
        let name = case.pod_name("reader");
        let uid = cluster.uid(&name)?;
        cluster.api.delete(&format!("{PODS}/{name}"))?;
        let going = cluster.api.read(&format!("{PODS}/{name}"))?.unwrap_or_default();
        let there = case.opened(cluster, "reader", volume)?.exists();
        let waits = going["metadata"]["deletionTimestamp"].is_string();
        findings.note(waits && there, "a pod that is being deleted still has its volume");
        cluster.forget_pod(&name)?;
        case.check_removed(cluster, &uid)?;
    }
    for case in cases {
        cluster.api.delete(&format!("{CLAIMS}/{}", case.name))?;
    }
    for case in cases {
        cluster.end_claim(&case.name)?;
    }
    findings.note(true, format!("all removed after {:.1?}", begun.elapsed()));
    Ok(())
}
