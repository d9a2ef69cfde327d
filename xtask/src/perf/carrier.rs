//! What carries calls from a socket here to a driver's socket behind a network: a relay of ours, or a tunnel that a user would
//! pick instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PerfError;
use super::build::{Programs, run_to_end};
use super::chain::{DRIVER, agent_of, free_port, hub_at};
use super::network::Network;
use super::processes::Process;
use crate::authority::Authority;

/// The driver with large answers, beside [`DRIVER`].
pub(super) const LARGE: &str = "large.csi.edge";

/// A way for calls. Each dials from the driver's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Hub, agent and proxy: the scheme of the hub's address, and further options of the agent.
    Relay(&'static str, &'static [&'static str]),
    /// OpenSSH forwards unix sockets.
    Ssh,
    /// fatedier/frp forwards TCP ports to unix sockets, over TLS.
    Frp,
}

/// A run of a carrier: its name, and where its files and programs are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The name of the node.
    pub(super) name: &'a str,
    pub(super) folder: &'a Path,
    pub(super) programs: &'a Programs,
    pub(super) authority: &'a Authority,
}

impl Place<'_> {
    /// Returns the path of the socket that a driver serves.
    pub(super) fn driver(&self, driver: &str) -> PathBuf {
        self.folder.join(format!("{driver}.driver.sock"))
    }

    /// Starts hostpath-driver as [`DRIVER`]. It answers all start-up calls, so that nothing is asked again.
    pub(super) fn start_driver(&self) -> Result<Process, PerfError> {
        let mut driver = self.programs.rust("hostpath-driver");
        driver.args(["--drivername", DRIVER, "--nodeid", self.name]);
        driver.args(["--endpoint", &unix(&self.driver(DRIVER))]);
        Process::start("driver", self.folder, driver.arg("--state-dir").arg(self.folder.join("driver")))
    }

    /// Returns the path of the socket here that leads to a driver.
    fn here(&self, driver: &str) -> PathBuf {
        self.folder.join(format!("{driver}.sock"))
    }

    fn write(&self, name: &str, text: String) -> Result<PathBuf, PerfError> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(PerfError::io(format!("write {}", path.display())))?;
        Ok(path)
    }
}

/// A carrier whose end here runs.
#[derive(Debug)]
pub(super) struct Ends {
    /// The end here.
    pub(super) near: Process,
    /// The end on the driver's side, to be started in the network.
    pub(super) far: Command,
    /// What also runs here once both ends are connected.
    pub(super) rest: Vec<Command>,
    /// The endpoint for the callers of each driver.
    pub(super) endpoints: Vec<String>,
}

fn unix(path: &Path) -> String {
    format!("unix://{}", path.display())
}

impl Carrier {
    /// Returns true if a lost connection is dialled again.
    pub(super) const fn dials_again(self) -> bool {
        !matches!(self, Self::Ssh)
    }

    /// Returns true if its connections are TCP.
    pub(super) fn is_tcp(self) -> bool {
        !matches!(self, Self::Relay("quic", _))
    }

    /// Starts the end here, for these drivers.
    pub(super) fn start(
        self,
        place: &Place<'_>,
        network: &Network,
        drivers: &[&str],
    ) -> Result<Ends, PerfError> {
        match self {
            Self::Relay(scheme, options) => relay(place, network, drivers, scheme, options),
            Self::Ssh => ssh(place, network, drivers),
            Self::Frp => frp(place, network, drivers),
        }
    }
}

fn relay(
    place: &Place<'_>,
    network: &Network,
    drivers: &[&str],
    scheme: &str,
    options: &[&str],
) -> Result<Ends, PerfError> {
    let Place { name, folder, programs, authority } = *place;
    let url = format!("{scheme}://{}:{}", network.address(), free_port()?);
    let socket = unix(&folder.join("hub.sock"));
    let mut hub = hub_at(programs, authority, &format!("hub-{name}"), &url)?;
    let near = Process::start("hub", folder, hub.args(["--listen", &socket]))?;
    let mut far = agent_of(programs, authority, name, &url, &unix(&place.driver(DRIVER)))?;
    far.args(options).arg("--state-dir").arg(folder.join("agent"));
    let (mut rest, mut endpoints) = (Vec::new(), Vec::new());
    for driver in drivers {
        if *driver != DRIVER {
            far.args(["--driver", &format!("{driver}={}", unix(&place.driver(driver)))]);
        }
        let mut proxy = programs.rust("edge-csi-driver");
        proxy.args(["--drivername", driver, "--nodeid", name, "--endpoint", &unix(&place.here(driver))]);
        proxy.args(["--hub", &socket]).arg("--state-dir").arg(folder.join(format!("proxy-{driver}")));
        rest.push(proxy);
        endpoints.push(unix(&place.here(driver)));
    }
    Ok(Ends { near, far, rest, endpoints })
}

/// A server and a client as in the manual pages sshd_config(5) and ssh(1), which ask each other once a minute whether they are
/// there, as our agent does.
fn ssh(place: &Place<'_>, network: &Network, drivers: &[&str]) -> Result<Ends, PerfError> {
    let (folder, port, address) = (place.folder, free_port()?, network.address());
    for key in ["host", "user"] {
        let file = folder.join(key);
        run_to_end(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file))?;
    }
    // The folder into which the server confines itself, which Debian's service makes.
    fs::create_dir_all("/run/sshd").map_err(PerfError::io("create /run/sshd"))?;
    let shown = folder.display();
    let config = format!(
        "ListenAddress {address}:{port}\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/user.pub\nStrictModes no\n\
         PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nStreamLocalBindUnlink yes\n"
    );
    let config = place.write("sshd_config", config)?;
    let near =
        Process::start("sshd", folder, Command::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]).arg(config))?;
    let mut far = Command::new("ssh");
    far.args(["-N", "-F", "none", "-i"]).arg(folder.join("user")).args(["-p", &port.to_string()]);
    for option in [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "IdentitiesOnly=yes",
        "ExitOnForwardFailure=yes",
        "ServerAliveInterval=60",
    ] {
        far.args(["-o", option]);
    }
    for driver in drivers {
        let both = format!("{}:{}", place.here(driver).display(), place.driver(driver).display());
        far.args(["-R", &both]);
    }
    far.arg(format!("root@{address}"));
    let endpoints = drivers.iter().map(|driver| unix(&place.here(driver))).collect();
    Ok(Ends { near, far, rest: Vec::new(), endpoints })
}

/// A server and a client with their defaults.
fn frp(place: &Place<'_>, network: &Network, drivers: &[&str]) -> Result<Ends, PerfError> {
    let (folder, port, address) = (place.folder, free_port()?, network.address());
    let server = format!("bindAddr = \"{address}\"\nbindPort = {port}\nproxyBindAddr = \"127.0.0.1\"\n");
    let server = place.write("frps.toml", server)?;
    let near = Process::start("frps", folder, place.programs.go("frps").arg("-c").arg(server))?;
    let mut client = format!("serverAddr = \"{address}\"\nserverPort = {port}\n");
    let mut endpoints = Vec::new();
    for driver in drivers {
        let (port, socket) = (free_port()?, place.driver(driver));
        client += &format!(
            "[[proxies]]\nname = \"{driver}\"\ntype = \"tcp\"\nremotePort = {port}\n\
             [proxies.plugin]\ntype = \"unix_domain_socket\"\nunixPath = \"{}\"\n",
            socket.display()
        );
        endpoints.push(format!("http://127.0.0.1:{port}"));
    }
    let client = place.write("frpc.toml", client)?;
    let mut far = place.programs.go("frpc");
    far.arg("-c").arg(client);
    Ok(Ends { near, far, rest: Vec::new(), endpoints })
}
