//! Certificates, keys and tokens that cannot be used keep a link down and stop nothing else. Good files end that without a
//! restart.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::certificates::Files;
use edge_csi_tests::cluster::{DRIVER, NODE, Role, TestCluster};
use edge_csi_tests::csi::{channel, controller, create_volume, identity, probe_returns, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::{metrics, page, wait};
use tonic::Code;

/// Waits until `/readyz` answers 503 with this cause.
async fn not_ready(process: &Process, cause: &str) {
    let what = format!("{process:?} is not ready: {cause}");
    wait::until(&what, async || {
        let answer = page::of(process, "/readyz").await;
        (answer.starts_with("HTTP/1.1 503") && answer.contains(cause)).then_some(())
    })
    .await;
}

/// Waits until the gauge of a process's certificate files is 1.
async fn reports_invalid_files(process: &Process) {
    wait::until("the metric reports invalid files", async || {
        let values = metrics::of(process).await;
        let is_set = |(name, value): (&String, &f64)| {
            name.starts_with("edge_transport_file_reload_failed") && *value > 0.5
        };
        values.iter().any(is_set).then_some(())
    })
    .await;
}

fn kubelet_socket(cluster: &TestCluster) -> PathBuf {
    cluster.path("kubelet").join(format!("{DRIVER}.sock"))
}

fn start_agent(cluster: &mut TestCluster) {
    let directory = cluster.path("kubelet").to_string_lossy().into_owned();
    cluster.start_agent(&["--kubelet-socket-dir", &directory]).unwrap();
}

/// Makes the agent's files unusable; the agent then names the cause.
type Damage = fn(&TestCluster, &Files) -> &'static str;

fn expired(cluster: &TestCluster, files: &Files) -> &'static str {
    cluster.certificates().authority().issue_for_years(&[NODE], 2000..2001).install_as(files);
    "expired"
}

/// As after a jump of the clock by years: the hub, with the right time, refuses the certificate.
fn not_yet_valid(cluster: &TestCluster, files: &Files) -> &'static str {
    cluster.certificates().authority().issue_for_years(&[NODE], 3000..3001).install_as(files);
    "no connection to the hub"
}

fn missing(_: &TestCluster, files: &Files) -> &'static str {
    fs::remove_file(&files.certificate).unwrap();
    "cannot read certificate chain"
}

/// As after a power cut during the write.
fn cut(_: &TestCluster, files: &Files) -> &'static str {
    fs::write(&files.key, "").unwrap();
    "no private key in"
}

fn damaged_authority(_: &TestCluster, files: &Files) -> &'static str {
    fs::write(&files.authority, "garbage").unwrap();
    "no certificate in"
}

#[tokio::test]
async fn an_agent_without_valid_files_serves_kubelet() {
    let damages: [Damage; 5] = [expired, not_yet_valid, missing, cut, damaged_authority];
    for (index, damage) in damages.into_iter().enumerate() {
        // The authority's file is shared by all processes: the hub has read it before.
        let mut cluster = TestCluster::empty(LinkKind::Wss);
        let files = cluster.certificates().agent.clone();
        let good = cluster.certificates().authority().issue_for_years(&[NODE], 2001..4000);
        let authority = fs::read(&files.authority).unwrap();
        cluster.start_driver(&[]).unwrap();
        cluster.start_hub().await.unwrap();
        let cause = damage(&cluster, &files);
        start_agent(&mut cluster);

        let socket = kubelet_socket(&cluster);
        ready(&socket).await;
        let info = NodeClient::new(channel(&socket)).node_get_info(csi::NodeGetInfoRequest {}).await;
        assert_eq!(info.unwrap().into_inner().node_id, NODE);
        let agent = cluster.agent.as_ref().unwrap();
        not_ready(agent, cause).await;
        // The agent itself cannot know that the hub's clock differs.
        if index != 1 {
            agent.logged("files cannot be used").await;
            reports_invalid_files(agent).await;
        }

        fs::write(&files.authority, authority).unwrap();
        good.install_as(&files);
        cluster.ready(Role::Agent).await.unwrap();
    }
}

/// The name of the proxy is in its certificate, and is used as soon as there is one.
#[tokio::test]
async fn a_proxy_with_an_empty_key_serves_its_socket() {
    for kind in [LinkKind::Wss, LinkKind::Quic] {
        let mut cluster = TestCluster::empty(kind);
        let files = cluster.certificates().proxy.clone();
        let good = cluster.issue(&["csi-proxy"]);
        cluster.start_driver(&[]).unwrap();
        cluster.start_hub().await.unwrap();
        cluster.start_agent(&[]).unwrap();
        fs::write(&files.key, "").unwrap();
        cluster.start_proxy(&[]).unwrap();

        let socket = cluster.proxy_socket();
        probe_returns(&socket, false).await;
        let info = identity(&socket).get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.into_inner().name, DRIVER);
        let refused = controller(&socket).create_volume(create_volume("pvc-1")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        let proxy = cluster.proxy.as_ref().unwrap();
        not_ready(proxy, "no private key in").await;
        proxy.logged("files cannot be used").await;
        reports_invalid_files(proxy).await;

        good.install_as(&files);
        ready(&socket).await;
        controller(&socket).create_volume(create_volume("pvc-1")).await.unwrap();
        let page = page::of(cluster.proxy.as_ref().unwrap(), "/").await;
        assert!(page.contains("csi-proxy/"), "{page}");
        assert!(cluster.hub.as_ref().unwrap().log().contains("peer=csi-proxy/"), "{kind}");
    }
}

#[tokio::test]
async fn a_hub_without_a_certificate_waits_for_it() {
    for kind in [LinkKind::Wss, LinkKind::Quic] {
        let mut cluster = TestCluster::empty(kind);
        let files = cluster.certificates().hub.clone();
        let good = cluster.certificates().authority().issue_for_years(&["127.0.0.1"], 2001..4000);
        fs::remove_file(&files.certificate).unwrap();
        cluster.launch_hub().unwrap();
        cluster.start_agent(&[]).unwrap();

        let hub = cluster.hub.as_ref().unwrap();
        not_ready(hub, "cannot read certificate chain").await;
        let alive = page::of(hub, "/livez").await;
        assert!(alive.starts_with("HTTP/1.1 200"), "{alive}");
        reports_invalid_files(hub).await;
        assert!(wait::accepts(&cluster.path("hub.sock")), "local peers can connect");
        not_ready(cluster.agent.as_ref().unwrap(), "no connection to the hub").await;

        good.install_as(&files);
        cluster.ready(Role::Hub).await.unwrap();
        cluster.ready(Role::Agent).await.unwrap();
    }
}

/// A peer with a token: `--tls-ca` and `--token-file`.
fn token_agent(cluster: &TestCluster, token: &Path) -> Process {
    let arguments = Arguments::new()
        .pair("--nodeid", NODE)
        .pair("--hub", cluster.hub_url())
        .pair("--tls-ca", &cluster.certificates().agent.authority)
        .pair("--token-file", token)
        .pair("--http-endpoint", "127.0.0.1:0")
        .serving(DRIVER, &cluster.driver_socket());
    Process::start(cluster.directory(), "token-agent", "edge-agent", arguments.flag("-v"))
}

#[tokio::test]
async fn missing_token_files_keep_only_the_link_down() {
    let mut cluster = TestCluster::empty(LinkKind::Wss);
    let (tokens, token) = (cluster.path("tokens"), cluster.path("token"));
    cluster.hub_options(&["--tokens", &tokens.to_string_lossy()]);
    cluster.launch_hub().unwrap();
    let agent = token_agent(&cluster, &token);
    not_ready(cluster.hub.as_ref().unwrap(), "cannot read tokens").await;
    not_ready(&agent, "read token file").await;

    fs::write(&token, "0123456789abcdef\n").unwrap();
    not_ready(&agent, "the hub has no valid token file").await;
    let digest = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
    fs::write(&tokens, format!("{NODE} {digest}\n")).unwrap();
    cluster.ready(Role::Hub).await.unwrap();
    agent.logged("connected to the hub").await;
}

/// `--deny` ends the open session of a node, and a removed entry admits it again, both without a restart.
#[tokio::test]
async fn a_denied_node_is_disconnected_until_it_is_allowed() {
    let mut cluster = TestCluster::empty(LinkKind::Wss);
    let list = cluster.path("deny");
    fs::write(&list, "# nothing yet\n").unwrap();
    cluster.hub_options(&["--deny", &list.to_string_lossy()]);
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    cluster.ready(Role::Agent).await.unwrap();

    fs::write(&list, format!("{NODE}\n")).unwrap();
    not_ready(cluster.agent.as_ref().unwrap(), "the deny list of the hub has its name").await;
    cluster.hub.as_ref().unwrap().logged("peer is down").await;

    // A malformed list is reported, and the old one stays.
    fs::write(&list, "serial:xyz\n").unwrap();
    let hub = cluster.hub.as_ref().unwrap();
    hub.logged("deny, line 1: expected serial:").await;
    reports_invalid_files(hub).await;
    not_ready(cluster.agent.as_ref().unwrap(), "the deny list of the hub has its name").await;

    fs::write(&list, "serial:01\n").unwrap();
    cluster.ready(Role::Agent).await.unwrap();
}

/// Waits until the gauge of the next update of the revocation lists is in the future.
async fn reports_next_update(process: &Process) {
    wait::until("the metric reports the next update", async || {
        let values = metrics::of(process).await;
        let is_set = |(name, value): (&String, &f64)| {
            name.starts_with("edge_transport_crl_next_update_seconds") && *value > 0.0
        };
        values.iter().any(is_set).then_some(())
    })
    .await;
}

/// `--client-crl`: no peer connects without a list; a list ends the open session of a node, and one without the node admits it
/// again, both without a restart.
#[tokio::test]
async fn a_revoked_node_is_disconnected_until_a_list_omits_it() {
    for kind in [LinkKind::Wss, LinkKind::Quic] {
        let mut cluster = TestCluster::empty(kind);
        let list = cluster.path("crl.pem");
        let authority = cluster.certificates().authority();
        let (none, revoked) = (authority.revoke(&[]), authority.revoke(&[77]));
        authority.issue_numbered(&[NODE], 77).install_as(&cluster.certificates().agent);
        cluster.hub_options(&["--client-crl", &list.to_string_lossy()]);
        cluster.launch_hub().unwrap();
        cluster.start_agent(&[]).unwrap();
        let hub = cluster.hub.as_ref().unwrap();
        not_ready(hub, "cannot read revocation lists").await;
        not_ready(cluster.agent.as_ref().unwrap(), "no connection to the hub").await;

        fs::write(&list, &none).unwrap();
        cluster.ready(Role::Hub).await.unwrap();
        cluster.ready(Role::Agent).await.unwrap();
        reports_next_update(cluster.hub.as_ref().unwrap()).await;

        fs::write(&list, &revoked).unwrap();
        cluster.hub.as_ref().unwrap().logged("its authority has revoked its certificate").await;
        not_ready(cluster.agent.as_ref().unwrap(), "Revoked").await;

        // A damaged list is reported, and the old one stays.
        fs::write(&list, &none[..none.len() / 2]).unwrap();
        let hub = cluster.hub.as_ref().unwrap();
        hub.logged("crl.pem is not valid PEM").await;
        reports_invalid_files(hub).await;
        not_ready(cluster.agent.as_ref().unwrap(), "Revoked").await;

        fs::write(&list, &none).unwrap();
        cluster.ready(Role::Agent).await.unwrap();
    }
}
