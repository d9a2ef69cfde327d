//! One proxy for a driver on two nodes.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;

use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, identity, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::stand::Site;
use edge_csi_tests::{page, wait};
use tonic::{Code, Status};

const NODES: [&str; 2] = ["edge-1", "edge-2"];

/// Two nodes behind one socket.
async fn start() -> Site {
    let mut site = Site::start(LinkKind::Uds, &NODES).await;
    start_proxy(&mut site).await;
    site
}

async fn start_proxy(site: &mut Site) {
    let (endpoint, nodes) = (site.endpoint(), NODES.join(","));
    let route = ["--endpoint", &endpoint, "--route", "topology", "--node", &nodes];
    site.start_proxy(&[&route[..], &["--http", "127.0.0.1:0"]].concat());
    ready(&site.stand.proxy_socket()).await;
}

/// Once all nodes can be reached.
async fn created(site: &Site, name: &str, node: &str) -> csi::Volume {
    wait::until(&format!("{name} is made on {node}"), async || site.create(name, node).await.ok()).await
}

async fn delete(site: &Site, id: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    controller(&site.stand.proxy_socket()).delete_volume(request).await.map(drop)
}

async fn list(socket: &Path) -> Result<Vec<String>, Status> {
    let response = controller(socket).list_volumes(csi::ListVolumesRequest::default()).await?.into_inner();
    assert_eq!(response.next_token, "");
    let mut ids: Vec<_> = response.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect();
    ids.sort();
    Ok(ids)
}

#[tokio::test]
async fn volumes_are_made_and_found_and_deleted_on_the_nodes_of_their_pods_though_the_proxy_is_killed_between()
 {
    let mut site = start().await;
    let plugin = identity(&site.stand.proxy_socket())
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    use csi::plugin_capability::service::Type::VolumeAccessibilityConstraints;
    assert!(plugin.has_service(VolumeAccessibilityConstraints));
    let (first, second) = (created(&site, "pvc-1", "edge-1").await, created(&site, "pvc-2", "edge-2").await);
    let place = |volume: &csi::Volume| volume.accessible_topology[0].segments.values().next().cloned();
    assert_eq!((place(&first).as_deref(), place(&second).as_deref()), (Some("edge-1"), Some("edge-2")));
    for (node, volume) in NODES.iter().zip([&first, &second]) {
        assert_eq!(list(&site.driver_socket(node)).await.unwrap(), std::slice::from_ref(&volume.volume_id));
    }

    site.stand.proxy.as_mut().unwrap().kill();
    start_proxy(&mut site).await;
    // The pod was put elsewhere meanwhile; the volume is where it is.
    let again = created(&site, "pvc-2", "edge-1").await;
    assert_eq!(again.volume_id, second.volume_id);
    let mut both = [first.volume_id.clone(), second.volume_id.clone()];
    both.sort();
    assert_eq!(list(&site.stand.proxy_socket()).await.unwrap(), both);
    let text = page::of(site.proxy(), "/").await;
    assert!(text.contains("2 nodes") && text.contains("2 rows"), "{text}");

    for volume in [&first, &second] {
        delete(&site, &volume.volume_id).await.unwrap();
    }
    delete(&site, "never-heard-of").await.unwrap();
    for node in NODES {
        assert_eq!(list(&site.driver_socket(node)).await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn with_one_node_off_the_other_goes_on_and_nothing_is_said_of_what_is_not_known() {
    let mut site = start().await;
    let volume = created(&site, "pvc-1", "edge-1").await;
    created(&site, "pvc-2", "edge-2").await;
    site.stop_agent("edge-1");
    let offline =
        wait::until("the hub has noticed", async || delete(&site, &volume.volume_id).await.err()).await;
    assert_eq!(offline.code(), Code::Unavailable, "{offline}");
    assert_eq!(site.create("pvc-3", "edge-1").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(list(&site.stand.proxy_socket()).await.unwrap_err().code(), Code::Unavailable);
    // It may be on the node that is away.
    let unknown = delete(&site, "never-heard-of").await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown}");
    created(&site, "pvc-4", "edge-2").await;
    site.start_agent("edge-1");
    created(&site, "pvc-3", "edge-1").await;
    delete(&site, &volume.volume_id).await.unwrap();
    assert_eq!(list(&site.stand.proxy_socket()).await.unwrap().len(), 3);
}
