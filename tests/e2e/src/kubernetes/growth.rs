//! Expands a claim of a driver that supports expansion only on the node: the resizer reads the node capabilities from the
//! proxy's socket.

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{BOUND, Cluster, Findings};
use super::edge::{FOREIGN, NODES};
use super::objects::{self, CLAIMS, CLASSES, SECRETS};
use super::secrets;
use crate::error::E2eError;
use crate::setup::Setup;

/// The resizer's log message for a driver that expands volumes only on the node.
const TRIVIAL: &str = "supports node resize only";

/// The driver's log lines for the node's expansion, and for the controller's, which the driver does not support.
const GROWN: &str = "with the secret: /csi.v1.Node/NodeExpandVolume";
const NEVER: &str = "/csi.v1.Controller/ControllerExpandVolume";

pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let printed =
        |name: &str| std::fs::read_to_string(setup.logs.join(format!("{name}.log"))).unwrap_or_default();
    let resizer =
        wait::poll(BOUND, || printed(&format!("csi-resizer-{FOREIGN}")).contains(TRIVIAL).then_some(()));
    findings.note(resizer.is_some(), format!("the resizer logs that the driver {TRIVIAL}"));
    cluster.api.create(SECRETS, &secrets::secret())?;
    cluster.api.create(CLASSES, &secrets::class())?;
    cluster.make(
        &objects::claim("slow", secrets::CLASS, "16Mi"),
        &objects::pod("user", NODES[0], "slow", &["wait"]),
    )?;
    cluster.bound("slow")?;
    cluster.running("user")?;
    let path = format!("{CLAIMS}/slow");
    cluster.api.merge(&path, &json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}}))?;
    cluster.api.until(&path, "grown", BOUND, |claim| {
        (claim["status"]["capacity"]["storage"] == "32Mi").then_some(())
    })?;
    let log = printed(FOREIGN);
    findings.note(log.contains(GROWN), "the claim has its new size, and NodeExpandVolume was called");
    findings.note(!log.contains(NEVER), "ControllerExpandVolume was not called");
    cluster.clear(findings)?;
    secrets::forget(cluster)
}
