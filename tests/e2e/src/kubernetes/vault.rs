//! A driver that passes secrets and tokens to pods, and receives each pod's context repeatedly.

use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::node::Node;
use super::objects::CSI_DRIVERS;
use super::secrets;
use crate::error::E2eError;
use crate::setup::Setup;

pub(super) const DRIVER: &str = "vault.csi.edge";

/// The audience of the tokens that the driver requests.
pub(super) const AUDIENCE: &str = "vault";

/// The interval at which the driver receives each pod's context.
const INTERVAL: &str = "3s";

/// The driver on one node. Killed when dropped.
#[derive(Debug)]
pub(super) struct Vault {
    _process: Process,
    socket: PathBuf,
}

impl Vault {
    pub(super) fn start(setup: &Setup<'_>, node: &Node) -> Result<Self, E2eError> {
        let socket = node.folder.join("vault.sock");
        let arguments = Arguments::new()
            .pair("--endpoint", &socket)
            .pair("--drivername", DRIVER)
            .pair("--nodeid", node.name);
        let mut process =
            Process::spawn(setup.logs, "vault", Command::new(&setup.components.vault).args(arguments))?;
        process.ready("its socket", || wait::accepts(&socket))?;
        Ok(Self { _process: process, socket })
    }

    /// Returns the agent's options for the driver.
    pub(super) fn options(&self) -> Arguments {
        Arguments::new().serving(DRIVER, &self.socket).pair("--republish-interval", INTERVAL)
    }
}

/// Returns the driver's CSIDriver object.
pub(super) fn csi_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {
            "attachRequired": false,
            "podInfoOnMount": true,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
            "requiresRepublish": true,
            "tokenRequests": [{"audience": AUDIENCE, "expirationSeconds": 600}],
        },
    })
}

/// Returns the path of the CSIDriver object.
pub(super) fn path() -> String {
    format!("{CSI_DRIVERS}/{DRIVER}")
}

/// Returns an inline volume with the secret.
pub(super) fn inline() -> Value {
    json!({
        "driver": DRIVER,
        "volumeAttributes": {"role": "reader"},
        "nodePublishSecretRef": {"name": secrets::NAME},
    })
}

/// Returns a PersistentVolume that names the secret for both calls on a node.
pub(super) fn persistent_volume(name: &str) -> Value {
    let secret = json!({"name": secrets::NAME, "namespace": "default"});
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "csi": {
                "driver": DRIVER,
                "volumeHandle": name,
                "nodeStageSecretRef": secret,
                "nodePublishSecretRef": secret,
            },
        },
    })
}

/// Reads the pod context that the driver received, from the pod's volume.
pub(super) fn context(mount: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(mount.join("context")).ok()?).ok()
}

/// Reads the token in the pod's volume.
pub(super) fn token(mount: &Path) -> Option<String> {
    let tokens: Value = serde_json::from_slice(&std::fs::read(mount.join("tokens")).ok()?).ok()?;
    tokens[AUDIENCE]["token"].as_str().map(ToOwned::to_owned)
}
