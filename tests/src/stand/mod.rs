//! The whole way as processes: driver, agent, hub and proxy, over the link of choice.

mod site;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub use self::site::Site;
use crate::arguments::{Arguments, unix};
use crate::certificates::{Authority, Files};
use crate::link::{HubLink, LinkKind};
use crate::process::Process;
use crate::{csi, wait};

/// The CSI name of the driver in a stand.
pub const DRIVER: &str = "hostpath.csi.edge";

/// The node that the driver is on.
pub const NODE: &str = "edge-1";

/// The processes; each may be taken out, killed or replaced by a test.
pub struct Stand {
    /// The driver, if it runs.
    pub driver: Option<Process>,
    /// The agent, if it runs.
    pub agent: Option<Process>,
    /// The hub, if it runs.
    pub hub: Option<Process>,
    /// The proxy, if it runs.
    pub proxy: Option<Process>,
    link: HubLink,
    authority: Authority,
    hub_options: Vec<String>,
    // Last, so that the processes are gone before their files.
    directory: TempDir,
}

impl fmt::Debug for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stand")
            .field("link", &self.link)
            .field("directory", &self.directory.path())
            .finish_non_exhaustive()
    }
}

impl Stand {
    /// A stand in which nothing runs.
    ///
    /// # Panics
    /// If there is no room for temporary files.
    #[must_use]
    pub fn empty(kind: LinkKind) -> Self {
        // Unix socket paths are short: the system's own directory, not one below the target directory.
        let directory =
            tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp").expect("a temporary directory");
        let authority = Authority::new(directory.path(), "authority");
        let link = HubLink::new(kind, "127.0.0.1", directory.path());
        Self {
            driver: None,
            agent: None,
            hub: None,
            proxy: None,
            link,
            authority,
            hub_options: Vec::new(),
            directory,
        }
    }

    /// Everything runs and the proxy says that it is ready.
    pub async fn start(kind: LinkKind) -> Self {
        let mut stand = Self::empty(kind);
        stand.start_driver();
        stand.start_hub().await;
        stand.start_agent(&[]);
        stand.start_proxy(&[]);
        csi::ready(&stand.proxy_socket()).await;
        stand
    }

    /// A path in the stand's own directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The stand's own directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The driver's own socket.
    #[must_use]
    pub fn driver_socket(&self) -> PathBuf {
        self.path("driver.sock")
    }

    /// The socket that the sidecars would use.
    #[must_use]
    pub fn proxy_socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    /// Where agents and proxies that are started from now on dial the hub.
    #[must_use]
    pub fn hub_url(&self) -> &str {
        self.link.url()
    }

    /// Lets agents and proxies that are started from now on dial another address of the loopback interface, at which something
    /// forwards to the hub.
    pub fn detour(&mut self, address: SocketAddr) {
        self.link = self.link.clone().through(address.port());
    }

    /// Where the hub itself listens, unless it has only its socket.
    #[must_use]
    pub const fn hub_address(&self) -> SocketAddr {
        self.link.address()
    }

    /// Gives hubs that are started from now on these options too.
    pub fn hub_options(&mut self, options: &[&str]) {
        self.hub_options = options.iter().map(ToString::to_string).collect();
    }

    /// A certificate of the stand's authority.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Files {
        self.authority.issue(names)
    }

    /// Starts the hostpath driver.
    pub fn start_driver(&mut self) {
        self.driver = Some(self.driver_at("driver", &self.driver_socket(), NODE, "driver-state"));
    }

    fn driver_at(&self, name: &str, socket: &Path, node: &str, state: &str) -> Process {
        self.process(name, "hostpath-driver", Arguments::driver(DRIVER, socket, node, &self.path(state)))
    }

    /// Starts the hub and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start_hub(&mut self) {
        let marker = format!("listening on {}://", self.link.kind().scheme());
        let times = |log: &str| log.matches(&marker).count();
        // A hub that is started again appends to the same log.
        let before = times(&std::fs::read_to_string(self.path("hub.log")).unwrap_or_default());
        let arguments = self.link.hub(&self.issue(&["127.0.0.1", "hub"])).flags(&self.hub_options);
        let hub = self.process("hub", "edge-hub", arguments);
        wait::until("the hub listens", async || (times(&hub.log()) > before).then_some(())).await;
        self.hub = Some(hub);
    }

    /// Starts the agent with the driver's socket registered.
    pub fn start_agent(&mut self, more: &[&str]) {
        self.agent = Some(self.agent_at("agent", &self.driver_socket(), NODE, "agent-state", more));
    }

    fn agent_at(&self, name: &str, driver: &Path, node: &str, state: &str, more: &[&str]) -> Process {
        let agent = self.link.agent(node, &self.path(state), &self.issue(&[node]));
        self.process(name, "edge-agent", agent.serving(DRIVER, driver).flags(more))
    }

    /// Waits until the driver has answered the agent's first call of this method, and gives what was logged after that.
    ///
    /// # Panics
    /// If it does not in time, or no agent runs.
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

    /// Starts the proxy.
    pub fn start_proxy(&mut self, more: &[&str]) {
        let socket = self.proxy_socket();
        self.proxy = Some(self.proxy_at("proxy", &socket, NODE, more));
    }

    /// Starts one more proxy on its own socket, for a node that may not exist.
    #[must_use]
    pub fn proxy_at(&self, name: &str, socket: &Path, node: &str, more: &[&str]) -> Process {
        let proxy = self.proxy_command().pair("--endpoint", unix(socket)).pair("--nodeid", node).flags(more);
        self.process(name, "edge-csi-driver", proxy)
    }

    fn proxy_command(&self) -> Arguments {
        self.link.proxy(DRIVER, &self.issue(&["proxy"]))
    }

    fn process(&self, name: &str, binary: &str, arguments: Arguments) -> Process {
        Process::start(self.directory.path(), name, binary, arguments.flag("-vv"))
    }
}
