//! `edge-hub --driver`: a hub that serves a driver's CSI socket itself.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::{DRIVER, MultiNodeCluster, NODE, Role, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{page, wait};
use tonic::Code;

/// A cluster without a proxy, whose hub serves the driver on the proxy's socket.
fn cluster(kind: LinkKind, name: &str) -> TestCluster {
    let mut cluster = TestCluster::empty(kind);
    let (socket, state) = (cluster.proxy_socket(), cluster.path("hub-state"));
    let driver = format!("{name}=unix://{}", socket.display());
    cluster.hub_options(&["--driver", &driver, "--state-dir", state.to_str().unwrap(), "-vv"]);
    cluster
}

/// Placements survive a kill of the hub, and its status page shows them.
#[tokio::test]
async fn hub_places_volumes_on_two_nodes() {
    let mut nodes = MultiNodeCluster::start_in(cluster(LinkKind::Wss, DRIVER), &["edge-1", "edge-2"]).await;
    ready(&nodes.cluster.proxy_socket()).await;
    let mut volumes = Vec::new();
    for node in ["edge-1", "edge-2"] {
        let created = wait::until("the node is connected", async || {
            nodes.create(&format!("pvc-{node}"), node).await.ok()
        });
        volumes.push(created.await);
    }
    nodes.cluster.kill(Role::Hub);
    nodes.cluster.start_hub().await.unwrap();
    // The pod was scheduled to the other node meanwhile; the volume stays on its node.
    let again = async || nodes.create("pvc-edge-2", "edge-1").await.ok();
    assert_eq!(wait::until("the nodes are back", again).await.volume_id, volumes[1].volume_id);
    let text = page::of(nodes.cluster.hub.as_ref().unwrap(), "/").await;
    assert!(text.contains(DRIVER) && text.contains("2 rows"), "{text}");
    let metrics = page::of(nodes.cluster.hub.as_ref().unwrap(), "/metrics").await;
    assert!(metrics.contains("edge_csi_quarantined_nodes 0"), "{metrics}");
    for volume in volumes {
        let request = csi::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
        controller(&nodes.cluster.proxy_socket()).delete_volume(request).await.unwrap();
    }
}

/// A cluster with one node, to which every call goes.
async fn one_node() -> TestCluster {
    let mut cluster = cluster(LinkKind::Uds, &format!("{DRIVER}@{NODE}"));
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
    cluster
}

#[tokio::test]
async fn call_of_a_hub_that_drains_is_answered() {
    let mut cluster = one_node().await;
    let socket = cluster.proxy_socket();
    cluster.driver.as_ref().unwrap().freeze();
    let call = tokio::spawn(async move { controller(&socket).create_volume(create_volume("pvc-1")).await });
    cluster.agent.as_ref().unwrap().logged("CreateVolume").await;
    cluster.terminate(Role::Hub);
    cluster.hub.as_ref().unwrap().logged("draining").await;
    cluster.driver.as_ref().unwrap().thaw();
    call.await.unwrap().unwrap();
    let hub = cluster.hub.as_mut().unwrap();
    assert!(hub.ended().await.success(), "{}", hub.log());
    assert!(!cluster.proxy_socket().exists());
}

/// The driver has one proxy at a time. A hub that is replaced as such continues as a hub.
#[tokio::test]
async fn another_proxy_closes_only_the_socket_of_the_hub() {
    let mut cluster = one_node().await;
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
    let socket = cluster.path("csi-2.sock");
    let _proxy = cluster.additional_proxy("proxy-2", &socket, NODE, &[]).unwrap();
    ready(&socket).await;
    controller(&socket).create_volume(create_volume("pvc-2")).await.unwrap();
    let refused =
        controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-3")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    cluster.hub.as_ref().unwrap().logged("the socket of --driver is closed").await;
    wait::until("the socket is closed", async || (!wait::accepts(&cluster.proxy_socket())).then_some(()))
        .await;
    controller(&socket).create_volume(create_volume("pvc-4")).await.unwrap();
    assert!(cluster.hub.as_mut().unwrap().runs());
}
