//! The measured chains: their processes, the order in which these start, and the endpoint for a client.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::PerfError;
use super::build::Programs;
use super::processes::Process;
use crate::authority::{Authority, Usage};

/// The driver's name in every chain.
pub(super) const DRIVER: &str = "bench.csi.edge";

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A kind of chain between the client and the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No relay: the client calls the driver's unix socket.
    Direct,
    /// Proxy, hub and agent; the agent dials the hub over this transport, the proxy over a unix socket.
    Relay(HubTransport),
    /// Hub and agent; the hub serves the driver's socket itself.
    HubDriver,
    /// Three processes that forward the bytes of the calls over the same kinds of sockets as a relay over wss.
    Bare,
    /// The library mwitkow/grpc-proxy twice, with plain TCP between.
    GrpcProxy,
    /// Endpoint and dispatcher of csi-proxy, with a NATS server and plain TCP between.
    Nats,
}

/// The transport between the agent and the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HubTransport {
    /// Unix socket.
    Uds,
    /// Websocket over TLS, client certificate.
    Wss,
    /// QUIC, client certificate.
    Quic,
}

impl Kind {
    /// Every chain of the table, the baseline first.
    pub(super) const ALL: [Self; 8] = [
        Self::Direct,
        Self::Bare,
        Self::Relay(HubTransport::Uds),
        Self::Relay(HubTransport::Wss),
        Self::Relay(HubTransport::Quic),
        Self::HubDriver,
        Self::GrpcProxy,
        Self::Nats,
    ];

    /// Returns the name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay(HubTransport::Uds) => "hub, uds + uds",
            Self::Relay(HubTransport::Wss) => "hub, uds + wss",
            Self::Relay(HubTransport::Quic) => "hub, uds + quic",
            Self::HubDriver => "hub with --driver, wss",
            Self::Bare => "bare chain, uds + TLS",
            Self::GrpcProxy => "grpc-proxy chain",
            Self::Nats => "NATS relay",
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay(HubTransport::Uds) => "uds",
            Self::Relay(HubTransport::Wss) => "wss",
            Self::Relay(HubTransport::Quic) => "quic",
            Self::HubDriver => "hubdriver",
            Self::Bare => "bare",
            Self::GrpcProxy => "grpcproxy",
            Self::Nats => "nats",
        }
    }
}

/// Returns an unused port of the loopback address.
pub(super) fn free_port() -> Result<u16, PerfError> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(PerfError::io("find an unused port"))
}

impl HubTransport {
    /// Returns the scheme of the URLs, or `None` for a unix socket.
    pub(super) const fn scheme(self) -> Option<&'static str> {
        match self {
            Self::Uds => None,
            Self::Wss => Some("wss"),
            Self::Quic => Some("quic"),
        }
    }
}

/// Returns the command of a hub that listens on this URL with a certificate in files of this name.
pub(super) fn hub_at(
    programs: &Programs,
    authority: &Authority,
    name: &str,
    url: &str,
) -> Result<Command, PerfError> {
    let mut hub = programs.rust("edge-hub");
    hub.args(["--listen", url, "--allow", "proxy=*:*"]);
    let host =
        url.split("//").nth(1).and_then(|rest| rest.rsplit_once(':')).map_or("127.0.0.1", |(host, _)| host);
    let files = authority.issue(name, &["localhost", host], Usage::Server)?;
    files.add_options(&mut hub, "--client-ca", &authority.root());
    Ok(hub)
}

/// Returns the command of an agent with a certificate for this name.
pub(super) fn agent_of(
    programs: &Programs,
    authority: &Authority,
    name: &str,
    url: &str,
    driver: &str,
) -> Result<Command, PerfError> {
    let mut agent = programs.rust("edge-agent");
    agent.args(["--nodeid", name, "--driver", &format!("{DRIVER}={driver}"), "--hub", url]);
    let files = authority.issue(name, &[name], Usage::Client)?;
    files.add_options(&mut agent, "--tls-ca", &authority.root());
    Ok(agent)
}

/// A running chain.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) kind: Kind,
    /// The URL that the agent dials, or an empty text.
    pub(super) hub_url: String,
    /// The URL of the driver's socket.
    pub(super) driver: String,
    /// The endpoint for the client.
    pub(super) endpoint: String,
    /// The processes, the driver first.
    pub(super) parts: Vec<Process>,
}

struct Builder<'a> {
    programs: &'a Programs,
    folder: PathBuf,
    parts: Vec<Process>,
}

impl Builder<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn unix(&self, name: &str) -> String {
        format!("unix://{}", self.path(name).display())
    }

    fn start(&mut self, name: &str, command: &mut Command) -> Result<(), PerfError> {
        self.parts.push(Process::start(name, &self.folder, command)?);
        Ok(())
    }

    /// Starts a hub with these options in addition to its own, an agent and a proxy. Returns the URL that the agent dials.
    fn relay(
        &mut self,
        transport: HubTransport,
        authority: &Authority,
        hub_options: &[String],
    ) -> Result<String, PerfError> {
        let (unix, driver) = (self.unix("hub.sock"), self.unix("driver.sock"));
        let (url, mut hub, mut agent) = if let Some(scheme) = transport.scheme() {
            let url = format!("{scheme}://127.0.0.1:{}", free_port()?);
            let hub = hub_at(self.programs, authority, "hub", &url)?;
            let agent = agent_of(self.programs, authority, "edge-1", &url, &driver)?;
            (url, hub, agent)
        } else {
            let mut agent = self.programs.rust("edge-agent");
            agent.args(["--nodeid", "edge-1", "--driver", &format!("{DRIVER}={driver}"), "--hub", &unix]);
            (unix.clone(), self.programs.rust("edge-hub"), agent)
        };
        self.start("hub", hub.args(["--listen", &unix]).args(hub_options))?;
        self.start("agent", agent.arg("--state-dir").arg(self.path("agent")))?;
        let mut proxy = self.programs.rust("edge-csi-driver");
        proxy.args(["--drivername", DRIVER, "--nodeid", "edge-1", "--endpoint", &self.unix("csi.sock")]);
        proxy.args(["--hub", &unix]).arg("--state-dir").arg(self.path("proxy"));
        self.start("proxy", &mut proxy)?;
        Ok(url)
    }

    /// Starts a hub that serves the driver's socket, and an agent. Returns the URL that the agent dials.
    fn hub_driver(&mut self, authority: &Authority) -> Result<String, PerfError> {
        let url = format!("wss://127.0.0.1:{}", free_port()?);
        let mut hub = hub_at(self.programs, authority, "hub", &url)?;
        hub.args(["--driver", &format!("{DRIVER}@edge-1={}", self.unix("csi.sock"))]);
        self.start("hub", hub.arg("--state-dir").arg(self.path("state")))?;
        let mut agent = agent_of(self.programs, authority, "edge-1", &url, &self.unix("driver.sock"))?;
        self.start("agent", agent.arg("--state-dir").arg(self.path("agent")))?;
        Ok(url)
    }

    /// Starts what forwards bytes from the client's socket to a driver that speaks no gRPC, over a unix socket, a unix socket and
    /// TLS, and a unix socket.
    fn bare(&mut self, authority: &Authority) -> Result<(), PerfError> {
        let between = format!("127.0.0.1:{}", free_port()?);
        let [near, middle, far] = ["csi.sock", "hub.sock", "bare.sock"].map(|name| self.path(name));
        self.start("bare driver", self.programs.rust("bare").args(["driver", "--socket"]).arg(&far))?;
        let mut agent = self.programs.rust("bare");
        agent.args(["forward", "from-tls", &between]).arg(&far);
        let files = authority.issue("agent", &["localhost"], Usage::Server)?;
        self.start("agent", agent.args([&files.certificate, &files.key, &authority.root()]))?;
        let mut hub = self.programs.rust("bare");
        hub.args(["forward", "to-tls"]).arg(&middle).arg(&between);
        let files = authority.issue("hub", &["hub"], Usage::Client)?;
        self.start("hub", hub.args([&files.certificate, &files.key, &authority.root()]))?;
        self.start("proxy", self.programs.rust("bare").args(["forward", "unix"]).args([&near, &middle]))
    }

    fn grpc_proxy(&mut self) -> Result<(), PerfError> {
        let between = format!("127.0.0.1:{}", free_port()?);
        let (near, far) = (self.path("csi.sock"), self.path("driver.sock"));
        self.start("far", self.programs.go("grpcproxy").arg(&between).arg(far))?;
        self.start("near", self.programs.go("grpcproxy").arg(near).arg(&between))
    }

    fn nats(&mut self) -> Result<(), PerfError> {
        let port = free_port()?;
        let server = format!("127.0.0.1:{port}");
        self.start(
            "nats",
            self.programs.go("nats-server").args(["-a", "127.0.0.1", "-p", &port.to_string()]),
        )?;
        let mut agent = self.programs.rust("nats-relay");
        agent.args([
            "agent",
            "--server",
            &server,
            "--drivername",
            DRIVER,
            "--driver",
            &self.unix("driver.sock"),
        ]);
        self.start("agent", &mut agent)?;
        let mut proxy = self.programs.rust("nats-relay");
        proxy.args([
            "proxy",
            "--server",
            &server,
            "--drivername",
            DRIVER,
            "--endpoint",
            &self.unix("csi.sock"),
        ]);
        self.start("proxy", &mut proxy)
    }
}

impl Chain {
    /// Starts the processes of a chain, each with its files in a separate folder.
    pub(super) fn start(
        kind: Kind,
        programs: &Programs,
        run: &Path,
        authority: &Authority,
    ) -> Result<Self, PerfError> {
        Self::start_with(kind, programs, run, authority, &[])
    }

    /// Starts a chain whose hub, if it has one, gets these options in addition.
    pub(super) fn start_with(
        kind: Kind,
        programs: &Programs,
        run: &Path,
        authority: &Authority,
        hub_options: &[String],
    ) -> Result<Self, PerfError> {
        let folder = run.join(kind.folder());
        std::fs::create_dir_all(&folder).map_err(PerfError::io(format!("create {}", folder.display())))?;
        let mut builder = Builder { programs, folder, parts: Vec::new() };
        let driver = builder.path("driver.sock");
        builder.start("driver", programs.rust("bench-driver").arg("--socket").arg(driver))?;
        let socket = match kind {
            Kind::Direct => "driver.sock",
            _ => "csi.sock",
        };
        let mut hub_url = String::new();
        match kind {
            Kind::Direct => {}
            Kind::Relay(transport) => hub_url = builder.relay(transport, authority, hub_options)?,
            Kind::HubDriver => hub_url = builder.hub_driver(authority)?,
            Kind::Bare => builder.bare(authority)?,
            Kind::GrpcProxy => builder.grpc_proxy()?,
            Kind::Nats => builder.nats()?,
        }
        let (endpoint, driver) = (builder.unix(socket), builder.unix("driver.sock"));
        let chain = Self { kind, hub_url, driver, endpoint, parts: builder.parts };
        chain.wait_until_ready(programs, &builder.folder)?;
        Ok(chain)
    }

    /// Waits until a call through the chain succeeds.
    fn wait_until_ready(&self, programs: &Programs, logs: &Path) -> Result<(), PerfError> {
        let started = Instant::now();
        while started.elapsed() < READY_TIMEOUT {
            if self.load(programs, 1, 0.05).is_ok() {
                return Ok(());
            }
            pause(Duration::from_millis(100));
        }
        Err(PerfError::NotReady {
            chain: self.kind.name().to_owned(),
            endpoint: self.endpoint.clone(),
            seconds: READY_TIMEOUT.as_secs(),
            logs: logs.to_owned(),
        })
    }

    /// Runs the load generator once, with `in_flight` callers that create volumes.
    pub(super) fn load(
        &self,
        programs: &Programs,
        in_flight: usize,
        seconds: f64,
    ) -> Result<Figures, PerfError> {
        if self.kind != Kind::Bare {
            return load(programs, &self.endpoint, in_flight, seconds);
        }
        let mut command = programs.rust("bare");
        command.args(["load", "--socket", self.endpoint.trim_start_matches("unix://")]);
        command.args(["--in-flight", &in_flight.to_string(), "--seconds", &seconds.to_string()]);
        figures(command, format!("bare load --socket {}", self.endpoint))
    }

    /// Returns the process of this name.
    pub(super) fn part(&self, name: &str) -> Option<&Process> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// Returns the processor time of all processes of the chain.
    pub(super) fn processor_time(&self) -> Duration {
        self.parts.iter().map(Process::processor_time).sum()
    }
}

/// The load generator's measurements. Latencies are in microseconds.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Figures {
    /// Calls answered with OK.
    pub(super) calls: u64,
    /// Calls answered with another code, if the load tolerates them.
    #[serde(default)]
    pub(super) errors: u64,
    /// Calls per second.
    pub(super) rate: f64,
    /// Median latency.
    pub(super) p50: f64,
    /// 99th percentile.
    pub(super) p99: f64,
}

/// One run of the load generator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// The calls of its callers, as a value of the option `--work`.
    pub(super) work: &'static str,
    /// The number of concurrent callers.
    pub(super) in_flight: usize,
    /// The length of the measurement, in seconds.
    pub(super) seconds: f64,
    /// True if one more call hangs during the measurement.
    pub(super) beside_hung: bool,
    /// True if failed calls are counted, instead of ending the load.
    pub(super) tolerate: bool,
}

impl Load {
    /// Returns a load of one caller that creates volumes for this number of seconds.
    pub(super) const fn new(seconds: f64) -> Self {
        Self { work: "create-volume", in_flight: 1, seconds, beside_hung: false, tolerate: false }
    }

    /// Runs the load against a socket.
    pub(super) fn run(self, programs: &Programs, endpoint: &str) -> Result<Figures, PerfError> {
        let mut command = programs.rust("load");
        command.args(["--json", "--endpoint", endpoint, "--work", self.work]);
        command.args(["--in-flight", &self.in_flight.to_string(), "--seconds", &self.seconds.to_string()]);
        if self.beside_hung {
            command.arg("--beside-hung");
        }
        if self.tolerate {
            command.arg("--tolerate");
        }
        figures(command, format!("load --endpoint {endpoint}"))
    }
}

/// Runs a load generator, and reads its figures.
fn figures(mut command: Command, shown: String) -> Result<Figures, PerfError> {
    let output = command.output().map_err(PerfError::io(shown.clone()))?;
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(PerfError::Command { command: shown, output });
    }
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    serde_json::from_str(&line).map_err(|source| PerfError::Figures { command: shown, line, source })
}

/// Runs the load generator once, with `in_flight` callers that create volumes.
pub(super) fn load(
    programs: &Programs,
    endpoint: &str,
    in_flight: usize,
    seconds: f64,
) -> Result<Figures, PerfError> {
    Load { in_flight, ..Load::new(seconds) }.run(programs, endpoint)
}

/// Sleeps between two checks of another process.
#[allow(clippy::disallowed_methods, reason = "a command with one thread and no runtime")]
pub(super) fn pause(length: Duration) {
    std::thread::sleep(length);
}
