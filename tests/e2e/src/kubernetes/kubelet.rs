//! A real kubelet with containerd, as the first node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::process::Process;
use edge_csi_tests::{port, wait};
use serde_json::{Value, json};

use super::image::{self, IMAGE};
use super::objects::has_condition;
use super::plane::{Plane, write};
use crate::error::E2eError;
use crate::setup::Setup;

/// Time limit for the start of containerd, the start of kubelet, and a driver's registration.
const START: Duration = Duration::from_secs(90);

/// kubelet's root directory: its default, so that paths are those of a production node.
pub(crate) const ROOT: &str = "/var/lib/kubelet";

/// Host folders that kubelet and containerd write to despite their options. Each gets a separate filesystem, which ends with
/// the namespace.
pub(crate) const HOST_FOLDERS: [&str; 5] =
    [ROOT, "/run/containerd", "/var/log/pods", "/var/log/containers", "/var/lib/cni"];

/// containerd's control group for pods if kubelet specifies none.
pub(crate) const CGROUP: &str = "k8s.io";

/// A node with a kubelet. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Kubelet {
    processes: Vec<Process>,
}

impl Kubelet {
    /// Starts kubelet and containerd, and waits until the node is ready.
    pub(crate) fn start(setup: &Setup<'_>, plane: &Plane, node: &str) -> Result<Self, E2eError> {
        separate(&HOST_FOLDERS)?;
        let folder = setup.folder("kubelet")?;
        let (containerd, socket) = start_containerd(setup, "containerd", &folder)?;
        let kubelet = start_kubelet(setup, plane, &folder, &socket, node)?;
        let started = Self { processes: vec![containerd, kubelet] };
        let path = format!("/api/v1/nodes/{node}");
        plane.api.until(&path, "ready", START, |node| has_condition(node, "Ready").then_some(()))?;
        // The controller that would remove the taint is off.
        plane.api.merge(&path, &json!({"spec": {"taints": null}}))?;
        Ok(started)
    }

    /// Registers a driver with kubelet, and waits until the node's CSINode lists it.
    pub(crate) fn register(
        &mut self,
        setup: &Setup<'_>,
        plane: &Plane,
        (node, driver): (&str, &str),
        socket: &Path,
    ) -> Result<(), E2eError> {
        self.processes.push(start_registrar(setup, driver, Path::new(ROOT), socket)?);
        let path = format!("/apis/storage.k8s.io/v1/csinodes/{node}");
        plane.api.until(&path, &format!("with {driver}"), START, |node| {
            let drivers = node["spec"]["drivers"].as_array()?;
            drivers.iter().find(|found| found["name"] == driver).map(|_| ())
        })
    }
}

/// Mounts a separate filesystem at each of these folders of the host.
pub(crate) fn separate(folders: &[&str]) -> Result<(), E2eError> {
    folders.iter().try_for_each(|folder| {
        std::fs::create_dir_all(folder).map_err(|cause| E2eError::Folder { path: folder.into(), cause })?;
        image::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder])).map(drop)
    })
}

/// Starts the sidecar that registers the driver at `socket` with the kubelet that has this root directory.
pub(crate) fn start_registrar(
    setup: &Setup<'_>,
    name: &str,
    root: &Path,
    socket: &Path,
) -> Result<Process, E2eError> {
    let registry = root.join("plugins_registry");
    std::fs::create_dir_all(&registry).map_err(|cause| E2eError::Folder { path: registry.clone(), cause })?;
    let mut command = Command::new(&setup.components.registrar);
    command.arg("--csi-address").arg(socket).arg("--kubelet-registration-path").arg(socket);
    command.arg("--plugin-registration-path").arg(&registry);
    Ok(Process::spawn(setup.logs, &format!("registrar-{name}"), &mut command)?)
}

/// Starts containerd with the image of the pods, in a folder and with this name. Returns the process and its socket.
pub(crate) fn start_containerd(
    setup: &Setup<'_>,
    name: &str,
    folder: &Path,
) -> Result<(Process, PathBuf), E2eError> {
    let (socket, config, networks) =
        (folder.join("c.sock"), folder.join("containerd.toml"), folder.join("networks"));
    std::fs::create_dir_all(&networks).map_err(|cause| E2eError::Folder { path: networks.clone(), cause })?;
    // Pods use the host's network; the loopback plugin alone makes the node ready.
    let loopback = json!({"cniVersion": "0.4.0", "name": "lo", "plugins": [{"type": "loopback"}]});
    write(&networks.join("10-lo.conflist"), &loopback.to_string())?;
    // Without restrict_oom_score_adj, runc fails on hosts where root lacks CAP_SYS_RESOURCE.
    let text = format!(
        "version = 2\nroot = {root:?}\nstate = {state:?}\n[grpc]\n  address = {socket:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = {IMAGE:?}\n  disable_apparmor = true\n  \
         restrict_oom_score_adj = true\n  disable_tcp_service = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/usr/lib/cni\"\n  conf_dir = {networks:?}\n",
        root = folder.join("images"),
        state = folder.join("state"),
    );
    write(&config, &text)?;
    let mut command = Command::new("containerd");
    command.arg("--config").arg(&config);
    let mut process = Process::spawn(setup.logs, name, &mut command)?;
    let answers = || {
        let mut version = Command::new("ctr");
        version.arg("--address").arg(&socket).arg("version");
        wait::accepts(&socket) && version.output().is_ok_and(|output| output.status.success())
    };
    process.ready_within(START, "an answer", answers)?;
    let mut import = Command::new("ctr");
    import.arg("--address").arg(&socket).args(["--namespace", "k8s.io", "images", "import"]);
    image::run(import.arg(image::make(setup)?))?;
    Ok((process, socket))
}

fn start_kubelet(
    setup: &Setup<'_>,
    plane: &Plane,
    folder: &Path,
    socket: &Path,
    node: &str,
) -> Result<Process, E2eError> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port::free(),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        // A host may have cgroup v1, and swap.
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "enableControllerAttachDetach": true,
        // With the default, each attachment waits up to ten seconds for the node's next status report.
        "syncFrequency": "1s",
        "nodeStatusUpdateFrequency": "1s",
        "volumeStatsAggPeriod": "10s",
        "imageMinimumGCAge": "24h",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": never_evict(),
        "maxPods": 250,
    });
    let path = folder.join("kubelet.yaml");
    write(&path, &config.to_string())?;
    let mut command = plane.client(setup, "kubelet");
    command.arg("--config").arg(&path).args(["--root-dir", ROOT, "--hostname-override", node, "-v=2"]);
    Ok(Process::spawn(setup.logs, "kubelet", &mut command)?)
}

/// Returns thresholds of `evictionHard` that are never reached.
pub(crate) fn never_evict() -> Value {
    json!({
        "memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%",
        "imagefs.inodesFree": "0%",
    })
}
