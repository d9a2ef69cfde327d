//! One proxy with a socket for each node.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::csi::{channel, controller, create_volume, ready, within};
use edge_csi_tests::process::Process;
use edge_csi_tests::stand::{DRIVER, Over, Stand, unix};
use edge_csi_tests::{page, wait};
use tonic::Code;

struct Site {
    // First, so that the processes are gone before their files.
    agents: Vec<Option<Process>>,
    _drivers: Vec<Process>,
    proxy: Option<Process>,
    stand: Stand,
}

impl Site {
    async fn start(nodes: &[&str]) -> Self {
        let mut stand = Stand::empty(Over::Uds);
        stand.start_hub().await;
        let mut site = Self { agents: Vec::new(), _drivers: Vec::new(), proxy: None, stand };
        for node in nodes {
            let (socket, state) = (unix(&site.driver_socket(node)), site.text(&format!("{node}-driver")));
            let arguments =
                ["--drivername", DRIVER, "--endpoint", &socket, "--nodeid", node, "--state-dir", &state];
            let driver = site.process(&format!("driver-{node}"), "hostpath-driver", &arguments);
            site._drivers.push(driver);
            let agent = site.agent(node);
            site.agents.push(Some(agent));
        }
        site
    }

    fn process(&self, name: &str, binary: &str, arguments: &[&str]) -> Process {
        Process::start(self.stand.directory(), name, binary, arguments)
    }

    fn agent(&self, node: &str) -> Process {
        let driver = format!("{DRIVER}={}", unix(&self.driver_socket(node)));
        let state = self.text(&format!("{node}-agent"));
        let arguments =
            ["--nodeid", node, "--hub", self.stand.hub_url(), "--state-dir", &state, "--driver", &driver];
        self.process(&format!("agent-{node}"), "edge-agent", &arguments)
    }

    fn start_proxy(&mut self, more: &[&str]) {
        let (directory, state, hub) = (self.text("s"), self.text("proxy-state"), self.stand.hub_url());
        let mut arguments = vec!["--drivername", DRIVER, "--hub", hub, "--state-dir", &state];
        arguments.extend(["--route", "sockets", "--endpoint-dir", &directory, "--http", "127.0.0.1:0"]);
        arguments.extend(more);
        self.proxy = Some(self.process("proxy", "edge-csi-driver", &arguments));
    }

    fn text(&self, name: &str) -> String {
        self.stand.path(name).to_string_lossy().into_owned()
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.stand.path("s").join(node).join("csi.sock")
    }

    fn driver_socket(&self, node: &str) -> PathBuf {
        self.stand.path(&format!("{node}.sock"))
    }
}

async fn volumes(socket: &Path) -> Vec<String> {
    let response = controller(socket).list_volumes(csi::ListVolumesRequest::default()).await.unwrap();
    response.into_inner().entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
}

/// As external-provisioner asks with `--node-deployment` when it starts.
async fn node_info(socket: &Path) -> csi::NodeGetInfoResponse {
    let request = within(Duration::from_secs(10), csi::NodeGetInfoRequest {});
    NodeClient::new(channel(socket)).node_get_info(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn each_node_has_a_socket_whose_calls_go_to_it_and_which_stays_while_it_is_off() {
    let mut site = Site::start(&["edge-1", "edge-2"]).await;
    site.start_proxy(&["--node", "edge-1,edge-2"]);
    for node in ["edge-1", "edge-2"] {
        ready(&site.socket(node)).await;
        let mode = std::fs::metadata(site.socket(node)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let info = node_info(&site.socket(node)).await;
        let place = info.accessible_topology.unwrap();
        assert_eq!(place.segment(&format!("topology.{DRIVER}/node")), Some(node));
        let name = format!("pvc-{node}");
        let created = controller(&site.socket(node)).create_volume(create_volume(&name)).await.unwrap();
        let volume = created.into_inner().volume.unwrap();
        assert_eq!(volume.accessible_topology, [place]);
        assert_eq!(volumes(&site.socket(node)).await, [volume.volume_id]);
        assert_eq!(volumes(&site.driver_socket(node)).await.len(), 1);
    }
    let text = page::of(site.proxy.as_ref().unwrap(), "/").await;
    assert!(text.contains("edge-2/csi.sock"), "{text}");

    let before = node_info(&site.socket("edge-1")).await;
    site.agents[0] = None;
    site.proxy.as_mut().unwrap().kill();
    site.start_proxy(&["--node", "edge-1,edge-2"]);
    ready(&site.socket("edge-2")).await;
    assert_eq!(node_info(&site.socket("edge-1")).await, before);
    let refused = controller(&site.socket("edge-1")).create_volume(create_volume("pvc-3")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    site.agents[0] = Some(site.agent("edge-1"));
    wait::until("edge-1 is back", async || {
        controller(&site.socket("edge-1")).create_volume(create_volume("pvc-3")).await.ok()
    })
    .await;
}
