//! Nodes that nobody has listed: the hub tells the proxy which there are, and an operator which one is lost.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;
use std::process::{Command, Output};

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use edge_csi_tests::arguments::unix;
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::stand::{DRIVER, NODE, Site, Stand};
use edge_csi_tests::{binaries, page, wait};
use edge_transport::link::{Address, DialOptions};
use edge_transport::{Peer, PeerId, Reason, ReplySender, Request, Service, ServiceName};
use tonic::Code;

/// Offers what it does not do.
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

/// Decommissions a node whose agent was stopped, once the hub has noticed that.
async fn decommissioned(site: &Site, node: &str) -> String {
    let state = site.proxy_state();
    let done = wait::until("the hub has noticed", async || {
        let done = ordered("decommission", node, &state);
        (!said(&done).contains("is connected")).then_some(done)
    });
    let done = done.await;
    assert!(done.status.success(), "{}", said(&done));
    said(&done)
}

/// The command ends with 1, and with one line that says this.
fn refused_with(output: &Output, text: &str) {
    let line = said(output);
    assert!(line.contains(text) && line.lines().count() == 1, "{line}");
    assert_eq!(output.status.code(), Some(1), "{line}");
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_proxy_without_a_list_finds_the_nodes_that_come_and_a_decommissioned_one_frees_its_names() {
    let mut site = Site::start(LinkKind::Ws, &["edge-1"]).await;
    let socket = site.stand.proxy_socket();
    let endpoint = site.endpoint();
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    ready(&socket).await;
    wait::until("pvc-1 is made", async || site.create("pvc-1", "edge-1").await.ok()).await;
    // It comes later, and nobody is told but by the hub.
    site.add_node("edge-2");
    let lost = wait::until("pvc-2 is made", async || site.create("pvc-2", "edge-2").await.ok()).await;

    let state = site.proxy_state();
    refused_with(&ordered("decommission", "edge-2", &state), "edge-2 is connected");
    refused_with(&ordered("decommission", "edge-22", &state), "edge-22 is not known");
    site.stop_agent("edge-2");
    let elsewhere = site.create("pvc-2", "edge-1").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable, "it may be there: {elsewhere}");
    let done = decommissioned(&site, "edge-2").await;
    assert!(done.contains("released") && !done.contains(": 0 "), "{done}");
    assert!(decommissioned(&site, "edge-2").await.contains("already"));
    let anew = site.create("pvc-2", "edge-1").await.unwrap();
    assert_ne!(anew.volume_id, lost.volume_id);
    let request = csi::DeleteVolumeRequest { volume_id: lost.volume_id, ..Default::default() };
    controller(&socket).delete_volume(request).await.unwrap();
}

/// Over a kill of the proxy and one of the hub, which keeps nothing.
#[tokio::test]
async fn a_decommissioned_node_that_returns_is_quarantined_until_it_is_recommissioned() {
    let mut site = Site::start(LinkKind::Uds, &["edge-1", "edge-2"]).await;
    let endpoint = site.endpoint();
    let route = ["--endpoint", &endpoint, "--route", "topology", "--http", "127.0.0.1:0"];
    site.start_proxy(&route);
    let kept = wait::until("pvc-2 is made", async || site.create("pvc-2", "edge-2").await.ok()).await;
    site.stop_agent("edge-2");
    decommissioned(&site, "edge-2").await;
    site.stand.proxy.as_mut().unwrap().kill();
    let state = site.proxy_state();
    refused_with(&ordered("recommission", "edge-2", &state), "no edge-csi-driver runs with this --state-dir");
    site.stand.hub.as_mut().unwrap().kill();
    // The address of its page is in it.
    std::fs::remove_file(site.stand.path("proxy.log")).unwrap();
    site.stand.start_hub().await;
    site.start_proxy(&route);
    site.start_agent("edge-2");
    site.proxy().logged("a decommissioned node is connected").await;
    ready(&site.stand.proxy_socket()).await;
    let refused = site.create("pvc-3", "edge-2").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let metrics = page::of(site.proxy(), "/metrics").await;
    for line in ["edge_csi_decommissioned_nodes 1", "edge_csi_decommissioned_nodes_connected 1"] {
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }
    assert!(page::of(site.proxy(), "/").await.contains("edge-2: connected, gets no calls"));

    let undone = ordered("recommission", "edge-2", &state);
    assert!(undone.status.success() && said(&undone).contains("is recommissioned"), "{}", said(&undone));
    let again = ordered("recommission", "edge-2", &state);
    assert!(again.status.success() && said(&again).contains("was not decommissioned"), "{}", said(&again));
    let found =
        wait::until("edge-2 is asked again", async || site.create("pvc-2", "edge-2").await.ok()).await;
    assert_eq!(found.volume_id, kept.volume_id);
}

#[tokio::test]
async fn a_proxy_with_a_fixed_route_keeps_nothing_of_nodes_and_decommissions_none() {
    let mut stand = Stand::empty(LinkKind::Uds);
    let state = stand.path("state").to_string_lossy().into_owned();
    stand.start_proxy(&["--state-dir", &state]);
    stand.proxy.as_ref().unwrap().logged("serving CSI").await;
    refused_with(&ordered("decommission", NODE, &state), "keeps nothing of nodes");
}

#[tokio::test]
async fn a_socket_appears_for_each_node_that_comes_and_is_there_after_a_restart_without_the_hub() {
    let mut site = Site::start(LinkKind::Uds, &[]).await;
    let directory = site.stand.path("s").to_string_lossy().into_owned();
    let route = ["--route", "sockets", "--endpoint-dir", &directory];
    site.start_proxy(&route);
    let socket = |node: &str| Path::new(&directory).join(node).join("csi.sock");
    for node in ["edge-1", "edge-2"] {
        site.add_node(node);
        ready(&socket(node)).await;
        controller(&socket(node)).create_volume(create_volume("pvc-1")).await.unwrap();
    }
    site.stand.proxy.as_mut().unwrap().kill();
    site.stand.hub = None;
    site.start_proxy(&route);
    for node in ["edge-1", "edge-2"] {
        wait::until("the socket answers", async || {
            let request = csi::ControllerGetCapabilitiesRequest {};
            controller(&socket(node)).controller_get_capabilities(request).await.ok()
        })
        .await;
    }
    site.stop_agent("edge-2");
    site.stand.start_hub().await;
    ready(&socket("edge-1")).await;
    decommissioned(&site, "edge-2").await;
    assert!(!socket("edge-2").exists() && socket("edge-1").exists());
    site.start_agent("edge-2");
    site.proxy().logged("a decommissioned node is connected").await;
    assert!(!socket("edge-2").exists());
    let undone = ordered("recommission", "edge-2", &site.proxy_state());
    assert!(undone.status.success(), "{}", said(&undone));
    ready(&socket("edge-2")).await;
}

/// csi-spec section 5: sidecars elect leaders, and two proxies of one driver are active at once only with a table each.
#[tokio::test]
async fn two_proxies_on_one_state_directory_are_refused() {
    let mut site = Site::start(LinkKind::Uds, &[]).await;
    let endpoint = site.endpoint();
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    let proxy = site.stand.proxy.take().unwrap();
    proxy.logged("serving CSI").await;
    let other = unix(&site.stand.path("other.sock"));
    let (state, hub) = (site.proxy_state(), site.stand.hub_url());
    let mut command = Command::new(binaries::path("edge-csi-driver"));
    command.args(["--drivername", DRIVER, "--hub", hub, "--state-dir", &state, "--endpoint", &other]);
    let second = command.args(["--route", "topology"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("in use by another process"), "{}", said(&second));
    drop(proxy);
}

/// A peer that takes this name over the unix socket, as root may.
async fn peer(site: &Site, name: &str, offers: Option<&str>) -> Peer {
    let address: Address = site.stand.hub_url().parse().unwrap();
    let mut builder = Peer::builder(PeerId::new(name).unwrap());
    builder = builder.dialer(address.dialer(&DialOptions::default()).unwrap());
    if let Some(service) = offers {
        builder = builder.service(ServiceName::new(service).unwrap(), Silent);
    }
    let peer = builder.start().unwrap();
    peer.connected().await.unwrap();
    peer
}

/// Why the hub does not answer a call of this service of its own.
async fn refused(peer: &Peer, service: &str, body: &'static [u8]) -> Reason {
    let request = Request::new(ServiceName::new(service).unwrap(), body);
    peer.call(peer.hub().unwrap(), request).await.unwrap().next().await.unwrap().unwrap_err().reason()
}

#[tokio::test]
async fn a_node_that_asks_who_is_there_is_refused() {
    let mut site = Site::start(LinkKind::Uds, &["edge-1"]).await;
    let endpoint = site.endpoint();
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    ready(&site.stand.proxy_socket()).await;
    let hostile = peer(&site, "edge-66", Some("csi")).await;
    // A question for the service "csi".
    assert_eq!(refused(&hostile, "presence", b"\x0a\x03csi").await, Reason::Forbidden);
}

/// Nobody waits for the next try of its own, which is 10 s to 30 s away by then: that is for the tests of csi-proxy, with their own
/// clock. Here the ways of the news are what they are.
#[tokio::test]
async fn a_fixed_route_is_told_that_its_node_is_there() {
    let mut stand = Stand::empty(LinkKind::Uds);
    stand.start_driver();
    stand.start_hub().await;
    stand.start_proxy(&[]);
    stand.proxy.as_ref().unwrap().logged("the driver cannot be reached").await;
    stand.start_agent(&[]);
    ready(&stand.proxy_socket()).await;
}
