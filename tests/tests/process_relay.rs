//! The whole relay as processes: a sidecar's call on the proxy's socket reaches the driver behind the agent, over each link.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, identity, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::wait;
use tonic::Code;

async fn one_volume_over(over: LinkKind) {
    let cluster = TestCluster::start(over).await;
    let mut client = controller(&cluster.proxy_socket());

    let info = identity(&cluster.proxy_socket())
        .get_plugin_info(csi::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, DRIVER);

    let capabilities =
        client.controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {}).await.unwrap();
    let direct = controller(&cluster.driver_socket())
        .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap();
    assert!(!capabilities.get_ref().capabilities.is_empty());
    for capability in &capabilities.get_ref().capabilities {
        assert!(direct.get_ref().capabilities.contains(capability), "{capability:?} is not the driver's");
    }

    let volume = client.create_volume(create_volume("pvc-1")).await.unwrap().into_inner().volume.unwrap();
    let again = client.create_volume(create_volume("pvc-1")).await.unwrap().into_inner().volume.unwrap();
    assert_eq!(volume.volume_id, again.volume_id);

    // An error of the driver keeps its code and its message.
    let mut bad = create_volume("");
    bad.volume_capabilities.clear();
    let relayed = client.create_volume(bad.clone()).await.unwrap_err();
    let own = controller(&cluster.driver_socket()).create_volume(bad).await.unwrap_err();
    assert_eq!((relayed.code(), relayed.message()), (own.code(), own.message()));
    assert_eq!(relayed.code(), Code::InvalidArgument);

    let request = csi::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
    client.delete_volume(request).await.unwrap();
}

#[tokio::test]
async fn a_volume_is_made_and_deleted_over_a_unix_socket() {
    one_volume_over(LinkKind::Uds).await;
}

#[tokio::test]
async fn a_volume_is_made_and_deleted_over_a_websocket() {
    one_volume_over(LinkKind::Ws).await;
}

#[tokio::test]
async fn creates_and_deletes_a_volume_over_a_websocket_with_tls() {
    one_volume_over(LinkKind::Wss).await;
}

#[tokio::test]
async fn a_volume_is_made_and_deleted_over_quic_with_certificates() {
    one_volume_over(LinkKind::Quic).await;
}

#[tokio::test]
async fn a_volume_is_made_and_deleted_over_quic_without_verification() {
    one_volume_over(LinkKind::QuicInsecure).await;
}

/// Both proxies use one node and one certificate. The node accepts calls of the second proxy only.
async fn a_second_proxy_over(over: LinkKind) {
    let mut cluster = TestCluster::start(over).await;
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
    let second_socket = cluster.path("csi-2.sock");
    let mut second = cluster.additional_proxy("proxy-2", &second_socket, NODE, &[]).unwrap();
    ready(&second_socket).await;
    controller(&second_socket).create_volume(create_volume("pvc-2")).await.unwrap();
    let refused =
        controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-3")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let first = cluster.proxy.as_mut().unwrap();
    let status = first.ended().await;
    assert_eq!(status.code(), Some(1), "{}", first.log());
    assert!(first.log().contains("this proxy was replaced"), "{}", first.log());
    controller(&second_socket).create_volume(create_volume("pvc-4")).await.unwrap();
    assert!(second.runs());
}

#[tokio::test]
async fn a_second_proxy_of_a_driver_replaces_the_first_which_ends() {
    a_second_proxy_over(LinkKind::Uds).await;
}

#[tokio::test]
async fn a_second_proxy_with_the_same_certificate_replaces_the_first() {
    a_second_proxy_over(LinkKind::Wss).await;
}

#[tokio::test]
async fn all_processes_log_one_call_id_and_no_secret() {
    const CANARY: &str = "canary-5f2b9d";
    let cluster = TestCluster::start(LinkKind::Ws).await;
    let mut request = create_volume("pvc-traced");
    request.secrets.insert("password".to_owned(), CANARY.to_owned());
    controller(&cluster.proxy_socket()).create_volume(request).await.unwrap();

    let (proxy, hub, agent) =
        (cluster.proxy.as_ref().unwrap(), cluster.hub.as_ref().unwrap(), cluster.agent.as_ref().unwrap());
    let id = wait::until("the proxy's trace names the call", async || call_id(&proxy.log())).await;
    for process in [proxy, hub, agent] {
        process.logged(&id).await;
        assert!(!process.log().contains(CANARY), "{process:?} has logged a secret");
    }
    assert!(!cluster.driver.as_ref().unwrap().log().contains(CANARY), "the driver has logged a secret");
}

/// Returns the call id in the first line about CreateVolume.
fn call_id(log: &str) -> Option<String> {
    let line = log.lines().find(|line| line.contains("CreateVolume") && line.contains("call="))?;
    let id = line.split("call=").nth(1)?.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next()?;
    (!id.is_empty()).then(|| id.to_owned())
}
