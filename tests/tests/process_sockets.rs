//! One proxy with a socket for each node.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::cluster::{DRIVER, MultiNodeCluster};
use edge_csi_tests::csi::{channel, controller, create_volume, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{page, wait};
use tonic::Code;

/// Starts the proxy with a socket for each node.
fn start_proxy(nodes: &mut MultiNodeCluster) {
    let directory = nodes.cluster.path("s").to_string_lossy().into_owned();
    let route = ["--route", "sockets", "--endpoint-dir", &directory, "--node", "edge-1,edge-2"];
    nodes.start_proxy(&route).unwrap();
}

fn socket(nodes: &MultiNodeCluster, node: &str) -> PathBuf {
    nodes.cluster.path("s").join(node).join("csi.sock")
}

async fn volumes(socket: &Path) -> Vec<String> {
    let response = controller(socket).list_volumes(csi::ListVolumesRequest::default()).await.unwrap();
    response.into_inner().entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
}

/// Makes the calls of external-provisioner with `--node-deployment` at its start.
async fn node_info(socket: &Path) -> csi::NodeGetInfoResponse {
    let request = within(Duration::from_secs(10), csi::NodeGetInfoRequest {});
    NodeClient::new(channel(socket)).node_get_info(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn each_node_has_its_socket_even_while_it_is_off() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &["edge-1", "edge-2"]).await;
    start_proxy(&mut nodes);
    for node in ["edge-1", "edge-2"] {
        ready(&socket(&nodes, node)).await;
        let mode = std::fs::metadata(socket(&nodes, node)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let info = node_info(&socket(&nodes, node)).await;
        let place = info.accessible_topology.unwrap();
        assert_eq!(place.segment(&format!("topology.{DRIVER}/node")), Some(node));
        let name = format!("pvc-{node}");
        let created = controller(&socket(&nodes, node)).create_volume(create_volume(&name)).await.unwrap();
        let volume = created.into_inner().volume.unwrap();
        assert_eq!(volume.accessible_topology, [place]);
        assert_eq!(volumes(&socket(&nodes, node)).await, [volume.volume_id]);
        assert_eq!(volumes(&nodes.driver_socket(node)).await.len(), 1);
    }
    let text = page::of(nodes.proxy(), "/").await;
    assert!(text.contains("edge-2/csi.sock"), "{text}");

    let before = node_info(&socket(&nodes, "edge-1")).await;
    nodes.stop_agent("edge-1");
    nodes.cluster.proxy.as_mut().unwrap().kill();
    start_proxy(&mut nodes);
    ready(&socket(&nodes, "edge-2")).await;
    assert_eq!(node_info(&socket(&nodes, "edge-1")).await, before);
    let refused =
        controller(&socket(&nodes, "edge-1")).create_volume(create_volume("pvc-3")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    nodes.start_agent("edge-1").unwrap();
    wait::until("edge-1 is back", async || {
        controller(&socket(&nodes, "edge-1")).create_volume(create_volume("pvc-3")).await.ok()
    })
    .await;
}
