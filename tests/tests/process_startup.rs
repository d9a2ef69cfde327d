//! What the proxy answers by itself, over restarts with the edge off.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::fs;
use std::path::PathBuf;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, identity, probe_says, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::stand::{DRIVER, Stand};
use edge_csi_tests::{page, wait};
use tonic::Code;

/// What the sidecars are told when they start.
type Answers =
    (csi::GetPluginInfoResponse, csi::GetPluginCapabilitiesResponse, csi::ControllerGetCapabilitiesResponse);

async fn answers(stand: &Stand) -> Answers {
    let (mut identity, mut controller) = (identity(&stand.proxy_socket()), controller(&stand.proxy_socket()));
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await.unwrap().into_inner();
    let plugin =
        identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    let request = csi::ControllerGetCapabilitiesRequest {};
    let controller = controller.controller_get_capabilities(request).await.unwrap().into_inner();
    (info, plugin, controller)
}

fn state(stand: &Stand) -> PathBuf {
    stand.path("proxy-state")
}

fn record(stand: &Stand) -> PathBuf {
    state(stand).join(format!("placements-{DRIVER}.redb"))
}

fn start_proxy(stand: &mut Stand) {
    let state = state(stand).to_string_lossy().into_owned();
    stand.start_proxy(&["-v", "--state-dir", &state, "--http", "127.0.0.1:0"]);
}

/// Waits until what the proxy has learnt is on its disk. Sidecars are told before.
async fn kept(stand: &Stand) {
    stand.proxy.as_ref().unwrap().logged("is kept for the next start").await;
}

/// A stand whose proxy has learnt everything, and what it answers.
async fn learnt() -> (Stand, Answers) {
    let mut stand = Stand::empty(LinkKind::Uds);
    stand.start_driver();
    stand.start_hub().await;
    stand.start_agent(&[]);
    start_proxy(&mut stand);
    ready(&stand.proxy_socket()).await;
    let answers = answers(&stand).await;
    kept(&stand).await;
    (stand, answers)
}

/// Hub, agent and proxy lose their power; only the proxy comes back.
fn power_cut(stand: &mut Stand) {
    stand.hub = None;
    stand.agent = None;
    stand.driver = None;
    stand.proxy = None;
    fs::remove_file(stand.path("proxy.log")).unwrap();
    start_proxy(stand);
}

/// Anchors (f) 15, but for the ten minutes and the real sidecars: `EDGE_CSI_MINUTES=10 cargo test -p edge-csi-e2e -- --ignored sidecars-offline`.
#[tokio::test]
async fn with_hub_and_edge_off_a_proxy_that_was_killed_answers_as_before_and_says_how_old_that_is() {
    let (mut stand, before) = learnt().await;
    power_cut(&mut stand);
    probe_says(&stand.proxy_socket(), false).await;
    assert_eq!(answers(&stand).await, before);
    let proxy = stand.proxy.as_ref().unwrap();
    proxy.logged("answering sidecars with what").await;
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
    let call = controller(&stand.proxy_socket()).create_volume(create_volume("pvc-1")).await;
    assert_eq!(call.unwrap_err().code(), Code::Unavailable, "and nothing else is made up");
    assert!(stand.proxy.as_mut().unwrap().runs());
}

#[tokio::test]
async fn a_store_that_was_damaged_is_set_aside_and_said_and_learnt_again_when_the_edge_is_back() {
    let (mut stand, before) = learnt().await;
    stand.proxy = None;
    let good = fs::read(record(&stand)).unwrap();
    let mut overwritten = good.clone();
    overwritten[64..4096].fill(0xa5);
    for bytes in [&good[..good.len() / 2], &good[..4], &overwritten] {
        fs::write(record(&stand), bytes).unwrap();
        start_proxy(&mut stand);
        ready(&stand.proxy_socket()).await;
        assert_eq!(answers(&stand).await, before);
        kept(&stand).await;
        let proxy = stand.proxy.take().unwrap();
        proxy.logged("cannot be used and was set aside").await;
        assert_eq!(fs::read(record(&stand).with_extension("redb.damaged")).unwrap().len(), bytes.len());
        drop(proxy);
        fs::remove_file(stand.path("proxy.log")).unwrap();
    }
    // And what was learnt again serves the next start.
    power_cut_of_the_rest(&mut stand);
    start_proxy(&mut stand);
    probe_says(&stand.proxy_socket(), false).await;
    assert_eq!(answers(&stand).await, before);
}

fn power_cut_of_the_rest(stand: &mut Stand) {
    (stand.hub, stand.agent, stand.driver) = (None, None, None);
}
