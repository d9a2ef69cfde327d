//! Nodes that nobody has listed: the hub tells the proxy which there are, and an operator which one is gone for good.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;
use std::process::{Command, Output};

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::stand::{DRIVER, NODE, Over, Site, Stand, unix};
use edge_csi_tests::{binaries, page, wait};
use edge_transport::link::{Address, DialOptions};
use edge_transport::{IncomingRequest, Peer, PeerId, Reason, ReplySender, Request, Service, ServiceName};
use tonic::Code;

/// Offers what it does not do.
struct Silent;

#[async_trait]
impl Service for Silent {
    async fn call(&self, _: IncomingRequest, _: ReplySender) {}
}

fn node_gone(site: &Site, arguments: &[&str]) -> Output {
    let uds = unix(&site.stand.path("hub.sock"));
    let mut command = Command::new(binaries::path("edge-hub"));
    command.arg("node-gone").args(arguments).args(["--uds", &uds]).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_proxy_without_a_list_finds_the_nodes_that_come_and_frees_what_one_had_that_is_gone_for_good() {
    let mut site = Site::start(Over::Ws, &["edge-1"]).await;
    let socket = site.stand.proxy_socket();
    let endpoint = site.endpoint();
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    ready(&socket).await;
    wait::until("pvc-1 is made", async || site.create("pvc-1", "edge-1").await.ok()).await;
    // It comes later, and nobody is told but by the hub.
    site.add_node("edge-2");
    let lost = wait::until("pvc-2 is made", async || site.create("pvc-2", "edge-2").await.ok()).await;

    let unsaid = node_gone(&site, &["edge-2"]);
    assert_eq!(unsaid.status.code(), Some(2), "{}", said(&unsaid));
    let connected = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
    assert!(said(&connected).contains("edge-2 is connected"), "{}", said(&connected));
    assert_eq!(connected.status.code(), Some(1));

    site.stop_agent("edge-2");
    let elsewhere = site.create("pvc-2", "edge-1").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable, "it may be there: {elsewhere}");
    let gone = wait::until("the hub has noticed", async || {
        let gone = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
        gone.status.success().then_some(gone)
    })
    .await;
    assert!(said(&gone).contains("2 rows released"), "{}", said(&gone));
    let anew = site.create("pvc-2", "edge-1").await.unwrap();
    assert_ne!(anew.volume_id, lost.volume_id);
    let request = csi::DeleteVolumeRequest { volume_id: lost.volume_id, ..Default::default() };
    controller(&socket).delete_volume(request).await.unwrap();
}

#[tokio::test]
async fn a_socket_appears_for_each_node_that_comes_and_is_there_after_a_restart_without_the_hub() {
    let mut site = Site::start(Over::Uds, &[]).await;
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
    let gone = wait::until("the proxy is told", async || {
        let gone = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
        (gone.status.success() && said(&gone).contains("removed")).then_some(gone)
    })
    .await;
    assert!(said(&gone).contains("told 1 proxies"), "{}", said(&gone));
    assert!(!socket("edge-2").exists() && socket("edge-1").exists());
}

/// csi-spec section 5: sidecars elect leaders, and two proxies of one driver are active at once only with a table each.
#[tokio::test]
async fn two_proxies_on_one_state_directory_are_refused() {
    let mut site = Site::start(Over::Uds, &[]).await;
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
    let request = Request::new(peer.hub().unwrap(), ServiceName::new(service).unwrap(), body);
    peer.call(request).await.unwrap().next().await.unwrap().unwrap_err().reason()
}

/// Root may take every name over the unix socket, and is none but who it says it is.
#[tokio::test]
async fn no_node_and_no_proxy_declares_a_node_gone() {
    let site = Site::start(Over::Uds, &[]).await;
    for (name, offers) in [("edge-1", Some("csi")), ("csi-proxy", None)] {
        let peer = peer(&site, name, offers).await;
        for body in [&b"edge-2"[..], b"undo edge-2"] {
            assert_eq!(refused(&peer, "operator", body).await, Reason::Forbidden, "{name}");
        }
    }
    let nobody = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
    assert_eq!(nobody.status.code(), Some(1), "nobody has heard of it: {}", said(&nobody));
    assert!(
        said(&nobody).contains("nobody was told") && said(&nobody).contains("--state-dir"),
        "{}",
        said(&nobody)
    );
}

#[tokio::test]
async fn a_node_that_asks_who_is_there_is_refused_and_nobody_waits_for_what_it_says_of_one_that_is_gone() {
    let mut site = Site::start(Over::Uds, &["edge-1"]).await;
    let endpoint = site.endpoint();
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    ready(&site.stand.proxy_socket()).await;
    let hostile = peer(&site, "edge-66", Some("csi")).await;
    // A question for the service "csi".
    assert_eq!(refused(&hostile, "presence", b"\x0a\x03csi").await, Reason::Forbidden);
    let gone = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
    assert!(gone.status.success(), "{}", said(&gone));
    let text = said(&gone);
    assert!(text.contains("told 1 proxies") && text.contains("it has no --state-dir"), "{text}");
}

#[tokio::test]
async fn a_node_is_gone_for_a_proxy_that_was_away_though_the_hub_was_killed_since_and_until_the_node_comes() {
    let mut site = Site::start(Over::Uds, &["edge-1", "edge-2"]).await;
    let state = site.stand.path("hub-state").to_string_lossy().into_owned();
    site.stand.hub_options(&["--state-dir", &state, "--http", "127.0.0.1:0"]);
    site.stand.hub = None;
    site.stand.start_hub().await;
    let endpoint = site.endpoint();
    let route = ["--endpoint", &endpoint, "--route", "topology"];
    site.start_proxy(&route);
    let lost = wait::until("pvc-2 is made", async || site.create("pvc-2", "edge-2").await.ok()).await;
    site.stand.proxy.as_mut().unwrap().kill();
    site.stop_agent("edge-2");
    let gone = wait::until("the hub has noticed", async || {
        let gone = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
        (!said(&gone).contains("is connected")).then_some(gone)
    })
    .await;
    assert!(gone.status.success(), "{}", said(&gone));
    assert!(
        said(&gone).contains("told 0 proxies") && said(&gone).contains("also after a restart"),
        "{}",
        said(&gone)
    );

    site.stand.hub.as_mut().unwrap().kill();
    // The address of its page is in it.
    std::fs::remove_file(site.stand.path("hub.log")).unwrap();
    site.stand.start_hub().await;
    let shown = page::of(site.stand.hub.as_ref().unwrap(), "/").await;
    assert!(shown.contains("gone for good") && shown.contains("edge-2"), "{shown}");
    site.start_proxy(&route);
    let anew = wait::until("pvc-2 is free", async || site.create("pvc-2", "edge-1").await.ok()).await;
    assert_ne!(anew.volume_id, lost.volume_id);

    // It is back, which is said; and no later life of the hub says that it is gone.
    site.start_agent("edge-2");
    site.stand.hub.as_ref().unwrap().logged("a peer is back that was declared gone for good").await;
    let metrics = page::of(site.stand.hub.as_ref().unwrap(), "/metrics").await;
    for line in ["edge_transport_hub_gone 0", "edge_transport_hub_gone_returned_total 1"] {
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
    }
    wait::until("pvc-3 is made", async || site.create("pvc-3", "edge-2").await.ok()).await;
    site.stand.hub.as_mut().unwrap().kill();
    site.stand.start_hub().await;
    let again =
        wait::until("edge-2 is asked again", async || site.create("pvc-3", "edge-2").await.ok()).await;
    assert!(!again.volume_id.is_empty());
    let undone = node_gone(&site, &["edge-2", "--undo"]);
    assert!(undone.status.success() && said(&undone).contains("was not declared"), "{}", said(&undone));
}

#[tokio::test]
async fn what_was_said_of_a_node_is_taken_back_and_no_proxy_that_comes_later_hears_of_it() {
    let mut site = Site::start(Over::Uds, &["edge-1", "edge-2"]).await;
    let state = site.stand.path("hub-state").to_string_lossy().into_owned();
    site.stand.hub_options(&["--state-dir", &state]);
    site.stand.hub = None;
    site.stand.start_hub().await;
    let endpoint = site.endpoint();
    let route = ["--endpoint", &endpoint, "--route", "topology"];
    site.start_proxy(&route);
    let kept = wait::until("pvc-2 is made", async || site.create("pvc-2", "edge-2").await.ok()).await;
    site.stand.proxy.as_mut().unwrap().kill();
    site.stop_agent("edge-2");
    wait::until("the hub has noticed", async || {
        node_gone(&site, &["edge-2", "--volumes-are-lost"]).status.success().then_some(())
    })
    .await;
    let both = node_gone(&site, &["edge-2", "--volumes-are-lost", "--undo"]);
    assert_eq!(both.status.code(), Some(2), "{}", said(&both));
    let undone = node_gone(&site, &["edge-2", "--undo"]);
    assert!(
        undone.status.success() && said(&undone).contains("not gone for good any more"),
        "{}",
        said(&undone)
    );
    site.start_proxy(&route);
    ready(&site.stand.proxy_socket()).await;
    let elsewhere = site.create("pvc-2", "edge-1").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable, "it is on edge-2: {elsewhere}");
    site.start_agent("edge-2");
    let found = wait::until("edge-2 is back", async || site.create("pvc-2", "edge-2").await.ok()).await;
    assert_eq!(found.volume_id, kept.volume_id);
}

/// Nobody waits for the next try of its own, which is 10 s to 30 s away by then: that is for the tests of csi-proxy, with their own
/// clock. Here the ways of the news are what they are.
#[tokio::test]
async fn a_fixed_route_is_told_that_its_node_is_there_and_is_gone_and_nothing_of_another() {
    let mut stand = Stand::empty(Over::Uds);
    stand.start_driver();
    stand.start_hub().await;
    stand.start_proxy(&[]);
    stand.proxy.as_ref().unwrap().logged("the driver cannot be reached").await;
    stand.start_agent(&[]);
    ready(&stand.proxy_socket()).await;
    let uds = unix(&stand.path("hub.sock"));
    let mut command = Command::new(binaries::path("edge-hub"));
    let gone = command.args(["node-gone", "edge-2", "--volumes-are-lost", "--uds", &uds]).output().unwrap();
    assert!(said(&gone).contains("told 0 proxies"), "it did not ask for that node: {}", said(&gone));
    stand.agent = None;
    wait::until("its own node is away, of which it keeps nothing", async || {
        let mut command = Command::new(binaries::path("edge-hub"));
        let gone = command.args(["node-gone", NODE, "--volumes-are-lost", "--uds", &uds]).output().unwrap();
        (gone.status.success() && said(&gone).contains("nothing is kept of nodes here")).then_some(())
    })
    .await;
}
