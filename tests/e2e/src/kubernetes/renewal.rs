//! A node renews its certificate through the hub. kube-controller-manager signs, with an authority of its own.

use std::process::Command;
use std::time::{Duration, SystemTime};

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::port;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use serde_json::json;

use super::cluster::{Cluster, Findings, text};
use super::edge::start;
use crate::error::E2eError;
use crate::setup::Setup;

/// A node of its own, whose certificate ends soon.
const NODE: &str = "edge-renews";
/// The age of its certificate, and the time that is left: less than a third.
const AGE: Duration = Duration::from_secs(600);
const LEFT: Duration = Duration::from_secs(45);

/// The signer, for which kube-controller-manager has the authority of the hub's `--client-ca`.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The collection of requests.
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The hub's own test of the service, with an attack: a node asks for the certificates of others.
const TEST: &str = "certificates::certificates_at_a_real_api_server";
const TEST_BOUND: Duration = Duration::from_secs(120);

pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    hub_test(setup, cluster, findings)?;
    let authority = setup.certificates.authority();
    let (folder, port) = (setup.folder("renewal")?, port::free());
    let hub = Arguments::new()
        .pair("--listen", unix(&folder.join("hub.sock")))
        .pair("--listen", format!("wss://127.0.0.1:{port}"))
        .pair("--allow", "proxy=*:*")
        .pair("--kubeconfig", &cluster.plane.kubeconfig)
        .pair("--node-signer", SIGNER)
        .flag("--node-signer-has-own-ca")
        .listener(&setup.certificates.hub);
    let hub = start("hub-renewal", &setup.components.hub, hub, setup)?;
    let (files, end) = (authority.issue_until(&[NODE], AGE, LEFT), SystemTime::now() + LEFT);
    let agent = Arguments::new()
        .pair("--nodeid", NODE)
        .pair("--hub", format!("wss://localhost:{port}"))
        .pair("--state-dir", folder.join("agent"))
        .serving("csi-hostpath", &folder.join("none.sock"))
        .dialer(&files);
    let mut agent = start("agent-renewal", &setup.components.agent, agent, setup)?;

    let renewed = folder.join("agent/renewed.pem");
    let in_time = wait::poll(LEFT, || renewed.exists().then_some(())).is_some() && SystemTime::now() < end;
    findings.note(in_time, "a node has a new certificate before the old one ends");
    let has_ended = wait::poll(LEFT * 2, || (SystemTime::now() > end).then_some(()));
    // The hub checks a session at the end of its certificate.
    let log = std::fs::read_to_string(setup.logs.join("hub-renewal.log")).unwrap_or_default();
    let was_cut = log.contains("its certificate has expired");
    findings.note(has_ended.is_some() && !was_cut, "its session outlasts the old certificate");
    // The restart waits until the agent is connected. The files of its options have expired.
    agent.restart(setup)?;
    findings.note(true, "a restarted agent connects with the new certificate");

    let requests = cluster.api.list(REQUESTS)?;
    let of_node: Vec<_> = requests
        .iter()
        .filter(|request| text(&request["status"]["conditions"][0]["message"]).contains(NODE))
        .collect();
    findings.same("requests of the node", &json!(of_node.len()), &json!(1));
    for request in &of_node {
        findings.same("usages", &request["spec"]["usages"], &json!(["digital signature", "client auth"]));
        findings.same("signer", &request["spec"]["signerName"], &json!(SIGNER));
    }
    for request in &requests {
        cluster.api.delete(&format!("{REQUESTS}/{}", text(&request["metadata"]["name"])))?;
    }
    agent.stop()?;
    hub.stop()
}

fn hub_test(setup: &Setup<'_>, cluster: &Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let mut command = Command::new(&setup.components.hub_tests);
    command
        .args(["--ignored", "--exact", TEST])
        .env("EDGE_CSI_KUBECONFIG", &cluster.plane.kubeconfig)
        .env("EDGE_CSI_NODE_CA", setup.certificates.authority().certificate());
    let mut test = Process::spawn(setup.logs, "hub-tests-renewal", &mut command)?;
    let passed = test.finish(TEST_BOUND)? && test.log().contains("1 passed");
    let words = "a node gets no certificate for another node or for the proxy, and one for itself";
    findings.note(passed, if passed { words.to_owned() } else { test.reason() });
    Ok(())
}
