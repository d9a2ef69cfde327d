//! Nodes that nobody has listed: the hub tells the proxy which there are, and an operator which one is gone for good.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, ready};
use edge_csi_tests::process::Process;
use edge_csi_tests::stand::{DRIVER, Over, Stand, unix};
use edge_csi_tests::{binaries, wait};
use tonic::{Code, Status};

struct Site {
    // First, so that the processes are gone before their files.
    agents: Vec<Option<Process>>,
    _drivers: Vec<Process>,
    proxy: Option<Process>,
    stand: Stand,
}

impl Site {
    async fn start(over: Over) -> Self {
        let mut stand = Stand::empty(over);
        stand.start_hub().await;
        Self { agents: Vec::new(), _drivers: Vec::new(), proxy: None, stand }
    }

    fn process(&self, name: &str, binary: &str, arguments: &[&str]) -> Process {
        Process::start(self.stand.directory(), name, binary, arguments)
    }

    fn add_node(&mut self, node: &str) {
        let (socket, state) = (unix(&self.driver_socket(node)), self.text(&format!("{node}-driver")));
        let arguments =
            ["--drivername", DRIVER, "--endpoint", &socket, "--nodeid", node, "--state-dir", &state];
        let driver = self.process(&format!("driver-{node}"), "hostpath-driver", &arguments);
        self._drivers.push(driver);
        let driver = format!("{DRIVER}={socket}");
        let (state, hub) = (self.text(&format!("{node}-agent")), self.stand.hub_url());
        let mut arguments = vec!["--nodeid", node, "--hub", hub, "--state-dir", &state, "--driver", &driver];
        arguments.extend(hub.starts_with("ws").then_some("--insecure"));
        let agent = self.process(&format!("agent-{node}"), "edge-agent", &arguments);
        self.agents.push(Some(agent));
    }

    fn start_proxy(&mut self, route: &[&str]) {
        let (state, hub) = (self.text("proxy-state"), self.stand.hub_url());
        let mut arguments = vec!["--drivername", DRIVER, "--hub", hub, "--state-dir", &state];
        arguments.extend(route);
        arguments.extend(hub.starts_with("ws").then_some("--insecure"));
        self.proxy = Some(self.process("proxy", "edge-csi-driver", &arguments));
    }

    fn text(&self, name: &str) -> String {
        self.stand.path(name).to_string_lossy().into_owned()
    }

    fn driver_socket(&self, node: &str) -> PathBuf {
        self.stand.path(&format!("{node}.sock"))
    }

    fn node_gone(&self, arguments: &[&str]) -> Output {
        let uds = unix(&self.stand.path("hub.sock"));
        let mut command = Command::new(binaries::path("edge-hub"));
        command.arg("node-gone").args(arguments).args(["--uds", &uds]).output().unwrap()
    }
}

async fn create(socket: &Path, name: &str, node: &str) -> Result<csi::Volume, Status> {
    let place = csi::Topology::from_iter([(format!("topology.{DRIVER}/node"), node)]);
    let requirement = csi::TopologyRequirement { preferred: vec![place.clone()], requisite: vec![place] };
    let request =
        csi::CreateVolumeRequest { accessibility_requirements: Some(requirement), ..create_volume(name) };
    Ok(controller(socket).create_volume(request).await?.into_inner().volume.unwrap())
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_proxy_without_a_list_finds_the_nodes_that_come_and_frees_what_one_had_that_is_gone_for_good() {
    let mut site = Site::start(Over::Ws).await;
    let socket = site.stand.proxy_socket();
    let endpoint = unix(&socket);
    site.add_node("edge-1");
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    ready(&socket).await;
    wait::until("pvc-1 is made", async || create(&socket, "pvc-1", "edge-1").await.ok()).await;
    // It comes later, and nobody is told but by the hub.
    site.add_node("edge-2");
    let lost = wait::until("pvc-2 is made", async || create(&socket, "pvc-2", "edge-2").await.ok()).await;

    let unsaid = site.node_gone(&["edge-2"]);
    assert_eq!(unsaid.status.code(), Some(2), "{}", said(&unsaid));
    let connected = site.node_gone(&["edge-2", "--volumes-are-lost"]);
    assert!(said(&connected).contains("edge-2 is connected"), "{}", said(&connected));
    assert_eq!(connected.status.code(), Some(1));

    site.agents[1] = None;
    let elsewhere = create(&socket, "pvc-2", "edge-1").await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unavailable, "it may be there: {elsewhere}");
    let gone = wait::until("the hub has noticed", async || {
        let gone = site.node_gone(&["edge-2", "--volumes-are-lost"]);
        gone.status.success().then_some(gone)
    })
    .await;
    assert!(said(&gone).contains("2 rows released"), "{}", said(&gone));
    let anew = create(&socket, "pvc-2", "edge-1").await.unwrap();
    assert_ne!(anew.volume_id, lost.volume_id);
    let request = csi::DeleteVolumeRequest { volume_id: lost.volume_id, ..Default::default() };
    controller(&socket).delete_volume(request).await.unwrap();
}

#[tokio::test]
async fn a_socket_appears_for_each_node_that_comes_and_is_there_after_a_restart_without_the_hub() {
    let mut site = Site::start(Over::Uds).await;
    let directory = site.text("s");
    let route = ["--route", "sockets", "--endpoint-dir", &directory];
    site.start_proxy(&route);
    let socket = |node: &str| Path::new(&directory).join(node).join("csi.sock");
    for node in ["edge-1", "edge-2"] {
        site.add_node(node);
        ready(&socket(node)).await;
        controller(&socket(node)).create_volume(create_volume("pvc-1")).await.unwrap();
    }
    site.proxy.as_mut().unwrap().kill();
    site.stand.hub = None;
    site.start_proxy(&route);
    for node in ["edge-1", "edge-2"] {
        wait::until("the socket answers", async || {
            let request = csi::ControllerGetCapabilitiesRequest {};
            controller(&socket(node)).controller_get_capabilities(request).await.ok()
        })
        .await;
    }
    site.agents[1] = None;
    site.stand.start_hub().await;
    ready(&socket("edge-1")).await;
    let gone = wait::until("the proxy is told", async || {
        let gone = site.node_gone(&["edge-2", "--volumes-are-lost"]);
        (gone.status.success() && said(&gone).contains("removed")).then_some(gone)
    })
    .await;
    assert!(said(&gone).contains("told 1 proxies"), "{}", said(&gone));
    assert!(!socket("edge-2").exists() && socket("edge-1").exists());
}

/// csi-spec section 5: sidecars elect leaders, and two proxies of one driver are active at once only with a table each.
#[tokio::test]
async fn two_proxies_on_one_state_directory_are_refused() {
    let mut site = Site::start(Over::Uds).await;
    let endpoint = unix(&site.stand.proxy_socket());
    site.start_proxy(&["--endpoint", &endpoint, "--route", "topology"]);
    let proxy = site.proxy.take().unwrap();
    proxy.logged("serving CSI").await;
    let other = unix(&site.stand.path("other.sock"));
    let (state, hub) = (site.text("proxy-state"), site.stand.hub_url());
    let mut command = Command::new(binaries::path("edge-csi-driver"));
    command.args(["--drivername", DRIVER, "--hub", hub, "--state-dir", &state, "--endpoint", &other]);
    let second = command.args(["--route", "topology"]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("in use by another process"), "{}", said(&second));
    drop(proxy);
}
