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
use edge_csi_tests::volumes::disk::{Disk, Frozen};
use edge_csi_tests::volumes::namespace::{private, unmount};
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

/// Returns the number of threads of a process that wait for a disk.
fn threads_at_the_disk(process: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    // The state follows the name, which is in parentheses.
    stats.filter(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))).count()
}

/// The disk with the state and the sockets of the proxy hangs when a further node connects, whose name and socket are
/// written to it. Meanwhile calls to another node and probes are answered, and the link stays. The further node gets its
/// socket when the disk works again.
#[tokio::test]
async fn a_disk_that_hangs_stops_no_call() {
    let Some(directory) = private() else { return };
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &["edge-1"]).await;
    let disk = Disk::new(&directory, "disk");
    let mounted = [nodes.cluster.path("s"), nodes.proxy_state().into()];
    mounted.iter().for_each(|path| Disk::mount(disk.device(), path).unwrap());
    let endpoints = mounted[0].to_string_lossy();
    nodes.start_proxy(&["--route", "sockets", "--endpoint-dir", &endpoints]).unwrap();
    ready(&socket(&nodes, "edge-1")).await;
    let process = nodes.proxy().id();

    let frozen = Frozen::at(&mounted[0]);
    nodes.add_node("edge-2").unwrap();
    wait::until("the proxy waits for the disk", async || (threads_at_the_disk(process) >= 2).then_some(()))
        .await;
    for round in 0..3 {
        let called = wait::within("a call is answered", volumes(&socket(&nodes, "edge-1"))).await;
        assert!(called.is_empty(), "{round}");
        let page = wait::within("/livez is answered", page::of(nodes.proxy(), "/livez")).await;
        assert!(page.starts_with("HTTP/1.1 200"), "{round}: {page}");
    }
    assert!(threads_at_the_disk(process) >= 2, "the disk still hangs");
    drop(frozen);
    ready(&socket(&nodes, "edge-2")).await;
    drop(nodes);
    mounted.iter().for_each(|path| unmount(path));
}
