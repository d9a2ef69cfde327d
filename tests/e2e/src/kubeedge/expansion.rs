//! Expansion of a claim: edged cannot write to a claim, so the part on the node never ends.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{KubeEdge, NODE};
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings};
use crate::kubernetes::edge::DRIVERS;
use crate::kubernetes::objects::{self, CLAIMS, CLASSES};
use crate::setup::Setup;

const CLASS: &str = "growing";
const NAME: &str = "grows";

/// The size that the claim requests later.
const WANTED: &str = "480Mi";

/// Time for which the expansion is watched after its part in the cloud.
const WATCHED: Duration = Duration::from_secs(15);

/// The message of edged when it could not write the claim's status.
const REFUSED: &str = "patchPVCStatus failed to patch PVC";

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let cluster = &kubeedge.cluster;
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs"});
    cluster.api.create(CLASSES, &objects::class(CLASS, DRIVERS[0], &parameters, "Delete"))?;
    cluster.make(&objects::claim(NAME, CLASS, "320Mi"), &objects::pod(NAME, NODE, NAME, &["wait"]))?;
    cluster.running(NAME)?;
    let path = format!("{CLAIMS}/{NAME}");
    cluster.api.merge(&path, &json!({"spec": {"resources": {"requests": {"storage": WANTED}}}}))?;
    let pending = |claim: &Value| {
        (claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending").then_some(())
    };
    cluster.api.until(&path, "expanded by the driver's controller", BOUND, pending)?;
    findings.note(true, "the driver's controller expands the volume");
    let grown = |claim: &Value| (claim["status"]["capacity"]["storage"] == WANTED).then_some(());
    let ended = cluster.api.until(&path, "grown", WATCHED, grown).is_ok();
    let refused = setup.logged(&format!("edgecore-{NODE}"), REFUSED);
    findings.note(
        !ended && refused > 0,
        format!("edged does not expand it on the node: {REFUSED}, {refused} times in {WATCHED:?}"),
    );
    // Without this, a pod with the claim would not start again.
    let status = json!({"capacity": {"storage": WANTED}, "allocatedResourceStatuses": null});
    cluster.api.merge(&format!("{path}/status"), &json!({"status": status}))?;
    cluster.end_pod(NAME)?;
    cluster.api.create(objects::PODS, &objects::pod(NAME, NODE, NAME, &["wait"]))?;
    cluster.running(NAME)?;
    findings.note(true, "with the claim's status written by hand, its next pod starts");
    kubeedge.cluster.clear(findings)?;
    kubeedge.cluster.api.delete(&format!("{CLASSES}/{CLASS}"))
}
