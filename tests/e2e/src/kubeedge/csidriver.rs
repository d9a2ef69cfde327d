//! KubeEdge's own csidriver in the place of edge-csi: its driver must be called `csi-hostpath`, and it binds no claim.

use std::time::Duration;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{KubeEdge, NODE};
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings, text};
use crate::kubernetes::edge::{DRIVERS, STRICT, sidecar_options};
use crate::kubernetes::objects::{self, CLAIMS, CLASSES, VOLUMES};
use crate::kubernetes::part::{Part, Ready};
use crate::setup::Setup;

/// The name that KubeEdge's fork of Kubernetes has in its code.
const DRIVER: &str = DRIVERS[0];

const NAME: &str = "theirs";

/// The log of the provisioner in front of csidriver.
const PROVISIONER: &str = "csi-provisioner-kubeedge";

/// The socket that cloudcore serves for csidriver.
const CLOUDCORE: &str = "unix:///var/lib/kubeedge/kubeedge.sock";

/// Time for which the claim is watched.
const WATCHED: Duration = Duration::from_secs(20);

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    kubeedge.cluster.edge.end_provisioner();
    let outcome = claim(setup, kubeedge, findings);
    let cluster = &mut kubeedge.cluster;
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    outcome?;
    delete_leaked(kubeedge, findings)?;
    kubeedge.cluster.clear(findings)?;
    kubeedge.cluster.api.delete(&format!("{CLASSES}/{NAME}"))
}

/// Creates a claim with only csidriver in front of the driver, and deletes it.
fn claim(setup: &Setup<'_>, kubeedge: &KubeEdge, findings: &mut Findings) -> Result<(), E2eError> {
    let cluster = &kubeedge.cluster;
    let socket = setup.folder("edge")?.join("kubeedge.sock");
    let arguments = Arguments::new()
        .pair("--endpoint", unix(&socket))
        .pair("--drivername", DRIVER)
        .pair("--nodeid", NODE)
        .pair("--kubeedge-endpoint", CLOUDCORE);
    let program = &setup.components.kubeedge_csidriver;
    let _csidriver =
        Part::start(setup, "csidriver".to_owned(), program, arguments, Ready::Socket(socket.clone()))?;
    let arguments = sidecar_options(Arguments::new(), (&socket, &cluster.plane.kubeconfig), &[]);
    let program = setup.components.sidecar("csi-provisioner");
    let _provisioner = Part::start(setup, PROVISIONER.to_owned(), &program, arguments, Ready::AtOnce)?;

    let mut class = objects::class(NAME, DRIVER, &json!({}), "Delete");
    class["volumeBindingMode"] = json!("Immediate");
    cluster.api.create(CLASSES, &class)?;
    cluster.api.create(CLAIMS, &objects::claim(NAME, NAME, "16Mi"))?;
    let made = wait::poll(BOUND, || volumes(kubeedge).first().cloned());
    findings.note(made.is_some(), "csidriver: a volume is made with the driver");
    let is_bound = |claim: &Value| (claim["status"]["phase"] == "Bound").then_some(());
    let bound = cluster.api.until(&format!("{CLAIMS}/{NAME}"), "bound", WATCHED, is_bound);
    let lost = setup.logged(PROVISIONER, "is not string");
    findings.note(
        bound.is_err() && lost > 0,
        format!("csidriver: the claim is not bound in {WATCHED:?}; log lines about a lost answer: {lost}"),
    );
    let path = format!("{CLAIMS}/{NAME}");
    cluster.api.delete(&path)?;
    cluster.api.until_removed(&path, BOUND)?;
    let left = volumes(kubeedge).len();
    findings.note(left > 0, format!("csidriver: volumes that stay after the claim is deleted: {left}"));
    Ok(())
}

/// Returns the ids of the driver's volumes.
fn volumes(kubeedge: &KubeEdge) -> Vec<String> {
    let node = kubeedge.cluster.edge.nodes.first();
    let records = node.map(|node| node.records(DRIVER)).unwrap_or_default();
    records.iter().map(|record| text(&record["id"])).collect()
}

/// Lets edge-csi delete the volumes, as those of PersistentVolumes whose claims no longer exist.
fn delete_leaked(kubeedge: &KubeEdge, findings: &mut Findings) -> Result<(), E2eError> {
    let api = kubeedge.cluster.api;
    let key = objects::topology_key(DRIVER);
    for (number, id) in volumes(kubeedge).into_iter().enumerate() {
        let name = format!("leaked-{number}");
        let claim = json!({"namespace": "default", "name": NAME, "uid": name});
        let terms = json!([{"matchExpressions": [{"key": key, "operator": "In", "values": [NODE]}]}]);
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
            "spec": {
                "capacity": {"storage": "16Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": NAME,
                "claimRef": claim,
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                "csi": {"driver": DRIVER, "volumeHandle": id},
            },
        });
        api.create(VOLUMES, &volume)?;
        api.until_removed(&format!("{VOLUMES}/{name}"), BOUND)?;
        findings.note(true, "edge-csi deletes a volume that csidriver left");
    }
    Ok(())
}
