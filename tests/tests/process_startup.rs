//! The answers that the proxy gives from its store, over restarts while the edge is offline.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::fs;
use std::path::PathBuf;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::{DRIVER, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, identity, probe_returns, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{page, wait};
use tonic::Code;

/// The answers to the sidecars' start-up calls.
type Answers =
    (csi::GetPluginInfoResponse, csi::GetPluginCapabilitiesResponse, csi::ControllerGetCapabilitiesResponse);

async fn answers(cluster: &TestCluster) -> Answers {
    let (mut identity, mut controller) =
        (identity(&cluster.proxy_socket()), controller(&cluster.proxy_socket()));
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap().into_inner();
    let plugin =
        identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    let request = csi::ControllerGetCapabilitiesRequest {};
    let controller = controller.controller_get_capabilities(request).await.unwrap().into_inner();
    (info, plugin, controller)
}

fn state(cluster: &TestCluster) -> PathBuf {
    cluster.path("proxy-state")
}

fn record(cluster: &TestCluster) -> PathBuf {
    state(cluster).join(format!("placements-{DRIVER}.redb"))
}

fn start_proxy(cluster: &mut TestCluster) {
    let state = state(cluster).to_string_lossy().into_owned();
    cluster.start_proxy(&["-v", "--state-dir", &state]).unwrap();
}

/// Waits until the proxy has stored the driver info. Sidecars get the answers before that.
async fn kept(cluster: &TestCluster) {
    cluster.proxy.as_ref().unwrap().logged("driver info stored").await;
}

/// Starts a cluster with a proxy that has stored the driver info. Returns the cluster and the answers.
async fn learnt() -> (TestCluster, Answers) {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    start_proxy(&mut cluster);
    ready(&cluster.proxy_socket()).await;
    let answers = answers(&cluster).await;
    kept(&cluster).await;
    (cluster, answers)
}

/// Hub, agent and proxy lose their power; only the proxy restarts.
fn power_cut(cluster: &mut TestCluster) {
    cluster.hub = None;
    cluster.agent = None;
    cluster.driver = None;
    cluster.proxy = None;
    fs::remove_file(cluster.path("proxy.log")).unwrap();
    start_proxy(cluster);
}

/// A shorter version without the real sidecars: `EDGE_CSI_MINUTES=10 cargo test -p edge-csi-e2e -- --ignored
/// sidecars-offline`.
#[tokio::test]
async fn a_restarted_proxy_answers_offline_and_reports_the_age() {
    let (mut cluster, before) = learnt().await;
    power_cut(&mut cluster);
    probe_returns(&cluster.proxy_socket(), false).await;
    assert_eq!(answers(&cluster).await, before);
    let proxy = cluster.proxy.as_ref().unwrap();
    proxy.logged("answering sidecars from").await;
    let page_now = wait::until("the page knows that the driver cannot be reached", async || {
        Some(page::of(proxy, "/").await).filter(|page| page.contains("it cannot be reached"))
    })
    .await;
    assert!(page_now.contains("s ago") && page_now.contains("Probe answers not ready"), "{page_now}");
    let metrics = page::of(proxy, "/metrics").await;
    for name in ["csi_plugin_startup_age_seconds", "csi_plugin_startup_stale_answers_total"] {
        let named = metrics.lines().any(|line| line.starts_with(name) && line.contains(DRIVER));
        assert!(named, "{name} is not in {metrics}");
    }
    let call = controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await;
    assert_eq!(call.unwrap_err().code(), Code::Unavailable, "and nothing else is made up");
    assert!(cluster.proxy.as_mut().unwrap().runs());
}

#[tokio::test]
async fn a_damaged_store_is_quarantined_reported_and_relearnt() {
    let (mut cluster, before) = learnt().await;
    cluster.proxy = None;
    let good = fs::read(record(&cluster)).unwrap();
    let mut overwritten = good.clone();
    overwritten[64..4096].fill(0xa5);
    let damages = [
        (&good[..good.len() / 2], "redb.damaged"),
        (&good[..4], "redb.damaged.1"),
        (&overwritten, "redb.damaged.2"),
    ];
    for (bytes, aside) in damages {
        fs::write(record(&cluster), bytes).unwrap();
        start_proxy(&mut cluster);
        ready(&cluster.proxy_socket()).await;
        assert_eq!(answers(&cluster).await, before);
        kept(&cluster).await;
        let proxy = cluster.proxy.take().unwrap();
        proxy.logged("cannot be used and was set aside").await;
        assert_eq!(fs::read(record(&cluster).with_extension(aside)).unwrap().len(), bytes.len());
        drop(proxy);
        fs::remove_file(cluster.path("proxy.log")).unwrap();
    }
    // The driver info that was queried again serves the next start.
    power_cut_of_the_rest(&mut cluster);
    start_proxy(&mut cluster);
    probe_returns(&cluster.proxy_socket(), false).await;
    assert_eq!(answers(&cluster).await, before);
}

fn power_cut_of_the_rest(cluster: &mut TestCluster) {
    (cluster.hub, cluster.agent, cluster.driver) = (None, None, None);
}
