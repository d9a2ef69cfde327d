//! The whole way as processes: driver, agent, hub and proxy, over the link of choice.

mod site;

use std::fmt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub use self::site::Site;
use crate::certificates::{Authority, Files};
use crate::process::Process;
use crate::{csi, port, wait};

/// The CSI name of the driver in a stand.
pub const DRIVER: &str = "hostpath.csi.edge";

/// The node that the driver is on.
pub const NODE: &str = "edge-1";

/// The link between the agent and the hub, and between the proxy and the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Over {
    /// Unix socket.
    Uds,
    /// Plain websocket.
    Ws,
    /// Websocket over TLS with certificates on both ends.
    Wss,
    /// QUIC with certificates on both ends.
    Quic,
    /// QUIC without verification.
    QuicInsecure,
}

impl Over {
    /// Every link.
    pub const ALL: [Self; 5] = [Self::Uds, Self::Ws, Self::Wss, Self::Quic, Self::QuicInsecure];

    const fn scheme(self) -> &'static str {
        match self {
            Self::Uds => "unix",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Quic | Self::QuicInsecure => "quic",
        }
    }

    const fn certificates(self) -> bool {
        matches!(self, Self::Wss | Self::Quic)
    }
}

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
    over: Over,
    authority: Authority,
    hub_url: String,
    /// Another way to the hub, in the place of its own address.
    detour: Option<String>,
    hub_options: Vec<String>,
    agent_binary: String,
    // Last, so that the processes are gone before their files.
    directory: TempDir,
}

impl fmt::Debug for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stand")
            .field("over", &self.over)
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
    pub fn empty(over: Over) -> Self {
        // Unix socket paths are short: the system's own directory, not one below the target directory.
        let directory =
            tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp").expect("a temporary directory");
        let authority = Authority::new(directory.path(), "authority");
        let hub_url = match over {
            Over::Uds => format!("unix://{}", directory.path().join("hub.sock").display()),
            _ => String::new(),
        };
        Self {
            driver: None,
            agent: None,
            hub: None,
            proxy: None,
            over,
            authority,
            hub_url,
            detour: None,
            hub_options: Vec::new(),
            agent_binary: "edge-agent".to_owned(),
            directory,
        }
    }

    /// Everything runs and the proxy says that it is ready.
    pub async fn start(over: Over) -> Self {
        let mut stand = Self::empty(over);
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

    /// Where the hub is reached. Known once it listens, except over a unix socket.
    #[must_use]
    pub fn hub_url(&self) -> &str {
        &self.hub_url
    }

    /// Lets agents and proxies that are started from now on dial another address, at which something forwards to the hub.
    pub fn detour(&mut self, address: std::net::SocketAddr) {
        let scheme = self.over.scheme();
        self.detour = Some(format!("{scheme}://{address}"));
    }

    /// Where the hub itself listens.
    ///
    /// # Panics
    /// If it does not listen on a port.
    #[must_use]
    pub fn hub_address(&self) -> std::net::SocketAddr {
        let (_, place) = self.hub_url.split_once("://").expect("the hub listens");
        place.parse().unwrap_or_else(|cause| panic!("{place}: {cause}"))
    }

    /// Lets hubs that are started from now on listen on one free port of the loopback address.
    ///
    /// A port that is taken again after the hub was killed should not be one that the kernel gives to those who dial.
    pub fn hub_port(&mut self) {
        self.hub_url = format!("{}://127.0.0.1:{}", self.over.scheme(), port::free());
    }

    /// Gives hubs that are started from now on these options too.
    pub fn hub_options(&mut self, options: &[&str]) {
        self.hub_options = options.iter().map(ToString::to_string).collect();
    }

    /// Makes agents that are started from now on this program, in place of the examples' own.
    pub fn agent_binary(&mut self, path: &str) {
        path.clone_into(&mut self.agent_binary);
    }

    fn dialled(&self) -> &str {
        self.detour.as_deref().unwrap_or(&self.hub_url)
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
        let (socket, state) = (unix(socket), self.path(state));
        let state = state.to_string_lossy();
        let arguments =
            ["--drivername", DRIVER, "--endpoint", &socket, "--nodeid", node, "--state-dir", &state];
        self.process(name, "hostpath-driver", &arguments)
    }

    /// Starts the hub and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start_hub(&mut self) {
        let uds = unix(&self.path("hub.sock"));
        let mut arguments = vec!["--uds".to_owned(), uds];
        let again = self.hub_url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0_u16);
        let address = format!("127.0.0.1:{again}");
        match self.over {
            Over::Uds => {}
            Over::Ws | Over::Wss => arguments.extend(["--ws".to_owned(), address]),
            Over::Quic | Over::QuicInsecure => arguments.extend(["--quic".to_owned(), address]),
        }
        if self.over.certificates() {
            let files = self.issue(&["127.0.0.1", "hub"]);
            arguments.extend(tls_arguments(&files, "--client-ca"));
        } else if self.over != Over::Uds {
            arguments.push("--insecure".to_owned());
        }
        arguments.extend(self.hub_options.iter().cloned());
        let hub = self.process("hub", "edge-hub", &arguments);
        let scheme = self.over.scheme();
        let marker = format!("listening on {scheme}://");
        let rest = wait::until("the hub listens", async || {
            let log = hub.log();
            // The last one: a restarted hub appends to the same log.
            log.rsplit_once(&marker).map(|(_, rest)| rest.to_owned()).filter(|rest| rest.contains('\n'))
        })
        .await;
        let place = rest.split_whitespace().next().unwrap_or_default();
        self.hub_url = format!("{scheme}://{place}");
        self.hub = Some(hub);
    }

    /// Starts the agent with the driver's socket registered.
    pub fn start_agent(&mut self, more: &[&str]) {
        self.agent = Some(self.agent_at("agent", &self.driver_socket(), NODE, "agent-state", more));
    }

    fn agent_at(&self, name: &str, driver: &Path, node: &str, state: &str, more: &[&str]) -> Process {
        let (driver, state) = (format!("{DRIVER}={}", unix(driver)), self.path(state));
        let state = state.to_string_lossy();
        let mut arguments: Vec<String> =
            ["--nodeid", node, "--hub", self.dialled(), "--state-dir", &state, "--driver", &driver]
                .map(String::from)
                .to_vec();
        arguments.extend(self.client_tls(node));
        arguments.extend(more.iter().map(ToString::to_string));
        self.process(name, &self.agent_binary, &arguments)
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
        let mut arguments: Vec<String> = [
            "--drivername",
            DRIVER,
            "--endpoint",
            &unix(socket),
            "--kubeedge-endpoint",
            self.dialled(),
            "--nodeid",
            node,
        ]
        .map(String::from)
        .to_vec();
        arguments.extend(self.client_tls("proxy"));
        arguments.extend(more.iter().map(ToString::to_string));
        self.process(name, "edge-csi-driver", &arguments)
    }

    fn client_tls(&self, name: &str) -> Vec<String> {
        match self.over {
            Over::Uds => Vec::new(),
            Over::Ws | Over::QuicInsecure => vec!["--insecure".to_owned()],
            Over::Wss | Over::Quic => tls_arguments(&self.issue(&[name]), "--tls-ca"),
        }
    }

    fn process<A: AsRef<std::ffi::OsStr>>(&self, name: &str, binary: &str, arguments: &[A]) -> Process {
        let arguments = arguments.iter().map(AsRef::as_ref).chain([std::ffi::OsStr::new("-vv")]);
        Process::start(self.directory.path(), name, binary, arguments)
    }
}

/// The options for a certificate, its key and the authority.
#[must_use]
pub fn tls_arguments(files: &Files, authority: &str) -> Vec<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    vec![
        "--tls-cert".to_owned(),
        path(&files.certificate),
        "--tls-key".to_owned(),
        path(&files.key),
        authority.to_owned(),
        path(&files.authority),
    ]
}

/// A socket as the options take it.
#[must_use]
pub fn unix(path: &Path) -> String {
    format!("unix://{}", path.display())
}
