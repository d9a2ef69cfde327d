//! Checks that secrets named by a class are passed with each call to the driver, and are stored nowhere else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::{Map, Value, json};

use super::cluster::{BOUND, Cluster, Findings};
use super::edge::{FOREIGN, NODES};
use super::objects::{self, CLAIMS, CLASSES, SECRETS};
use crate::error::E2eError;
use crate::sanity::SECRET;
use crate::setup::Setup;

/// Time for which a claim that must not be bound is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// The name of the class, and of its secret.
pub(super) const CLASS: &str = "secret";
pub(super) const NAME: &str = "credentials";

/// The kinds of secrets that a class can name.
const KINDS: [&str; 6] =
    ["provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand"];

/// The calls during the lifetime of a claim.
const CALLS: [&str; 6] = [
    "/csi.v1.Controller/CreateVolume",
    "/csi.v1.Controller/ControllerPublishVolume",
    "/csi.v1.Node/NodeStageVolume",
    "/csi.v1.Node/NodePublishVolume",
    "/csi.v1.Controller/ControllerUnpublishVolume",
    "/csi.v1.Controller/DeleteVolume",
];

/// The proxy's background call to each connecting node, without a secret. If the driver refuses the call, the proxy reads
/// snapshots singly.
const LISTED: &str = "/csi.v1.Controller/ListSnapshots";

/// Runs a claim with a driver that refuses calls without the secret.
pub(crate) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let node = NODES[0];
    cluster.api.create(CLASSES, &class())?;
    cluster.make(
        &objects::claim("guarded", CLASS, "16Mi"),
        &objects::pod("user", node, "guarded", &["write", "/data/file", "hidden", "wait"]),
    )?;
    let path = format!("{CLAIMS}/guarded");
    let early = cluster
        .api
        .until(&path, "bound", WATCHED, |claim| (claim["status"]["phase"] == "Bound").then_some(()));
    findings.note(early.is_err(), "a claim waits for the secret of its class");
    cluster.api.create(SECRETS, &secret())?;
    let volume = cluster.bound("guarded")?;
    cluster.running("user")?;
    findings.note(true, "with the secret it is bound, attached and mounted");
    let expressions = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"];
    let expected = json!([{"key": objects::topology_key(FOREIGN), "operator": "In", "values": [node]}]);
    findings.same("nodeAffinity, of a driver that names no topology", expressions, &expected);
    cluster.clear(findings)?;
    let log = setup.logs.join(format!("{FOREIGN}.log"));
    let printed = || std::fs::read_to_string(&log).unwrap_or_default();
    for call in CALLS {
        let line = format!("with the secret: {call}");
        let found = wait::poll(BOUND, || printed().contains(&line).then_some(()));
        findings.note(found.is_some(), line);
    }
    let is_refused = |line: &&str| line.starts_with("without") && !line.ends_with(LISTED);
    let refused: Vec<String> = printed().lines().filter(is_refused).map(ToOwned::to_owned).collect();
    findings.note(refused.is_empty(), format!("calls without the secret: {refused:?}"));
    let places = NODES.map(|node| setup.scratch.join(node));
    let holders: Vec<PathBuf> =
        places.iter().chain([&setup.scratch.join("edge")]).flat_map(|place| holders(place)).collect();
    findings.note(
        holders.is_empty(),
        format!("files of hub, agents, proxies and drivers with the secret: {holders:?}"),
    );
    forget(cluster)
}

/// Returns a class whose volumes need the secret in each call.
pub(super) fn class() -> Value {
    objects::class(CLASS, FOREIGN, &parameters(&KINDS), "Delete")
}

/// Returns the parameters of a class that name the secret for these kinds of calls.
pub(super) fn parameters(kinds: &[&str]) -> Value {
    let parameters: Map<String, Value> = kinds
        .iter()
        .flat_map(|kind| {
            let key = |part: &str| format!("csi.storage.k8s.io/{kind}-secret-{part}");
            [(key("name"), json!(NAME)), (key("namespace"), json!("default"))]
        })
        .collect();
    json!(parameters)
}

/// Returns the secret that the class names.
pub(super) fn secret() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME},
        "stringData": {"password": SECRET},
    })
}

/// Deletes the class and the secret.
pub(super) fn forget(cluster: &Cluster) -> Result<(), E2eError> {
    cluster.api.delete(&format!("{CLASSES}/{CLASS}"))?;
    cluster.api.delete(&format!("{SECRETS}/{NAME}"))
}

/// Lists the files below `folder` that contain the secret.
fn holders(folder: &Path) -> Vec<PathBuf> {
    holders_of(SECRET, folder)
}

/// Lists the files below `folder` that contain a text. An empty text is in no file.
pub(super) fn holders_of(text: &str, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if text.is_empty() {
        return found;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() => found.extend(holders_of(text, &path)),
            Ok(kind) if kind.is_file() => {
                let bytes = std::fs::read(&path).unwrap_or_default();
                if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                    found.push(path);
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_the_secret_is_found_however_deep_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(folder.path().join("clean"), "nothing").unwrap();
        assert!(holders(folder.path()).is_empty());
        std::fs::write(inner.join("journal"), format!("x{SECRET}y")).unwrap();
        assert_eq!(holders(folder.path()), [inner.join("journal")]);
        assert!(holders_of("", folder.path()).is_empty());
    }
}
