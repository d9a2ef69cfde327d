//! A node of KubeEdge: edgecore with containerd.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::process::Process;
use serde_json::{Value, json};

use super::cloudcore::{CERTIFICATES, PORT};
use super::network::ADDRESS;
use crate::error::E2eError;
use crate::kubernetes::image::IMAGE;
use crate::kubernetes::kubelet::{self, HOST_FOLDERS, ROOT};
use crate::kubernetes::objects::{NODES, has_condition};
use crate::kubernetes::part::{Part, Ready};
use crate::kubernetes::plane::{Plane, write};
use crate::setup::Setup;

/// Host folders of KubeEdge in addition to those of kubelet: certificates, database and socket are in them by default.
pub(crate) const FOLDERS: [&str; 2] = ["/etc/kubeedge", "/var/lib/kubeedge"];

/// The port of edged's health check.
const HEALTH: u16 = 10350;

/// Time limit for the start, and for the Node's first report.
const START: Duration = Duration::from_secs(90);

/// edgecore and containerd. Killed when dropped.
#[derive(Debug)]
pub(super) struct EdgeCore {
    // Dropped first.
    part: Part,
    _containerd: Process,
    config: Value,
    path: PathBuf,
}

impl EdgeCore {
    /// Starts containerd and edgecore, and waits until the Node is ready.
    pub(super) fn start(setup: &Setup<'_>, plane: &Plane, node: &str, token: &str) -> Result<Self, E2eError> {
        kubelet::separate(&HOST_FOLDERS)?;
        let folder = setup.folder("edgecore")?;
        let (containerd, socket) = kubelet::start_containerd(setup, &folder)?;
        let (config, path) =
            (config(node, token, &format!("unix://{}", socket.display())), folder.join("edgecore.yaml"));
        write(&path, &config.to_string())?;
        let arguments = Arguments::new().pair("--config", &path);
        let program = &setup.components.edgecore;
        let part = Part::start(setup, "edgecore".to_owned(), program, arguments, Ready::AtOnce)?;
        let mut started = Self { part, _containerd: containerd, config, path };
        started.ready()?;
        let path = format!("{NODES}/{node}");
        plane.api.until(&path, "ready", START, |node| has_condition(node, "Ready").then_some(()))?;
        // The controller that would remove the taint is off.
        plane.api.merge(&path, &json!({"spec": {"taints": null}}))?;
        Ok(started)
    }

    /// Kills edgecore and starts it again. The containers keep running.
    pub(super) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.part.kill();
        // edgecore rewrites the file, without values that it takes for defaults.
        write(&self.path, &self.config.to_string())?;
        self.part.restart(setup)?;
        self.ready()
    }

    fn ready(&mut self) -> Result<(), E2eError> {
        self.part
            .ready_within(START, "its health check", || TcpStream::connect(("127.0.0.1", HEALTH)).is_ok())
    }
}

/// Returns the configuration of a node without MQTT and devices.
fn config(node: &str, token: &str, socket: &str) -> Value {
    json!({
        "apiVersion": "edgecore.config.kubeedge.io/v1alpha2",
        "kind": "EdgeCore",
        "database": {"dataSource": "/var/lib/kubeedge/edgecore.db"},
        "modules": {
            "edged": {
                "enable": true,
                "hostnameOverride": node,
                "nodeIP": ADDRESS,
                "rootDirectory": ROOT,
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
                    "readOnlyPort": HEALTH,
                },
            },
            "edgeHub": {
                "enable": true,
                "heartbeat": 5,
                "httpServer": format!("https://{ADDRESS}:{CERTIFICATES}"),
                "token": token,
                "websocket": {"enable": true, "server": format!("{ADDRESS}:{PORT}")},
            },
            "eventBus": {"enable": false},
            "deviceTwin": {"enable": false},
        },
    })
}
