//! Nodes without kubelet, with the agent as the volume plugin.
//!
//! A case turns the plugin on for some of the nodes and restores them afterwards. The nodes join the cluster as Nodes
//! without a status; agent and hub report the status that kubelet would. The scheduler binds pods to the nodes, and no
//! process runs the pods' containers: the case writes and reads in the directories that are created for them.

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
use crate::error::E2eError;
use crate::leftovers;
use crate::setup::Setup;

/// The nodes with the volume plugin in most cases.
pub(super) const OWN: [&str; 2] = [NODES[2], NODES[3]];

/// Runs a case in which these nodes have the agent's volume plugin. Leftovers are removed, and their removal is checked.
pub(super) fn with(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
    case: impl FnOnce(&mut Cluster, &mut Findings) -> Result<(), E2eError>,
) -> Result<(), E2eError> {
    let outcome = begin(setup, cluster, findings, nodes)
        .and_then(|()| case(cluster, findings))
        .and_then(|()| cluster.clear(findings))
        .and_then(|()| nothing_is_left(cluster, findings, nodes));
    if let Err(error) = outcome {
        findings.note(false, error.to_string());
        // Before the agents restart without the plugin: only the plugin unmounts the volumes.
        if let Err(error) = cluster.clear(findings) {
            findings.note(false, error.to_string());
        }
    }
    // The Nodes stay, since the hub has written the same objects that other cases create.
    let mut own = cluster.edge.nodes.iter_mut().filter(|node| nodes.contains(&node.name));
    own.try_for_each(|node| node.agent.restart_with(setup, Arguments::new()))
}

/// Rejoins the nodes to the cluster, and checks that they report the status that kubelet would.
fn begin(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
) -> Result<(), E2eError> {
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

/// Checks that no mount and no pod's directory is left after the last pod.
fn nothing_is_left(
    cluster: &Cluster,
    findings: &mut Findings,
    nodes: &[&'static str],
) -> Result<(), E2eError> {
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

/// Returns the name of a volume in a Node's `volumesInUse`.
pub(super) fn used(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Waits until a Node reports exactly these volumes in use.
pub(super) fn uses(cluster: &Cluster, node: &str, mut volumes: Vec<String>) -> Result<(), E2eError> {
    volumes.sort();
    let path = format!("{ALL_NODES}/{node}");
    cluster.api.until(&path, &format!("{volumes:?} in use"), BOUND, |node| {
        let found = node["status"]["volumesInUse"].as_array();
        let mut found: Vec<String> = found.into_iter().flatten().map(text).collect();
        found.sort();
        (found == volumes).then_some(())
    })
}

/// A mount, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Unique among all mounts, including earlier ones.
    pub(super) id: String,
    pub(super) place: PathBuf,
}

impl Node {
    /// Makes the agent the volume plugin, in a new boot.
    fn mount_pods(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.another_boot()?;
        self.mount_pods_with(setup, Arguments::new())
    }

    /// Makes the agent the volume plugin in the current boot, with additional options.
    pub(super) fn mount_pods_with(&mut self, setup: &Setup<'_>, more: Arguments) -> Result<(), E2eError> {
        let options = more
            .pair("--staging-dir", self.folder.join("volumes"))
            .pair("--kubelet-dir", self.folder.join("kubelet"))
            .pair("--boot-id-file", self.boot_id());
        self.agent.restart_with(setup, options)
    }

    /// Simulates a power loss: kills all processes, and removes all mounts and loop devices.
    pub(super) fn lose_power(&mut self) -> Result<(), E2eError> {
        self.agent.kill();
        self.drivers.iter_mut().for_each(super::part::Part::kill);
        // Later mounts are on top of earlier ones.
        for mount in self.mounts().into_iter().rev() {
            unmount(&mount.place, UnmountFlags::DETACH)
                .map_err(|cause| E2eError::File { path: mount.place, cause: cause.into() })?;
        }
        let place = self.folder.to_string_lossy().into_owned();
        for (device, _) in leftovers::loop_devices(&place) {
            super::image::run(Command::new("losetup").arg("--detach").arg(device))?;
        }
        self.another_boot()
    }

    /// Starts drivers and agent, independent of other processes.
    pub(super) fn boot(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.drivers.iter_mut().try_for_each(|driver| driver.restart(setup))?;
        self.agent.revive(setup)
    }

    fn another_boot(&mut self) -> Result<(), E2eError> {
        self.boots += 1;
        write(&self.boot_id(), &format!("00000000-0000-4000-8000-{:012}", self.boots))
    }

    /// Returns the path of the file with the boot id.
    fn boot_id(&self) -> PathBuf {
        self.folder.join("boot-id")
    }

    /// Returns the path of a pod's volume, by the pod's UID and the PersistentVolume: a device, or else a filesystem.
    pub(super) fn place_of(&self, uid: &str, volume: &str, device: bool) -> PathBuf {
        if device {
            return self.pod(uid).join("volumeDevices/kubernetes.io~csi").join(volume);
        }
        self.pod(uid).join("volumes/kubernetes.io~csi").join(volume).join("mount")
    }

    /// Returns the directory of a pod.
    pub(super) fn pod(&self, uid: &str) -> PathBuf {
        self.folder.join("kubelet/pods").join(uid)
    }

    /// Lists the directories of pods.
    fn pods(&self) -> Vec<PathBuf> {
        let pods = fs::read_dir(self.folder.join("kubelet/pods")).into_iter().flatten().flatten();
        pods.map(|pod| pod.path()).collect()
    }

    /// Lists the node's mounts in the order of their creation.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = |line: &str| {
            let mut fields = line.split(' ');
            Some(Mount { id: fields.next()?.to_owned(), place: fields.nth(3)?.into() })
        };
        table.lines().filter_map(mount).filter(|mount| mount.place.starts_with(&self.folder)).collect()
    }

    /// Waits for a mount at a path, and returns it.
    pub(super) fn mounted(&self, place: &Path) -> Result<Mount, E2eError> {
        let at = || self.mounts().into_iter().find(|mount| mount.place == place);
        wait::poll(BOUND, at).ok_or_else(|| self.never(format!("a mount at {}", place.display())))
    }

    /// Waits until nothing is left of a pod, including its directory.
    pub(super) fn check_removed(&self, uid: &str) -> Result<(), E2eError> {
        let pod = self.pod(uid);
        let removed = || (!pod.exists()).then_some(());
        wait::poll(BOUND, removed).ok_or_else(|| self.never(format!("{} removed", pod.display())))
    }

    fn never(&self, waited_for: String) -> E2eError {
        let (name, mounts, log) = (self.name, self.mounts(), self.agent_tail());
        let last = format!("mounted on {name}: {mounts:?}; the end of its agent's log:\n{log}");
        E2eError::Timeout { waited_for, bound: BOUND, last }
    }

    fn agent_tail(&self) -> String {
        self.agent.process().map(Process::tail).unwrap_or_default()
    }
}
