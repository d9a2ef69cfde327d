//! Pods with claims on the node of KubeEdge, as the cases see them from outside: mounts, files and processes.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::cluster::NODE;
use crate::error::E2eError;
use crate::kubernetes::cluster::{Cluster, Findings, text};
use crate::kubernetes::kubelet::ROOT;
use crate::kubernetes::lifecycle::mounts_at;
use crate::kubernetes::objects::{self, PODS, class_of};

/// The file in a pod's volume.
const FILE: &str = "/data/file";

/// A pod with a claim of the same name. Its container is restarted when it ends, and writes its name to the volume when it
/// starts.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    /// The path of the mount for the pod.
    pub(super) target: PathBuf,
    /// The pod's file, with the driver.
    pub(super) file: PathBuf,
}

/// Returns a claim and its pod on a node.
pub(super) fn wanted(name: &str, driver: &str, node: &str) -> (Value, Value) {
    let claim = objects::claim(name, &class_of(driver), "16Mi");
    let mut pod = objects::pod(name, node, name, &["write", FILE, name, "wait"]);
    pod["spec"]["restartPolicy"] = json!("Always");
    (claim, pod)
}

impl Pod {
    /// Creates a claim and its pod, and waits until it runs.
    pub(super) fn make(cluster: &Cluster, name: &str, driver: &'static str) -> Result<Self, E2eError> {
        let (claim, pod) = wanted(name, driver, NODE);
        cluster.make(&claim, &pod)?;
        cluster.running(name)?;
        Self::find(cluster, name, driver, (NODE, Path::new(ROOT)))
    }

    /// Returns the pod with its bound claim, on a node whose kubelet has this root directory.
    pub(super) fn find(
        cluster: &Cluster,
        name: &str,
        driver: &str,
        (node, root): (&str, &Path),
    ) -> Result<Self, E2eError> {
        let (bound, uid) = (cluster.bound(name)?, cluster.uid(name)?);
        let volume = text(&bound["metadata"]["name"]);
        let handle = text(&bound["spec"]["csi"]["volumeHandle"]);
        let target = root.join(format!("pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"));
        let node = cluster.edge.node(node);
        let file = node.map(|node| node.data(driver, &handle).join("tree/file")).unwrap_or_default();
        Ok(Self { name: name.to_owned(), target, file })
    }

    /// Returns true if the volume is mounted for the pod.
    pub(super) fn is_mounted(&self) -> bool {
        mounts_at(&self.target) == 1
    }

    /// Returns true if the driver has the file that the pod wrote.
    pub(super) fn is_written(&self) -> bool {
        fs::read_to_string(&self.file).is_ok_and(|text| text == self.name)
    }

    /// Returns the process of the container.
    pub(super) fn process(&self) -> Option<u32> {
        let words = format!("write\0{FILE}\0{}\0", self.name);
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.find(|id| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&words)
        })
    }

    /// Returns true if the container sees its file.
    pub(super) fn sees_its_file(&self) -> bool {
        let read = |id| fs::read_to_string(format!("/proc/{id}/root{FILE}")).ok();
        self.process().and_then(read).is_some_and(|text| text == self.name)
    }

    /// Kills the process of the container. Returns false if there is none.
    pub(super) fn kill(&self) -> bool {
        let id = self.process().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        id.is_some_and(|id| kill_process(id, Signal::KILL).is_ok())
    }

    /// Returns how often the container was restarted, according to the API server.
    pub(super) fn restarts(&self, cluster: &Cluster) -> Result<Value, E2eError> {
        let pod = cluster.api.read(&format!("{PODS}/{}", self.name))?.unwrap_or_default();
        Ok(pod["status"]["containerStatuses"][0]["restartCount"].clone())
    }
}

/// Checks that no volume is mounted for a pod or staged on the node any more.
pub(super) fn nothing_is_left(findings: &mut Findings) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let left: Vec<&str> =
        points.filter(|point| point.starts_with(ROOT) && point.contains("kubernetes.io")).collect();
    findings.note(left.is_empty(), format!("volumes still mounted on {NODE}: {left:?}"));
}
