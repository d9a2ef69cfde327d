//! One proxy for a driver on two nodes.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::cluster::MultiNodeCluster;
use edge_csi_tests::csi::{controller, identity, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{page, wait};
use tonic::{Code, Status};

const NODES: [&str; 2] = ["edge-1", "edge-2"];

/// Two nodes behind one socket.
async fn start() -> MultiNodeCluster {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &NODES).await;
    start_proxy(&mut nodes).await;
    nodes
}

async fn start_proxy(nodes: &mut MultiNodeCluster) {
    let (endpoint, names) = (nodes.endpoint(), NODES.join(","));
    let route = ["--endpoint", &endpoint, "--route", "topology", "--node", &names];
    nodes.start_proxy(&route).unwrap();
    ready(&nodes.cluster.proxy_socket()).await;
}

/// Creates a volume for a node. Retries until the nodes are connected.
async fn created(nodes: &MultiNodeCluster, name: &str, node: &str) -> csi::Volume {
    wait::until(&format!("{name} is made on {node}"), async || nodes.create(name, node).await.ok()).await
}

async fn delete(nodes: &MultiNodeCluster, id: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    controller(&nodes.cluster.proxy_socket()).delete_volume(request).await.map(drop)
}

async fn list(socket: &Path) -> Result<Vec<String>, Status> {
    let response = controller(socket).list_volumes(csi::ListVolumesRequest::default()).await?.into_inner();
    assert_eq!(response.next_token, "");
    let mut ids: Vec<_> = response.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect();
    ids.sort();
    Ok(ids)
}

#[tokio::test]
async fn volumes_keep_their_nodes_when_the_proxy_is_killed() {
    let mut nodes = start().await;
    let plugin = identity(&nodes.cluster.proxy_socket())
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    use csi::plugin_capability::service::Type::VolumeAccessibilityConstraints;
    assert!(plugin.has_service(VolumeAccessibilityConstraints));
    let (first, second) =
        (created(&nodes, "pvc-1", "edge-1").await, created(&nodes, "pvc-2", "edge-2").await);
    let place = |volume: &csi::Volume| volume.accessible_topology[0].segments.values().next().cloned();
    assert_eq!((place(&first).as_deref(), place(&second).as_deref()), (Some("edge-1"), Some("edge-2")));
    for (node, volume) in NODES.iter().zip([&first, &second]) {
        assert_eq!(list(&nodes.driver_socket(node)).await.unwrap(), std::slice::from_ref(&volume.volume_id));
    }

    nodes.cluster.proxy.as_mut().unwrap().kill();
    start_proxy(&mut nodes).await;
    // The pod was scheduled to another node meanwhile; the volume stays on its node.
    let again = created(&nodes, "pvc-2", "edge-1").await;
    assert_eq!(again.volume_id, second.volume_id);
    let mut both = [first.volume_id.clone(), second.volume_id.clone()];
    both.sort();
    assert_eq!(list(&nodes.cluster.proxy_socket()).await.unwrap(), both);
    let text = page::of(nodes.proxy(), "/").await;
    assert!(text.contains("2 nodes") && text.contains("2 rows"), "{text}");

    for volume in [&first, &second] {
        delete(&nodes, &volume.volume_id).await.unwrap();
    }
    delete(&nodes, "unknown-volume").await.unwrap();
    for node in NODES {
        assert_eq!(list(&nodes.driver_socket(node)).await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_offline_node_affects_only_its_own_volumes() {
    let mut nodes = start().await;
    let volume = created(&nodes, "pvc-1", "edge-1").await;
    created(&nodes, "pvc-2", "edge-2").await;
    nodes.stop_agent("edge-1");
    let offline =
        wait::until("the hub has noticed", async || delete(&nodes, &volume.volume_id).await.err()).await;
    assert_eq!(offline.code(), Code::Unavailable, "{offline}");
    assert_eq!(nodes.create("pvc-3", "edge-1").await.unwrap_err().code(), Code::Unavailable);
    // The recorded volume of the offline node is listed.
    assert!(list(&nodes.cluster.proxy_socket()).await.unwrap().contains(&volume.volume_id));
    // The volume may be on the offline node.
    let unknown = delete(&nodes, "unknown-volume").await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown}");
    created(&nodes, "pvc-4", "edge-2").await;
    nodes.start_agent("edge-1").unwrap();
    created(&nodes, "pvc-3", "edge-1").await;
    delete(&nodes, &volume.volume_id).await.unwrap();
    assert_eq!(list(&nodes.cluster.proxy_socket()).await.unwrap().len(), 3);
}
