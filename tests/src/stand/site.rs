//! Several nodes at one hub, behind one proxy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use csi_proto::csi::v1;
use tonic::Status;

use super::{DRIVER, Stand};
use crate::arguments::unix;
use crate::csi;
use crate::link::LinkKind;
use crate::process::Process;

/// A hub, nodes with a driver and an agent each, which know nothing of each other, and a proxy for them. The driver and the
/// agent of the stand itself are not used.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "tests take processes out of the stand")]
pub struct Site {
    // First, so that the processes are gone before their files.
    nodes: BTreeMap<String, Node>,
    /// The hub and the proxy, and everybody's files.
    pub stand: Stand,
}

#[derive(Debug)]
struct Node {
    _driver: Process,
    agent: Option<Process>,
}

impl Site {
    /// A hub that listens, and these nodes.
    pub async fn start(kind: LinkKind, nodes: &[&str]) -> Self {
        let mut stand = Stand::empty(kind);
        stand.start_hub().await;
        let mut site = Self { nodes: BTreeMap::new(), stand };
        nodes.iter().for_each(|node| site.add_node(node));
        site
    }

    /// Starts a driver and an agent of a further node.
    pub fn add_node(&mut self, node: &str) {
        let (socket, state) = (self.driver_socket(node), format!("{node}-driver"));
        let driver = self.stand.driver_at(&format!("driver-{node}"), &socket, node, &state);
        self.nodes.insert(node.to_owned(), Node { _driver: driver, agent: None });
        self.start_agent(node);
    }

    /// Starts the agent of a node again.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn start_agent(&mut self, node: &str) {
        let (socket, state) = (self.driver_socket(node), format!("{node}-agent"));
        let agent = self.stand.agent_at(&format!("agent-{node}"), &socket, node, &state, &[]);
        self.nodes.get_mut(node).expect("a node that was added").agent = Some(agent);
    }

    /// Ends the agent of a node, at once.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn stop_agent(&mut self, node: &str) {
        self.nodes.get_mut(node).expect("a node that was added").agent = None;
    }

    /// Starts the proxy, with the state that one before it has left.
    pub fn start_proxy(&mut self, more: &[&str]) {
        let proxy = self.stand.proxy_command().pair("--state-dir", self.proxy_state()).flags(more);
        self.stand.proxy = Some(self.stand.process("proxy", "edge-csi-driver", proxy));
    }

    /// The proxy.
    ///
    /// # Panics
    /// If it was not started.
    #[must_use]
    pub fn proxy(&self) -> &Process {
        self.stand.proxy.as_ref().expect("a proxy that was started")
    }

    /// Where the proxy keeps its state, as its option takes it.
    #[must_use]
    pub fn proxy_state(&self) -> String {
        self.stand.path("proxy-state").to_string_lossy().into_owned()
    }

    /// Asks the proxy for a volume, as external-provisioner does for a pod on this node, with WaitForFirstConsumer and
    /// `--strict-topology`.
    ///
    /// # Errors
    /// As the proxy says.
    pub async fn create(&self, name: &str, node: &str) -> Result<v1::Volume, Status> {
        let place = v1::Topology::from_iter([(format!("topology.{DRIVER}/node"), node)]);
        let requirement = v1::TopologyRequirement { preferred: vec![place.clone()], requisite: vec![place] };
        let mut request = csi::create_volume(name);
        request.accessibility_requirements = Some(requirement);
        let made = csi::controller(&self.stand.proxy_socket()).create_volume(request).await?;
        Ok(made.into_inner().volume.unwrap_or_default())
    }

    /// The socket of the proxy that serves one, as its option takes it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        unix(&self.stand.proxy_socket())
    }

    /// The driver's own socket on a node.
    #[must_use]
    pub fn driver_socket(&self, node: &str) -> PathBuf {
        self.stand.path(&format!("{node}.sock"))
    }
}
