//! A node of KubeEdge: edgecore with containerd.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::port;
use edge_csi_tests::process::Process;
use serde_json::{Value, json};

use super::cloudcore::{CERTIFICATES, PORT};
use super::network::ADDRESS;
use crate::error::E2eError;
use crate::kubernetes::image::IMAGE;
use crate::kubernetes::kubelet::{self, ROOT};
use crate::kubernetes::objects::{NODES, has_condition};
use crate::kubernetes::part::{Part, Ready};
use crate::kubernetes::plane::{Plane, write};
use crate::setup::Setup;

/// Host folders of KubeEdge in addition to those of kubelet: certificates, database and socket are in them by default.
pub(crate) const FOLDERS: [&str; 2] = ["/etc/kubeedge", "/var/lib/kubeedge"];

/// Time limit for the start, and for the Node's first report.
const START: Duration = Duration::from_secs(90);

/// The folders and the port of a node.
#[derive(Debug)]
pub(super) struct Place {
    /// edged's root directory.
    pub(super) root: PathBuf,
    certificates: PathBuf,
    database: PathBuf,
    pod_logs: PathBuf,
    /// The port of edged's health check.
    health: u16,
}

impl Place {
    /// Returns the defaults of KubeEdge, as on a production node.
    pub(super) fn of_production() -> Self {
        let [certificates, database] = FOLDERS.map(PathBuf::from);
        Self { root: ROOT.into(), certificates, database, pod_logs: "/var/log/pods".into(), health: 10350 }
    }

    /// Returns a place in a folder, for a second node on the same machine.
    pub(super) fn within(folder: &Path) -> Self {
        let [root, certificates, database, pod_logs] =
            ["kubelet", "certificates", "database", "pods"].map(|name| folder.join(name));
        Self { root, certificates, database, pod_logs, health: port::free() }
    }

    fn create(&self) -> Result<(), E2eError> {
        [&self.root, &self.certificates, &self.database, &self.pod_logs].into_iter().try_for_each(|path| {
            std::fs::create_dir_all(path).map_err(|cause| E2eError::Folder { path: path.clone(), cause })
        })
    }
}

/// edgecore and containerd. Killed when dropped.
#[derive(Debug)]
pub(super) struct EdgeCore {
    // Dropped first.
    part: Part,
    _containerd: Process,
    pub(super) place: Place,
    config: Value,
    path: PathBuf,
}

impl EdgeCore {
    /// Starts containerd and edgecore, and waits until the Node is ready.
    pub(super) fn start(
        setup: &Setup<'_>,
        plane: &Plane,
        (node, place): (&str, Place),
        token: &str,
    ) -> Result<Self, E2eError> {
        place.create()?;
        let (name, folder) = (format!("edgecore-{node}"), setup.folder(&format!("ke-{node}"))?);
        let (containerd, socket) = kubelet::start_containerd(setup, &format!("containerd-{node}"), &folder)?;
        let config = config(node, &place, token, &format!("unix://{}", socket.display()));
        let path = folder.join("edgecore.yaml");
        write(&path, &config.to_string())?;
        let arguments = Arguments::new().pair("--config", &path);
        let program = &setup.components.edgecore;
        let part = Part::start(setup, name, program, arguments, Ready::AtOnce)?;
        let mut started = Self { part, _containerd: containerd, place, config, path };
        started.ready()?;
        let path = format!("{NODES}/{node}");
        plane.api.until(&path, "ready", START, |node| has_condition(node, "Ready").then_some(()))?;
        // The controller that would remove the taint is off.
        plane.api.merge(&path, &json!({"spec": {"taints": null}}))?;
        Ok(started)
    }

    /// Kills edgecore: its connection to cloudcore ends. The containers keep running.
    pub(super) fn kill(&mut self) {
        self.part.kill();
    }

    /// Kills edgecore and starts it again. The containers keep running.
    pub(super) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.restart_with(setup, |_| ())
    }

    /// Restarts edgecore with a change of its configuration, which the next start does not have.
    pub(super) fn restart_with(
        &mut self,
        setup: &Setup<'_>,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), E2eError> {
        self.part.kill();
        let mut config = self.config.clone();
        change(&mut config);
        // edgecore rewrites the file, without values that it takes for defaults.
        write(&self.path, &config.to_string())?;
        self.part.restart(setup)?;
        self.ready()
    }

    /// Returns the resident memory of edgecore in KiB.
    pub(super) fn resident_kib(&self) -> Option<u64> {
        self.part.process().and_then(Process::resident_kib)
    }

    fn ready(&mut self) -> Result<(), E2eError> {
        let health = ("127.0.0.1", self.place.health);
        self.part.ready_within(START, "its health check", || TcpStream::connect(health).is_ok())
    }
}

/// Returns the configuration of a node without MQTT and devices.
fn config(node: &str, place: &Place, token: &str, socket: &str) -> Value {
    let Place { root, certificates, database, pod_logs, health } = place;
    json!({
        "apiVersion": "edgecore.config.kubeedge.io/v1alpha2",
        "kind": "EdgeCore",
        "database": {"dataSource": database.join("edgecore.db")},
        "modules": {
            "edged": {
                "enable": true,
                "hostnameOverride": node,
                "nodeIP": ADDRESS,
                "rootDirectory": root,
                "podSandboxImage": IMAGE,
                "reportEvent": true,
                "tailoredKubeletConfig": {
                    "containerRuntimeEndpoint": socket,
                    "imageServiceEndpoint": socket,
                    // A host may have cgroup v1, and swap.
                    "failSwapOn": false,
                    "cgroupDriver": "cgroupfs",
                    "cgroupsPerQOS": false,
                    // An empty list would be replaced by the default, with which edgecore does not start.
                    "enforceNodeAllocatable": ["none"],
                    "localStorageCapacityIsolation": false,
                    // With the default, each attachment waits up to ten seconds for the node's next status report.
                    "syncFrequency": "1s",
                    "nodeStatusUpdateFrequency": "1s",
                    "volumeStatsAggPeriod": "10s",
                    "imageMinimumGCAge": "24h",
                    "imageGCHighThresholdPercent": 100,
                    "evictionHard": kubelet::never_evict(),
                    "maxPods": 250,
                    "podLogsDir": pod_logs,
                    "readOnlyPort": health,
                },
            },
            "edgeHub": {
                "enable": true,
                "heartbeat": 5,
                "httpServer": format!("https://{ADDRESS}:{CERTIFICATES}"),
                "token": token,
                "tlsCaFile": certificates.join("ca/rootCA.crt"),
                "tlsCertFile": certificates.join("certs/server.crt"),
                "tlsPrivateKeyFile": certificates.join("certs/server.key"),
                "websocket": {"enable": true, "server": format!("{ADDRESS}:{PORT}")},
            },
            // A query that is lost with the connection blocks the mounts of all pods for this time, 60 s by default.
            "metaManager": {"enable": true, "remoteQueryTimeout": 10},
            "eventBus": {"enable": false},
            "serviceBus": {"enable": true},
            "deviceTwin": {"enable": false},
        },
    })
}
