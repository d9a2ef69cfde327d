//! The processes of one relay: driver, hub, agent and proxy, over a link of any kind, with optional link faults.

mod builder;
mod error;
mod nodes;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

pub use self::builder::{ClusterBuilder, LinkFault, Programs};
pub use self::error::ClusterError;
pub use self::nodes::MultiNodeCluster;
use crate::arguments::{Arguments, unix};
use crate::certificates::{ClusterCertificates, Files};
use crate::counting::{Counting, Served};
use crate::link::{HubLink, LinkKind};
use crate::process::Process;
use crate::{csi, port, wait};

/// The CSI name of the driver in a cluster.
pub const DRIVER: &str = "hostpath.csi.edge";

/// The node of the driver.
pub const NODE: &str = "edge-1";

/// The processes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "tests name them")]
pub enum Role {
    /// The CSI driver.
    Driver,
    /// edge-hub.
    Hub,
    /// The cable that injects link faults between the hub and its peers.
    Cable,
    /// edge-agent.
    Agent,
    /// edge-csi-driver.
    Proxy,
}

impl Role {
    /// The name of the process and of its log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Hub => "hub",
            Self::Cable => "cable",
            Self::Agent => "agent",
            Self::Proxy => "proxy",
        }
    }
}

/// The processes of a cluster; a test may take, kill or replace each of them.
pub struct TestCluster {
    /// The driver, if it runs.
    pub driver: Option<Process>,
    /// The agent, if it runs.
    pub agent: Option<Process>,
    /// The hub, if it runs.
    pub hub: Option<Process>,
    /// The proxy, if it runs.
    pub proxy: Option<Process>,
    cable: Option<Process>,
    link: HubLink,
    fault: Option<LinkFault>,
    driver_name: String,
    /// The programs of processes that are started from now on.
    pub programs: Programs,
    certificates: Arc<ClusterCertificates>,
    hub_options: Vec<String>,
    /// The `--http-endpoint` address of the newest process of each role.
    http: BTreeMap<Role, SocketAddr>,
    directory: PathBuf,
    logs: PathBuf,
    /// `None` if the caller owns the folders and searches the logs.
    // Last, so that the processes end before their files are removed.
    temporary: Option<TempDir>,
}

impl fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestCluster")
            .field("link", &self.link)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl TestCluster {
    /// Returns the settings of a cluster with links of this kind. [`build`](ClusterBuilder::build) starts no process.
    #[must_use]
    pub fn builder(kind: LinkKind) -> ClusterBuilder {
        ClusterBuilder::new(kind)
    }

    /// Returns a cluster of the binaries of this build in a temporary directory, in which no process runs.
    ///
    /// # Panics
    /// If the binaries cannot be built or the directory cannot be created.
    #[must_use]
    pub fn empty(kind: LinkKind) -> Self {
        Self::builder(kind).build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts all processes of a new cluster, and waits until Probe on the proxy's socket returns ready.
    ///
    /// # Panics
    /// If a process does not start.
    pub async fn start(kind: LinkKind) -> Self {
        let mut cluster = Self::empty(kind);
        cluster.start_driver(&[]).unwrap_or_else(|error| panic!("{error}"));
        cluster.start_relay().await;
        cluster
    }

    /// Starts the processes of a new cluster in front of this driver, and waits until Probe on the proxy's socket returns ready.
    ///
    /// # Panics
    /// If a process does not start, or the driver's socket cannot be listened on.
    pub async fn start_with(kind: LinkKind, driver: &Counting) -> (Self, Served) {
        let mut cluster = Self::empty(kind);
        let served = driver.serve(&cluster.driver_socket());
        cluster.start_relay().await;
        (cluster, served)
    }

    /// Starts hub, agent and proxy, and waits until the proxy is ready.
    async fn start_relay(&mut self) {
        let started = async {
            self.start_hub().await?;
            self.start_agent(&[])?;
            self.start_proxy(&[])
        };
        started.await.unwrap_or_else(|error| panic!("{error}"));
        csi::ready(&self.proxy_socket()).await;
    }

    /// A path in the cluster's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The cluster's directory: sockets, state and, unless the builder set another folder, logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The driver's own socket.
    #[must_use]
    pub fn driver_socket(&self) -> PathBuf {
        self.path(builder::DRIVER_SOCKET)
    }

    /// The proxy's socket, which sidecars call.
    #[must_use]
    pub fn proxy_socket(&self) -> PathBuf {
        self.path(builder::PROXY_SOCKET)
    }

    /// The URL at which agents and proxies dial the hub.
    #[must_use]
    pub fn hub_url(&self) -> &str {
        self.link.url()
    }

    /// Makes agents and proxies that start from now on dial this address of the loopback interface, which forwards to the hub.
    pub fn dial_through(&mut self, address: SocketAddr) {
        self.link = self.link.clone().through(address.port());
    }

    /// The hub's own address, unless it listens only on its socket.
    #[must_use]
    pub const fn hub_address(&self) -> SocketAddr {
        self.link.address()
    }

    /// Adds options to the hubs that start from now on.
    pub fn hub_options(&mut self, options: &[&str]) {
        self.hub_options = options.iter().map(ToString::to_string).collect();
    }

    /// The certificates of the cluster's processes.
    #[must_use]
    pub fn certificates(&self) -> &ClusterCertificates {
        &self.certificates
    }

    /// Issues a certificate of the cluster's authority.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Files {
        self.certificates.issue(names)
    }

    /// Starts hostpath-driver with these additional options.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_driver(&mut self, options: &[&str]) -> Result<(), ClusterError> {
        let process = self.hostpath_driver("driver", &self.driver_socket(), NODE, "driver-state", options)?;
        self.driver = Some(process);
        Ok(())
    }

    /// Starts another program as the driver.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_other_driver(
        &mut self,
        program: &Path,
        arguments: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<(), ClusterError> {
        self.driver = Some(self.process(Role::Driver.name(), program, arguments)?);
        Ok(())
    }

    fn hostpath_driver(
        &self,
        name: &str,
        socket: &Path,
        node: &str,
        state: &str,
        options: &[&str],
    ) -> Result<Process, ClusterError> {
        let arguments = Arguments::driver(&self.driver_name, socket, node, &self.path(state));
        self.process(name, &self.programs.driver, arguments.flags(options).flag("-vv"))
    }

    /// Starts the hub, and the cable if the cluster has link faults, and waits until the hub is ready.
    ///
    /// # Errors
    /// If a process cannot be started, or the hub ends or is not ready in time.
    pub async fn start_hub(&mut self) -> Result<(), ClusterError> {
        self.launch_hub()?;
        self.ready(Role::Hub).await?;
        if let (None, Some(fault)) = (&self.cable, &self.fault) {
            let ends = Arguments::new().flags(fault.options).pair(fault.forward, &fault.ends);
            self.cable = Some(self.process(Role::Cable.name(), &fault.program, ends)?);
        }
        Ok(())
    }

    /// Starts the hub without a wait.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn launch_hub(&mut self) -> Result<(), ClusterError> {
        let hub = self.link.hub(&self.certificates.hub).flags(&self.hub_options);
        self.hub = Some(self.monitored(Role::Hub, "hub", &self.programs.hub.clone(), hub)?);
        Ok(())
    }

    /// Starts the agent with the driver's socket.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_agent(&mut self, options: &[&str]) -> Result<(), ClusterError> {
        self.start_agent_with(self.driver_option().flags(options))
    }

    /// The agent's option for the cluster's driver.
    #[must_use]
    pub fn driver_option(&self) -> Arguments {
        Arguments::new().serving(&self.driver_name, &self.driver_socket())
    }

    /// Starts the agent with these options, and no driver but those that they name.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_agent_with(&mut self, options: Arguments) -> Result<(), ClusterError> {
        let agent = self.link.agent(NODE, &self.path("agent-state"), &self.certificates.agent);
        let program = self.programs.agent.clone();
        self.agent = Some(self.monitored(Role::Agent, "agent", &program, agent.flags(options))?);
        Ok(())
    }

    /// Starts the proxy.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_proxy(&mut self, options: &[&str]) -> Result<(), ClusterError> {
        let arguments = self.proxy_arguments(&self.proxy_socket(), NODE).flags(options);
        let program = self.programs.proxy.clone();
        self.proxy = Some(self.monitored(Role::Proxy, "proxy", &program, arguments)?);
        Ok(())
    }

    /// Starts an additional proxy on its own socket, for a node that need not exist.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn additional_proxy(
        &self,
        name: &str,
        socket: &Path,
        node: &str,
        options: &[&str],
    ) -> Result<Process, ClusterError> {
        let arguments = self.proxy_arguments(socket, node).flags(options).flag("-vv");
        self.process(name, &self.programs.proxy, arguments)
    }

    fn proxy_arguments(&self, socket: &Path, node: &str) -> Arguments {
        let proxy = self.link.proxy(&self.driver_name, &self.certificates.proxy);
        proxy.pair("--endpoint", unix(socket)).pair("--nodeid", node)
    }

    /// Waits until a process is ready: the driver accepts connections on its socket, the others answer `/readyz`.
    ///
    /// # Errors
    /// If the process does not run, ends, or is not ready within [`wait::SOON`].
    pub async fn ready(&mut self, role: Role) -> Result<(), ClusterError> {
        let (socket, http) = (self.driver_socket(), self.http.get(&role).copied());
        let process =
            self.process_mut(role).as_mut().ok_or_else(|| ClusterError::NotStarted { role: role.name() })?;
        match http {
            None => process.reached("its socket", async || wait::accepts(&socket)).await?,
            Some(http) => process.reached("/readyz", async || is_ready(http).await).await?,
        }
        Ok(())
    }

    /// Waits until the driver has answered the agent's first call of this method, and returns what was logged after that.
    ///
    /// # Panics
    /// If no agent runs, or the driver does not answer within [`wait::SOON`].
    pub async fn driver_answered(&self, method: &str) -> String {
        let agent = self.agent.as_ref().expect("the agent runs");
        wait::until(&format!("the driver answers {method}"), async || {
            let log = agent.log();
            let call = log.lines().find(|line| line.contains(method) && line.contains("dispatcher"))?;
            let id = call.split("call=").nth(1)?.split_whitespace().next()?;
            let end =
                |line: &&str| line.contains("dispatcher") && line.contains(id) && line.contains("answered");
            let line = log.lines().find(end)?;
            log.split_once(line).map(|(_, rest)| rest.to_owned())
        })
        .await
    }

    /// Kills a process with SIGKILL, if it runs.
    pub fn kill(&mut self, role: Role) {
        *self.process_mut(role) = None;
    }

    /// Sends SIGTERM to a process, if it runs.
    pub fn terminate(&mut self, role: Role) {
        self.process_mut(role).iter().for_each(Process::terminate);
    }

    /// Stops all processes with SIGTERM, in the reverse order of their start. A failure of one does not keep the others
    /// running.
    ///
    /// # Errors
    /// Returns the first failure of a process to end with code zero in time.
    pub fn stop(mut self) -> Result<(), ClusterError> {
        let roles = [Role::Proxy, Role::Agent, Role::Cable, Role::Hub, Role::Driver];
        let processes = roles.into_iter().filter_map(|role| self.process_mut(role).take());
        Ok(processes.map(Process::stop).fold(Ok(()), Result::and)?)
    }

    const fn process_mut(&mut self, role: Role) -> &mut Option<Process> {
        match role {
            Role::Driver => &mut self.driver,
            Role::Hub => &mut self.hub,
            Role::Cable => &mut self.cable,
            Role::Agent => &mut self.agent,
            Role::Proxy => &mut self.proxy,
        }
    }

    /// Starts a binary that has a status page, on a free port.
    fn monitored(
        &mut self,
        role: Role,
        name: &str,
        program: &Path,
        arguments: Arguments,
    ) -> Result<Process, ClusterError> {
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()));
        let arguments = arguments.pair("--http-endpoint", http.to_string()).flag("-vv");
        let process = self.process(name, program, arguments)?;
        self.http.insert(role, http);
        Ok(process)
    }

    fn process(
        &self,
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<Process, ClusterError> {
        // A restarted process appends to its log.
        let process = Process::respawn(&self.logs, name, Command::new(program).args(arguments))?;
        Ok(if self.temporary.is_some() { process.searched()? } else { process })
    }
}

async fn is_ready(http: SocketAddr) -> bool {
    tokio::task::spawn_blocking(move || wait::is_ready(http)).await.unwrap_or(false)
}
