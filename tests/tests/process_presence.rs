//! Nodes that nobody has listed: the hub tells the proxy which there are, and an operator which one is gone for good.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::Path;
use std::process::{Command, Output};

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::stand::{DRIVER, Over, Site, unix};
use edge_csi_tests::{binaries, wait};
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

/// Root may take every name over the unix socket, and is none but who it says it is.
#[tokio::test]
async fn no_node_and_no_proxy_declares_a_node_gone() {
    let site = Site::start(Over::Uds, &[]).await;
    for (name, offers) in [("edge-1", Some("csi")), ("csi-proxy", None)] {
        let address: Address = site.stand.hub_url().parse().unwrap();
        let mut builder = Peer::builder(PeerId::new(name).unwrap());
        builder = builder.dialer(address.dialer(&DialOptions::default()).unwrap());
        if let Some(service) = offers {
            builder = builder.service(ServiceName::new(service).unwrap(), Silent);
        }
        let peer = builder.start().unwrap();
        peer.connected().await.unwrap();
        let operator = ServiceName::new("operator").unwrap();
        let request = Request::new(peer.hub().unwrap(), operator, "edge-2");
        let refused = peer.call(request).await.unwrap().next().await.unwrap().unwrap_err();
        assert_eq!(refused.reason(), Reason::Forbidden, "{name}: {refused:?}");
    }
    let gone = node_gone(&site, &["edge-2", "--volumes-are-lost"]);
    assert!(gone.status.success(), "{}", said(&gone));
}
