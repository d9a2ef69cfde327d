//! Nodes without a configured list: the hub reports the connected nodes to the proxy, and an operator declares the lost
//! ones.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;
use std::process::{Command, Output};

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use edge_csi_tests::arguments::unix;
use edge_csi_tests::cluster::{DRIVER, MultiNodeCluster, NODE, TestCluster};
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::{binaries, page, wait};
use edge_transport::link::{Address, DialOptions};
use edge_transport::{Peer, PeerId, Reason, ReplySender, Request, Service, ServiceName};
use tonic::Code;

/// A service that never replies.
struct Silent;

#[async_trait]
impl Service for Silent {
    async fn call(&self, _: PeerId, _: Request, _: ReplySender) {}
}

/// Sends a command to the proxy with this state directory.
fn ordered(verb: &str, node: &str, state: &str) -> Output {
    let mut command = Command::new(binaries::path("edge-csi-driver"));
    command.args([verb, node, "--state-dir", state]).output().unwrap()
}

/// Decommissions a node after its agent was stopped and the hub has noticed it.
async fn decommissioned(nodes: &MultiNodeCluster, node: &str) -> String {
    let state = nodes.proxy_state();
    let done = wait::until("the hub has noticed", async || {
        let done = ordered("decommission", node, &state);
        (!said(&done).contains("is connected")).then_some(done)
    });
    let done = done.await;
    assert!(done.status.success(), "{}", said(&done));
    said(&done)
}

/// Asserts that the command ends with code 1 and with one line that contains this text.
fn refused_with(output: &Output, text: &str) {
    let line = said(output);
    assert!(line.contains(text) && line.lines().count() == 1, "{line}");
    assert_eq!(output.status.code(), Some(1), "{line}");
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn finds_new_nodes_and_frees_the_names_of_decommissioned_ones() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Ws, &["edge-1"]).await;
    let socket = nodes.cluster.proxy_socket();
    let endpoint = nodes.endpoint();
    nodes.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]).unwrap();
    ready(&socket).await;
    wait::until("pvc-1 is made", async || nodes.create("pvc-1", "edge-1").await.ok()).await;
    // The node connects later, and only the hub reports it.
    nodes.add_node("edge-2").unwrap();
    let lost = wait::until("pvc-2 is made", async || nodes.create("pvc-2", "edge-2").await.ok()).await;

    let state = nodes.proxy_state();
    refused_with(&ordered("decommission", "edge-2", &state), "edge-2 is connected");
    refused_with(&ordered("decommission", "edge-22", &state), "edge-22 is not known");
    nodes.stop_agent("edge-2");
    let elsewhere = nodes.create("pvc-2", "edge-1").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable, "it may be there: {elsewhere}");
    let done = decommissioned(&nodes, "edge-2").await;
    assert!(done.contains("released") && !done.contains(": 0 "), "{done}");
    assert!(decommissioned(&nodes, "edge-2").await.contains("already"));
    let anew = nodes.create("pvc-2", "edge-1").await.unwrap();
    assert_ne!(anew.volume_id, lost.volume_id);
    let request = csi::DeleteVolumeRequest { volume_id: lost.volume_id, ..Default::default() };
    controller(&socket).delete_volume(request).await.unwrap();
}

/// The quarantine survives a kill of the proxy and a kill of the hub, which keeps no state.
#[tokio::test]
async fn a_returning_decommissioned_node_is_quarantined() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &["edge-1", "edge-2"]).await;
    let endpoint = nodes.endpoint();
    let route = ["--endpoint", &endpoint, "--route", "topology"];
    nodes.start_proxy(&route).unwrap();
    let kept = wait::until("pvc-2 is made", async || nodes.create("pvc-2", "edge-2").await.ok()).await;
    nodes.stop_agent("edge-2");
    decommissioned(&nodes, "edge-2").await;
    nodes.cluster.proxy.as_mut().unwrap().kill();
    let state = nodes.proxy_state();
    refused_with(&ordered("recommission", "edge-2", &state), "no edge-csi-driver runs with this --state-dir");
    nodes.cluster.hub.as_mut().unwrap().kill();
    // The message contains the address of the status page.
    std::fs::remove_file(nodes.cluster.path("proxy.log")).unwrap();
    nodes.cluster.start_hub().await.unwrap();
    nodes.start_proxy(&route).unwrap();
    nodes.start_agent("edge-2").unwrap();
    nodes.proxy().logged("a decommissioned node is connected").await;
    ready(&nodes.cluster.proxy_socket()).await;
    let refused = nodes.create("pvc-3", "edge-2").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let metrics = page::of(nodes.proxy(), "/metrics").await;
    for line in ["edge_csi_decommissioned_nodes 1", "edge_csi_decommissioned_nodes_connected 1"] {
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }
    assert!(page::of(nodes.proxy(), "/").await.contains("edge-2: connected, gets no calls"));

    let undone = ordered("recommission", "edge-2", &state);
    assert!(undone.status.success() && said(&undone).contains("is recommissioned"), "{}", said(&undone));
    let again = ordered("recommission", "edge-2", &state);
    assert!(again.status.success() && said(&again).contains("was not decommissioned"), "{}", said(&again));
    let found =
        wait::until("edge-2 is asked again", async || nodes.create("pvc-2", "edge-2").await.ok()).await;
    assert_eq!(found.volume_id, kept.volume_id);
}

#[tokio::test]
async fn a_proxy_with_a_fixed_route_decommissions_no_node() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    let state = cluster.path("state").to_string_lossy().into_owned();
    cluster.start_proxy(&["--state-dir", &state]).unwrap();
    cluster.proxy.as_ref().unwrap().logged("serving CSI").await;
    refused_with(&ordered("decommission", NODE, &state), "stores no placements");
}

#[tokio::test]
async fn each_new_node_gets_a_socket_that_survives_a_restart() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &[]).await;
    let directory = nodes.cluster.path("s").to_string_lossy().into_owned();
    let route = ["--route", "sockets", "--endpoint-dir", &directory];
    nodes.start_proxy(&route).unwrap();
    let socket = |node: &str| Path::new(&directory).join(node).join("csi.sock");
    for node in ["edge-1", "edge-2"] {
        nodes.add_node(node).unwrap();
        ready(&socket(node)).await;
        controller(&socket(node)).create_volume(create_volume("pvc-1")).await.unwrap();
    }
    nodes.cluster.proxy.as_mut().unwrap().kill();
    nodes.cluster.hub = None;
    nodes.start_proxy(&route).unwrap();
    for node in ["edge-1", "edge-2"] {
        wait::until("the socket answers", async || {
            let request = csi::ControllerGetCapabilitiesRequest {};
            controller(&socket(node)).controller_get_capabilities(request).await.ok()
        })
        .await;
    }
    nodes.stop_agent("edge-2");
    nodes.cluster.start_hub().await.unwrap();
    ready(&socket("edge-1")).await;
    decommissioned(&nodes, "edge-2").await;
    assert!(!socket("edge-2").exists() && socket("edge-1").exists());
    nodes.start_agent("edge-2").unwrap();
    nodes.proxy().logged("a decommissioned node is connected").await;
    assert!(!socket("edge-2").exists());
    let undone = ordered("recommission", "edge-2", &nodes.proxy_state());
    assert!(undone.status.success(), "{}", said(&undone));
    ready(&socket("edge-2")).await;
}

/// csi-spec section 5: sidecars elect leaders, and two proxies of one driver are active at once only with a table each.
#[tokio::test]
async fn two_proxies_on_one_state_directory_are_refused() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &[]).await;
    let endpoint = nodes.endpoint();
    nodes.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]).unwrap();
    let proxy = nodes.cluster.proxy.take().unwrap();
    proxy.logged("serving CSI").await;
    let other = unix(&nodes.cluster.path("other.sock"));
    let (state, hub) = (nodes.proxy_state(), nodes.cluster.hub_url());
    let mut command = Command::new(binaries::path("edge-csi-driver"));
    command.args(["--drivername", DRIVER, "--hub", hub, "--state-dir", &state, "--endpoint", &other]);
    let second = command.args(["--route", "topology"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("in use by another process"), "{}", said(&second));
    drop(proxy);
}

/// A peer that takes this name over the unix socket, as root may.
async fn peer(nodes: &MultiNodeCluster, name: &str, offers: Option<&str>) -> Peer {
    let address: Address = nodes.cluster.hub_url().parse().unwrap();
    let mut builder = Peer::builder(PeerId::new(name).unwrap());
    builder = builder.dialer(address.dialer(&DialOptions::default()).unwrap());
    if let Some(service) = offers {
        builder = builder.service(ServiceName::new(service).unwrap(), Silent);
    }
    let peer = builder.start().unwrap();
    peer.connected().await.unwrap();
    peer
}

/// Returns the reason for which the hub refuses a call of this service.
async fn refused(peer: &Peer, service: &str, body: &'static [u8]) -> Reason {
    let request = Request::new(ServiceName::new(service).unwrap(), body);
    peer.call(peer.hub().unwrap(), request).await.unwrap().next().await.unwrap().unwrap_err().reason()
}

#[tokio::test]
async fn a_node_may_not_query_presence() {
    let mut nodes = MultiNodeCluster::start(LinkKind::Uds, &["edge-1"]).await;
    let endpoint = nodes.endpoint();
    nodes.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]).unwrap();
    ready(&nodes.cluster.proxy_socket()).await;
    let hostile = peer(&nodes, "edge-66", Some("csi")).await;
    // A request to the service "csi".
    assert_eq!(refused(&hostile, "presence", b"\x0a\x03csi").await, Reason::Forbidden);
}

/// The hub's report starts an attempt in real time. Without the report the proxy's next attempt would be 10 s to 30 s
/// later, which the tests of csi-proxy check with a simulated clock.
#[tokio::test]
async fn a_fixed_route_is_notified_when_its_node_connects() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_proxy(&[]).unwrap();
    cluster.proxy.as_ref().unwrap().logged("driver unreachable, Probe").await;
    cluster.start_agent(&[]).unwrap();
    ready(&cluster.proxy_socket()).await;
}
