//! One proxy for a driver on two nodes.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::path::{Path, PathBuf};

use csi_proto::csi::v1 as csi;
use edge_csi_tests::csi::{controller, create_volume, identity, ready};
use edge_csi_tests::process::Process;
use edge_csi_tests::stand::{DRIVER, Over, Stand, unix};
use edge_csi_tests::{page, wait};
use tonic::{Code, Status};

const NODES: [&str; 2] = ["edge-1", "edge-2"];

/// Two nodes with a driver each, which know nothing of each other.
struct Site {
    // First, so that the processes are gone before their files.
    agents: Vec<Option<Process>>,
    _drivers: Vec<Process>,
    proxy: Option<Process>,
    stand: Stand,
}

impl Site {
    async fn start() -> Self {
        let mut stand = Stand::empty(Over::Uds);
        stand.start_hub().await;
        let mut site = Self { agents: Vec::new(), _drivers: Vec::new(), proxy: None, stand };
        for node in NODES {
            let (socket, state) = (unix(&site.driver_socket(node)), site.text(&format!("{node}-driver")));
            let arguments =
                ["--drivername", DRIVER, "--endpoint", &socket, "--nodeid", node, "--state-dir", &state];
            let driver = site.process(&format!("driver-{node}"), "hostpath-driver", &arguments);
            site._drivers.push(driver);
            let agent = site.agent(node);
            site.agents.push(Some(agent));
        }
        site.start_proxy().await;
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

    async fn start_proxy(&mut self) {
        let (socket, state) = (unix(&self.socket()), self.text("proxy-state"));
        let (hub, nodes) = (self.stand.hub_url(), NODES.join(","));
        let mut arguments =
            vec!["--drivername", DRIVER, "--endpoint", &socket, "--hub", hub, "--state-dir", &state];
        arguments.extend(["--route", "topology", "--node", &nodes, "--http", "127.0.0.1:0"]);
        self.proxy = Some(self.process("proxy", "edge-csi-driver", &arguments));
        ready(&self.socket()).await;
    }

    fn text(&self, name: &str) -> String {
        self.stand.path(name).to_string_lossy().into_owned()
    }

    fn socket(&self) -> PathBuf {
        self.stand.proxy_socket()
    }

    fn driver_socket(&self, node: &str) -> PathBuf {
        self.stand.path(&format!("{node}.sock"))
    }

    async fn create(&self, name: &str, node: &str) -> Result<csi::Volume, Status> {
        let request = on(create_volume(name), node);
        let response = controller(&self.socket()).create_volume(request).await?;
        Ok(response.into_inner().volume.unwrap())
    }

    /// Once all nodes can be reached.
    async fn created(&self, name: &str, node: &str) -> csi::Volume {
        wait::until(&format!("{name} is made on {node}"), async || self.create(name, node).await.ok()).await
    }

    async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        controller(&self.socket()).delete_volume(request).await.map(drop)
    }
}

/// As external-provisioner asks for a pod on this node, with WaitForFirstConsumer and `--strict-topology`.
fn on(mut request: csi::CreateVolumeRequest, node: &str) -> csi::CreateVolumeRequest {
    let place = csi::Topology::from_iter([(format!("topology.{DRIVER}/node"), node)]);
    let requirement = csi::TopologyRequirement { preferred: vec![place.clone()], requisite: vec![place] };
    request.accessibility_requirements = Some(requirement);
    request
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
    let mut site = Site::start().await;
    let plugin = identity(&site.socket())
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await
        .unwrap()
        .into_inner();
    use csi::plugin_capability::service::Type::VolumeAccessibilityConstraints;
    assert!(plugin.has_service(VolumeAccessibilityConstraints));
    let (first, second) = (site.created("pvc-1", "edge-1").await, site.created("pvc-2", "edge-2").await);
    let place = |volume: &csi::Volume| volume.accessible_topology[0].segments.values().next().cloned();
    assert_eq!((place(&first).as_deref(), place(&second).as_deref()), (Some("edge-1"), Some("edge-2")));
    for (node, volume) in NODES.iter().zip([&first, &second]) {
        assert_eq!(list(&site.driver_socket(node)).await.unwrap(), std::slice::from_ref(&volume.volume_id));
    }

    site.proxy.as_mut().unwrap().kill();
    site.start_proxy().await;
    // The pod was put elsewhere meanwhile; the volume is where it is.
    let again = site.created("pvc-2", "edge-1").await;
    assert_eq!(again.volume_id, second.volume_id);
    let mut both = [first.volume_id.clone(), second.volume_id.clone()];
    both.sort();
    assert_eq!(list(&site.socket()).await.unwrap(), both);
    let text = page::of(site.proxy.as_ref().unwrap(), "/").await;
    assert!(text.contains("2 nodes") && text.contains("4 rows"), "{text}");

    for volume in [&first, &second] {
        site.delete(&volume.volume_id).await.unwrap();
    }
    site.delete("never-heard-of").await.unwrap();
    for node in NODES {
        assert_eq!(list(&site.driver_socket(node)).await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn with_one_node_off_the_other_goes_on_and_nothing_is_said_of_what_is_not_known() {
    let mut site = Site::start().await;
    let volume = site.created("pvc-1", "edge-1").await;
    site.created("pvc-2", "edge-2").await;
    wait::until("both nodes have said what they have", async || {
        page::of(site.proxy.as_ref().unwrap(), "/").await.contains("2 listed").then_some(())
    })
    .await;
    site.agents[0] = None;
    let offline =
        wait::until("the hub has noticed", async || site.delete(&volume.volume_id).await.err()).await;
    assert_eq!(offline.code(), Code::Unavailable, "{offline}");
    assert_eq!(site.create("pvc-3", "edge-1").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(list(&site.socket()).await.unwrap_err().code(), Code::Unavailable);
    // It is known of all that the node has, and this is none of it.
    site.delete("never-heard-of").await.unwrap();
    site.created("pvc-4", "edge-2").await;
    site.agents[0] = Some(site.agent("edge-1"));
    site.created("pvc-3", "edge-1").await;
    site.delete(&volume.volume_id).await.unwrap();
    assert_eq!(list(&site.socket()).await.unwrap().len(), 3);
}
