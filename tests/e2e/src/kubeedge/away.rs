//! cloudcore is killed: what runs keeps running, and claims are bound by the path of edge-csi.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{KubeEdge, NODE};
use super::pods::{self, Pod};
use crate::error::E2eError;
use crate::kubernetes::cluster::{BOUND, Findings, text};
use crate::kubernetes::edge::DRIVERS;
use crate::kubernetes::kubelet::ROOT;
use crate::kubernetes::objects::PODS;
use crate::setup::Setup;

/// Time for edged to connect again and to start the pods that it missed. Most take 8 to 16 s, and one took 58 s.
pub(super) const RECONNECT: Duration = Duration::from_secs(300);

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let stays = Pod::make(&kubeedge.cluster, "stays", DRIVERS[0])?;
    kubeedge.cloudcore.kill();
    let cluster = &kubeedge.cluster;

    let begun = Instant::now();
    let (claim, pod) = pods::wanted("new", DRIVERS[1], NODE);
    cluster.make(&claim, &pod)?;
    let volume = text(&cluster.bound("new")?["metadata"]["name"]);
    findings.note(true, format!("without cloudcore, a new claim is bound after {:.1?}", begun.elapsed()));
    cluster.attached(&volume)?;
    findings.note(true, format!("and its volume is attached after {:.1?}", begun.elapsed()));
    findings.note(stays.is_mounted() && stays.is_written(), "the mount and the file of a running pod stay");

    fs::remove_file(&stays.file).map_err(|cause| E2eError::File { path: stays.file.clone(), cause })?;
    let begun = Instant::now();
    findings.note(stays.kill(), "the process of its container is killed");
    let again = wait::poll(BOUND, || stays.is_written().then_some(()));
    findings.note(again.is_some(), format!("its container writes again after {:.1?}", begun.elapsed()));
    let new = cluster.api.read(&format!("{PODS}/new"))?.unwrap_or_default();
    findings.same("the pod of the new claim is", &new["status"]["phase"], &json!("Pending"));

    let begun = Instant::now();
    kubeedge.cloudcore.restart(setup)?;
    let cluster = &kubeedge.cluster;
    let listens = begun.elapsed();
    cluster.api.until(&format!("{PODS}/new"), "Running", RECONNECT, |pod| {
        (pod["status"]["phase"] == "Running").then_some(())
    })?;
    findings.note(
        true,
        format!(
            "cloudcore listens {listens:.1?} after its start, and the pod runs after {:.1?}",
            begun.elapsed()
        ),
    );
    let new = Pod::find(cluster, "new", DRIVERS[1], (NODE, Path::new(ROOT)))?;
    let written = wait::poll(BOUND, || new.is_written().then_some(()));
    findings.note(written.is_some() && new.is_mounted(), "its file is with the driver");
    findings.note(stays.is_mounted() && stays.sees_its_file(), "the older pod has its volume");
    kubeedge.cluster.clear(findings)
}
