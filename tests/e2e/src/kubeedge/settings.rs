//! Settings of CSIDriver objects, which edged does not see: with `attachRequired: false` a pod waits without end.

use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{KubeEdge, NODE, REPORT};
use super::pods;
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings};
use crate::kubernetes::edge::DRIVERS;
use crate::kubernetes::objects::{self, PODS};
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[1];

const NAME: &str = "unattached";

/// Time for which the pod is watched.
const WATCHED: Duration = Duration::from_secs(15);

/// The collection of CSIDriver objects.
const CSI_DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let named = |setting: &str| setup.logged("hub", setting);
    findings
        .note(named("podInfoOnMount: true") > 0, "the hub names podInfoOnMount, which edged does not see");
    let before = named("attachRequired: false");
    replace(kubeedge, false)?;
    kubeedge.restart_agent(setup, &[REPORT])?;
    let more = wait::poll(BOUND, || (named("attachRequired: false") > before).then_some(()));
    findings.note(more.is_some(), "the hub names attachRequired: false");

    let cluster = &kubeedge.cluster;
    let (claim, pod) = pods::wanted(NAME, DRIVER, NODE);
    cluster.make(&claim, &pod)?;
    cluster.bound(NAME)?;
    let path = format!("{PODS}/{NAME}");
    let runs = |pod: &Value| (pod["status"]["phase"] == "Running").then_some(());
    let waits = cluster.api.until(&path, "Running", WATCHED, runs).is_err();
    findings.note(waits, format!("with attachRequired: false its pod does not run in {WATCHED:?}"));
    replace(kubeedge, true)?;
    // The controller attaches for a new pod at once, and for this one minutes later.
    let cluster = &kubeedge.cluster;
    cluster.end_pod(NAME)?;
    cluster.api.create(PODS, &pod)?;
    let begun = Instant::now();
    cluster.running(NAME)?;
    findings.note(true, format!("with attachRequired: true the next pod runs after {:.1?}", begun.elapsed()));
    kubeedge.cluster.clear(findings)
}

/// Replaces the CSIDriver of the driver: the API server changes no `attachRequired`.
fn replace(kubeedge: &KubeEdge, attach_required: bool) -> Result<(), E2eError> {
    let api = kubeedge.cluster.api;
    let mut driver = objects::csi_driver(DRIVER);
    driver["spec"]["attachRequired"] = json!(attach_required);
    api.delete(&format!("{CSI_DRIVERS}/{DRIVER}"))?;
    api.create(CSI_DRIVERS, &driver)
}
