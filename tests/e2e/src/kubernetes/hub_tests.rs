//! Runs the hub's test that otherwise uses a fake API server, with a real API server.

use std::process::Command;
use std::time::Duration;

use edge_csi_tests::process::Process;

use super::cluster::{Cluster, Findings, text};
use super::objects::ATTACHMENTS;
use crate::error::E2eError;
use crate::setup::Setup;

/// The name of the test, and the variable with the API server's address.
const TEST: &str = "all_of_it_at_a_real_api_server";
const KUBECONFIG: &str = "EDGE_CSI_KUBECONFIG";

/// Time limit for the test.
const BOUND: Duration = Duration::from_secs(120);

/// The pods of all namespaces.
const ALL_PODS: &str = "/api/v1/pods";

/// The test's output, which shows that it was not filtered out.
const PASSED: &str = "1 passed";

/// Checks objects, secrets, tokens and statuses, each as the test defines it.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let mut command = Command::new(&setup.components.hub_tests);
    command.args(["--ignored", "--exact", TEST]).env(KUBECONFIG, &cluster.plane.kubeconfig);
    let mut test = Process::spawn(setup.logs, "hub-tests", &mut command)?;
    let good = test.finish(BOUND)?;
    let passed = good && test.log().contains(PASSED);
    let words = if passed { format!("{TEST}: {PASSED}") } else { test.reason() };
    findings.note(passed, words);
    // The test's pods are bound to removed Nodes, and its driver has no attacher: no process would confirm their end.
    for pod in cluster.api.list(ALL_PODS)? {
        let metadata = &pod["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        cluster.api.delete(&format!("/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0"))?;
    }
    for attachment in cluster.api.list(ATTACHMENTS)? {
        cluster.api.delete(&format!("{ATTACHMENTS}/{}", text(&attachment["metadata"]["name"])))?;
    }
    cluster.clear(findings)
}
