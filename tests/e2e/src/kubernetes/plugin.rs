//! Nodes whose agent is the volume plugin itself, where no kubelet is.
//!
//! Some of the nodes get it for a scene, and give it back afterwards. They join the cluster as Nodes of which nothing is said;
//! what kubelet would say of them is the agent's and the hub's. Pods are bound to them by the scheduler, and nobody runs their
//! containers: the scene writes and reads in the directories that are made for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};

use super::cluster::{self, BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::node::Node;
use super::objects::{self, CSI_NODES, NODES as ALL_NODES};
use super::plane::write;
use crate::error::RealError;
use crate::leftovers;
use crate::setup::Setup;

/// The nodes that have it in most scenes.
pub(super) const OWN: [&str; 2] = [NODES[2], NODES[3]];

/// Plays a scene in which these nodes are their own volume plugin. Whatever it leaves is taken away, and then looked for.
pub(super) fn with(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
    scene: impl FnOnce(&mut Cluster, &mut Findings) -> Result<(), RealError>,
) -> Result<(), RealError> {
    let played = begin(setup, cluster, findings, nodes)
        .and_then(|()| scene(cluster, findings))
        .and_then(|()| cluster.clear(findings))
        .and_then(|()| nothing_is_left(cluster, findings, nodes));
    if let Err(error) = played {
        findings.note(false, error.to_string());
        // As long as the plugin is there to unmount.
        if let Err(error) = cluster.clear(findings) {
            findings.note(false, error.to_string());
        }
    }
    // What the hub has written of them is what the other scenes write themselves.
    let mut own = cluster.edge.nodes.iter_mut().filter(|node| nodes.contains(&node.name));
    own.try_for_each(|node| node.agent.restart_with(setup, Arguments::new()))
}

/// The nodes join the cluster anew, and tell of themselves what kubelet would have told.
fn begin(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
) -> Result<(), RealError> {
    let api = cluster.api;
    for node in cluster.edge.nodes.iter_mut().filter(|node| nodes.contains(&node.name)) {
        cluster::remove_node(api, node.name)?;
        cluster::add_bare_node(api, node.name)?;
        node.mount_pods(setup)?;
    }
    for name in nodes {
        let [expected, expected_drivers] = objects::node(name, &DRIVERS);
        let drivers = api.until(&format!("{CSI_NODES}/{name}"), "with both drivers", BOUND, |found| {
            let drivers = found["spec"]["drivers"].as_array()?;
            (drivers.len() == DRIVERS.len()).then(|| json!(drivers))
        })?;
        findings.same(&format!("CSINode {name}"), &drivers, &expected_drivers["spec"]["drivers"]);
        let metadata =
            api.until(&format!("{ALL_NODES}/{name}"), "with the ids of its drivers", BOUND, |node| {
                node["metadata"]["annotations"][objects::IDS].is_string().then(|| node["metadata"].clone())
            })?;
        let said = |metadata: &Value| {
            let ids = metadata["annotations"][objects::IDS].as_str().unwrap_or_default();
            json!({
                "labels": DRIVERS.map(|driver| metadata["labels"][objects::topology_key(driver)].clone()),
                "ids": serde_json::from_str::<Value>(ids).unwrap_or_default(),
                "attached by the controller": metadata["annotations"][objects::ATTACHED_BY_CONTROLLER],
            })
        };
        findings.same(&format!("Node {name}"), &said(&metadata), &said(&expected["metadata"]));
    }
    Ok(())
}

/// With the last pod goes the last mount, and the last directory of a pod.
fn nothing_is_left(
    cluster: &Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
) -> Result<(), RealError> {
    for node in nodes.iter().filter_map(|name| cluster.edge.node(name)) {
        let mut left = Vec::new();
        wait::poll(BOUND, || {
            left = node.mounts().into_iter().map(|mount| mount.place).chain(node.pods()).collect();
            left.is_empty().then_some(())
        });
        findings
            .note(left.is_empty(), format!("mounts and pods' directories left on {}: {left:?}", node.name));
        uses(cluster, node.name, Vec::new())?;
    }
    Ok(())
}

/// What a Node calls a volume that it uses.
pub(super) fn used(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Waits until a Node says that it uses these volumes and no others.
pub(super) fn uses(cluster: &Cluster, node: &str, mut volumes: Vec<String>) -> Result<(), RealError> {
    volumes.sort();
    let path = format!("{ALL_NODES}/{node}");
    cluster.api.until(&path, &format!("{volumes:?} in use"), BOUND, |node| {
        let found = node["status"]["volumesInUse"].as_array();
        let mut found: Vec<String> = found.into_iter().flatten().map(text).collect();
        found.sort();
        (found == volumes).then_some(())
    })
}

/// A mount, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// No two mounts have the same, one after the other neither.
    pub(super) id: String,
    pub(super) place: PathBuf,
}

impl Node {
    /// Its agent is the volume plugin from now on.
    fn mount_pods(&mut self, setup: &Setup<'_>) -> Result<(), RealError> {
        self.another_boot()?;
        self.mount_pods_with(setup, Arguments::new())
    }

    /// The same in the boot that it is in, with these options beside.
    pub(super) fn mount_pods_with(&mut self, setup: &Setup<'_>, more: Arguments) -> Result<(), RealError> {
        let options = more
            .pair("--volumes", self.folder.join("volumes"))
            .pair("--kubelet-dir", self.folder.join("kubelet"))
            .pair("--boot-id-file", self.boot_id());
        self.agent.restart_with(setup, options)
    }

    /// The power goes: no process is left, no mount and no loop device.
    pub(super) fn lose_power(&mut self) -> Result<(), RealError> {
        self.agent.kill();
        self.drivers.iter_mut().for_each(super::part::Part::kill);
        // What was mounted last is on top of the others.
        for mount in self.mounts().into_iter().rev() {
            unmount(&mount.place, UnmountFlags::DETACH)
                .map_err(|cause| RealError::File { path: mount.place, cause: cause.into() })?;
        }
        let place = self.folder.to_string_lossy().into_owned();
        for (device, _) in leftovers::loop_devices(&place) {
            super::image::run(Command::new("losetup").arg("--detach").arg(device))?;
        }
        self.another_boot()
    }

    /// Drivers and agent start, whoever else is there.
    pub(super) fn boot(&mut self, setup: &Setup<'_>) -> Result<(), RealError> {
        self.drivers.iter_mut().try_for_each(|driver| driver.restart(setup))?;
        self.agent.revive(setup)
    }

    fn another_boot(&mut self) -> Result<(), RealError> {
        self.boots += 1;
        write(&self.boot_id(), &format!("00000000-0000-4000-8000-{:012}", self.boots))
    }

    /// The file that has the id of its boot.
    fn boot_id(&self) -> PathBuf {
        self.folder.join("boot-id")
    }

    /// Where a pod has a volume, by its UID and the PersistentVolume: a device, or else a file system.
    pub(super) fn place_of(&self, uid: &str, volume: &str, device: bool) -> PathBuf {
        if device {
            return self.pod(uid).join("volumeDevices/kubernetes.io~csi").join(volume);
        }
        self.pod(uid).join("volumes/kubernetes.io~csi").join(volume).join("mount")
    }

    /// All that is made for a pod.
    pub(super) fn pod(&self, uid: &str) -> PathBuf {
        self.folder.join("kubelet/pods").join(uid)
    }

    /// The directories of pods.
    fn pods(&self) -> Vec<PathBuf> {
        let pods = fs::read_dir(self.folder.join("kubelet/pods")).into_iter().flatten().flatten();
        pods.map(|pod| pod.path()).collect()
    }

    /// All that is mounted on the node, in the order in which it was.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = |line: &str| {
            let mut fields = line.split(' ');
            Some(Mount { id: fields.next()?.to_owned(), place: fields.nth(3)?.into() })
        };
        table.lines().filter_map(mount).filter(|mount| mount.place.starts_with(&self.folder)).collect()
    }

    /// The mount at a place, once it is there.
    pub(super) fn mounted(&self, place: &Path) -> Result<Mount, RealError> {
        let at = || self.mounts().into_iter().find(|mount| mount.place == place);
        wait::poll(BOUND, at).ok_or_else(|| self.never(format!("a mount at {}", place.display())))
    }

    /// Waits until nothing is left of a pod, not even its directory.
    pub(super) fn vacated(&self, uid: &str) -> Result<(), RealError> {
        let pod = self.pod(uid);
        let gone = || (!pod.exists()).then_some(());
        wait::poll(BOUND, gone).ok_or_else(|| self.never(format!("{} gone", pod.display())))
    }

    fn never(&self, waited_for: String) -> RealError {
        let (name, mounts, log) = (self.name, self.mounts(), self.agent_tail());
        let last = format!("mounted on {name}: {mounts:?}; the end of its agent's log:\n{log}");
        RealError::NeverSo { waited_for, bound: BOUND, last }
    }

    fn agent_tail(&self) -> String {
        self.agent.process().map(Process::tail).unwrap_or_default()
    }
}
