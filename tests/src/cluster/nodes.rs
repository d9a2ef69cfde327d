//! Several nodes at one hub, behind one proxy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use csi_proto::csi::v1;
use tonic::Status;

use super::{ClusterError, DRIVER, Role, TestCluster};
use crate::arguments::unix;
use crate::csi;
use crate::link::LinkKind;
use crate::process::Process;

/// A hub, a proxy, and several nodes, each with its own driver and agent. The cluster's `driver` and `agent` are not used.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "tests take processes out of the cluster")]
pub struct MultiNodeCluster {
    // First, so that the processes end before their files are removed.
    nodes: BTreeMap<String, Node>,
    /// The hub, the proxy, and the directory of all processes.
    pub cluster: TestCluster,
}

#[derive(Debug)]
struct Node {
    _driver: Process,
    agent: Option<Process>,
}

impl MultiNodeCluster {
    /// Starts a hub and these nodes, and waits until the hub is ready.
    ///
    /// # Panics
    /// If a process does not start.
    pub async fn start(kind: LinkKind, nodes: &[&str]) -> Self {
        Self::start_in(TestCluster::empty(kind), nodes).await
    }

    /// Starts the hub of this cluster and these nodes, and waits until the hub is ready.
    ///
    /// # Panics
    /// If a process does not start.
    pub async fn start_in(mut cluster: TestCluster, nodes: &[&str]) -> Self {
        cluster.start_hub().await.unwrap_or_else(|error| panic!("{error}"));
        let mut all = Self { nodes: BTreeMap::new(), cluster };
        nodes.iter().for_each(|node| all.add_node(node).unwrap_or_else(|error| panic!("{node}: {error}")));
        all
    }

    /// Starts a driver and an agent of an additional node.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn add_node(&mut self, node: &str) -> Result<(), ClusterError> {
        let (socket, state) = (self.driver_socket(node), format!("{node}-driver"));
        let driver = self.cluster.hostpath_driver(&format!("driver-{node}"), &socket, node, &state, &[])?;
        self.nodes.insert(node.to_owned(), Node { _driver: driver, agent: None });
        self.start_agent(node)
    }

    /// Starts or restarts the agent of a node.
    ///
    /// # Errors
    /// If the process cannot be started.
    ///
    /// # Panics
    /// If the node was not added.
    pub fn start_agent(&mut self, node: &str) -> Result<(), ClusterError> {
        let (socket, state) = (self.driver_socket(node), self.cluster.path(&format!("{node}-agent")));
        let arguments = self.cluster.link.agent(node, &state, &self.cluster.issue(&[node]));
        let arguments = arguments.serving(DRIVER, &socket).flag("-vv");
        let agent =
            self.cluster.process(&format!("agent-{node}"), &self.cluster.programs.agent, arguments)?;
        self.nodes.get_mut(node).expect("a node that was added").agent = Some(agent);
        Ok(())
    }

    /// Kills the agent of a node.
    ///
    /// # Panics
    /// If the node was not added.
    pub fn stop_agent(&mut self, node: &str) {
        self.nodes.get_mut(node).expect("a node that was added").agent = None;
    }

    /// Starts the proxy with the state of the previous one. The options have to set the endpoints and the routing.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_proxy(&mut self, options: &[&str]) -> Result<(), ClusterError> {
        let arguments = self.cluster.link.proxy(DRIVER, &self.cluster.certificates.proxy);
        let arguments = arguments.pair("--state-dir", self.proxy_state()).flags(options);
        let program = self.cluster.programs.proxy.clone();
        self.cluster.proxy = Some(self.cluster.monitored(Role::Proxy, "proxy", &program, arguments)?);
        Ok(())
    }

    /// The proxy.
    ///
    /// # Panics
    /// If the proxy was not started.
    #[must_use]
    pub fn proxy(&self) -> &Process {
        self.cluster.proxy.as_ref().expect("a proxy that was started")
    }

    /// The value of the proxy's `--state-dir`.
    #[must_use]
    pub fn proxy_state(&self) -> String {
        self.cluster.path("proxy-state").to_string_lossy().into_owned()
    }

    /// Creates a volume through the proxy as external-provisioner does for a pod on this node, with WaitForFirstConsumer and
    /// `--strict-topology`.
    ///
    /// # Errors
    /// Returns the status of the call if it is not OK.
    pub async fn create(&self, name: &str, node: &str) -> Result<v1::Volume, Status> {
        let place = v1::Topology::from_iter([(format!("topology.{DRIVER}/node"), node)]);
        let requirement = v1::TopologyRequirement { preferred: vec![place.clone()], requisite: vec![place] };
        let mut request = csi::create_volume(name);
        request.accessibility_requirements = Some(requirement);
        let made = csi::controller(&self.cluster.proxy_socket()).create_volume(request).await?;
        Ok(made.into_inner().volume.unwrap_or_default())
    }

    /// The URL of the proxy's socket, as a value of `--endpoint`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        unix(&self.cluster.proxy_socket())
    }

    /// The driver's own socket on a node.
    #[must_use]
    pub fn driver_socket(&self, node: &str) -> PathBuf {
        self.cluster.path(&format!("{node}.sock"))
    }
}
