//! What the link between an agent and a hub costs: each agent is in a network namespace of its own, whose only port counts the
//! bytes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::build::{Programs, run_to_end};
use super::cable::{Cable, Condition};
use super::chain::{DRIVER, Load, agent_of, free_port, hub_at, pause};
use super::processes::Process;
use super::{PerfError, far, folder};
use crate::authority::Authority;

/// Options of `cargo xtask perf link`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Minutes for which the idle links are counted.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Measure calls over slow links that lose packets, in place of the bytes.
    #[arg(long)]
    far: bool,
    /// Folder with release binaries; without it they are built.
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
}

/// The links of the table: their names, the schemes of the hub's addresses, and further options of the agent.
const LINKS: [(&str, &str, &[&str]); 3] =
    [("wss", "wss", &[]), ("quic", "quic", &[]), ("wss, --metered", "wss", &["--metered"])];

/// Bytes of Ethernet's header, which no network provider counts.
const ETHERNET: u64 = 14;

/// How long a link has carried nothing when it counts as quiet: longer than any answer takes here.
const QUIET: Duration = Duration::from_secs(5);

/// Pairs of calls on an idle link, and the time before each.
const PAIRS: u64 = 5;
const BETWEEN_CALLS: Duration = Duration::from_secs(12);

/// A network namespace with one port, whose other end is here. Removed when dropped.
#[derive(Debug)]
pub(super) struct Network {
    namespace: String,
    port: String,
    /// The address of the near end.
    address: String,
    /// What is between the two ports, if they are not connected directly.
    cable: Option<Cable>,
}

/// What has passed a port, without Ethernet's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    bytes: u64,
    packets: u64,
}

fn ip(arguments: &[&str]) -> Result<(), PerfError> {
    run_to_end(Command::new("ip").args(arguments))
}

impl Network {
    /// Without IPv6 and address resolution, whose packets are not the link's, and without segmentation offload, which hides
    /// headers.
    pub(super) fn new(number: u8, condition: Option<Condition>) -> Result<Self, PerfError> {
        let (process, subnet) = (std::process::id(), 100 + number);
        let (near, far) = (format!("10.91.{subnet}.1"), format!("10.91.{subnet}.2"));
        let (mac, far_mac) = (format!("02:00:00:00:{number:02}:01"), format!("02:00:00:00:{number:02}:02"));
        let mut network = Self {
            namespace: format!("edge-csi-{process}-{number}"),
            port: format!("ec{process}-{number}"),
            address: near,
            cable: None,
        };
        let (space, port, near) = (network.namespace.as_str(), network.port.as_str(), &network.address);
        ip(&["netns", "add", space])?;
        let inner = [format!("{port}a"), format!("{port}b")];
        let (left, right) =
            (["link", "add", port, "address", &mac, "type", "veth", "peer", "name"], ["wan", "netns", space]);
        match condition {
            None => ip(&[&left[..], &right].concat())?,
            Some(_) => {
                ip(&[&left[..], &[&inner[0]]].concat())?;
                ip(&[&["link", "add", &inner[1], "type", "veth", "peer", "name"], &right[..]].concat())?;
            }
        }
        ip(&["-n", space, "link", "set", "wan", "address", &far_mac])?;
        let no_ipv6 = |port: &str| format!("echo 1 >/proc/sys/net/ipv6/conf/{port}/disable_ipv6 || true");
        ip(&["netns", "exec", space, "sh", "-c", &no_ipv6("wan")])?;
        for port in [port, &inner[0], &inner[1]] {
            let _ = Command::new("sh").args(["-c", &no_ipv6(port)]).stderr(Stdio::null()).status();
        }
        ip(&["addr", "add", &format!("{near}/24"), "dev", port])?;
        ip(&["-n", space, "addr", "add", &format!("{far}/24"), "dev", "wan"])?;
        ip(&["link", "set", port, "up", "gso_max_segs", "1"])?;
        ip(&["-n", space, "link", "set", "lo", "up"])?;
        ip(&["-n", space, "link", "set", "wan", "up", "gso_max_segs", "1"])?;
        ip(&["neigh", "replace", &far, "lladdr", &far_mac, "dev", port, "nud", "permanent"])?;
        ip(&["-n", space, "neigh", "replace", near, "lladdr", &mac, "dev", "wan", "nud", "permanent"])?;
        if let Some(condition) = condition {
            // The kernel leaves checksums to hardware, which is not there.
            run_to_end(Command::new("ethtool").args(["-K", port, "tx", "off"]))?;
            ip(&["netns", "exec", space, "ethtool", "-K", "wan", "tx", "off"])?;
            for port in &inner {
                ip(&["link", "set", port, "up"])?;
            }
            network.cable = Some(Cable::between([&inner[0], &inner[1]], condition)?);
        }
        Ok(network)
    }

    /// Returns the command in this namespace.
    pub(super) fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("ip");
        within.args(["netns", "exec", &self.namespace]).arg(command.get_program()).args(command.get_args());
        within
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Lets nothing pass any more, or all again, if there is a cable.
    pub(super) fn cut(&self, is_cut: bool) {
        if let Some(cable) = &self.cable {
            cable.cut(is_cut);
        }
    }

    fn passed(&self) -> Result<Passed, PerfError> {
        let figure = |name: &str| -> Result<u64, PerfError> {
            let path = format!("/sys/class/net/{}/statistics/{name}", self.port);
            let text = std::fs::read_to_string(&path).map_err(PerfError::io(format!("read {path}")))?;
            Ok(text.trim().parse().unwrap_or_default())
        };
        let packets = figure("rx_packets")? + figure("tx_packets")?;
        Ok(Passed { bytes: figure("rx_bytes")? + figure("tx_bytes")? - ETHERNET * packets, packets })
    }

    /// Resets the TCP connections of the namespace, and returns what passes until the link is quiet again.
    fn connected_again(&self) -> Result<Passed, PerfError> {
        let before = self.passed()?;
        ip(&["netns", "exec", &self.namespace, "ss", "-K", "dst", &self.address])?;
        let after = quiet(self)?;
        Ok(Passed { bytes: after.bytes - before.bytes, packets: after.packets - before.packets })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.namespace]);
        // With a cable, the other end of this port is not in the namespace.
        if self.cable.is_some() {
            let _ = ip(&["link", "del", &self.port]);
        }
    }
}

/// An agent in its namespace, and the processes here that it works with.
#[derive(Debug)]
struct Link {
    name: &'static str,
    agent: Process,
    _rest: Vec<Process>,
    endpoint: String,
    connect: Passed,
    /// A connection after a lost one, which resumes its TLS session. Only of TCP, whose connections can be reset from outside.
    again: Option<Passed>,
    /// Bytes of a CreateVolume and the DeleteVolume after it.
    pair: u64,
    // Last, so that the processes end before.
    network: Network,
}

impl Link {
    /// Connects an agent to a hub, and counts what that takes. Then starts a driver and a proxy.
    fn start(
        number: usize,
        programs: &Programs,
        authority: &Authority,
        run: &Path,
    ) -> Result<Self, PerfError> {
        let (name, scheme, options) = LINKS[number];
        let folder = run.join(format!("link-{number}"));
        std::fs::create_dir_all(&folder).map_err(PerfError::io(format!("create {}", folder.display())))?;
        let unix = |name: &str| format!("unix://{}", folder.join(name).display());
        let network = Network::new(number as u8, None)?;
        let url = format!("{scheme}://{}:{}", network.address, free_port()?);
        let mut hub = hub_at(programs, authority, &format!("hub-{number}"), &url)?;
        let hub = Process::start("hub", &folder, hub.args(["--listen", &unix("hub.sock")]))?;
        // A driver that answers all start-up calls, so that nothing is asked again.
        let mut driver = programs.rust("hostpath-driver");
        driver.args(["--drivername", DRIVER, "--nodeid", &format!("edge-{number}")]);
        driver.args(["--endpoint", &unix("driver.sock")]).arg("--state-dir").arg(folder.join("driver"));
        let driver = Process::start("driver", &folder, &mut driver)?;
        // An agent that comes before the hub would dial twice.
        pause(Duration::from_secs(2));
        let mut agent = agent_of(programs, authority, &format!("edge-{number}"), &url, &unix("driver.sock"))?;
        agent.args(options).arg("--state-dir").arg(folder.join("agent"));
        let agent = Process::start("agent", &folder, &mut network.within(&agent))?;
        let connect = quiet(&network)?;
        let mut proxy = programs.rust("edge-csi-driver");
        proxy.args(["--drivername", DRIVER, "--nodeid", &format!("edge-{number}")]);
        proxy.args(["--endpoint", &unix("csi.sock"), "--hub", &unix("hub.sock")]);
        let proxy = Process::start("proxy", &folder, proxy.arg("--state-dir").arg(folder.join("proxy")))?;
        quiet(&network)?;
        let again = if scheme == "quic" { None } else { Some(network.connected_again()?) };
        let (_rest, endpoint) = (vec![hub, driver, proxy], unix("csi.sock"));
        Ok(Self { name, agent, _rest, endpoint, connect, again, pair: 0, network })
    }

    fn sample(&self) -> Result<(Passed, u64, Duration), PerfError> {
        Ok((self.network.passed()?, self.agent.wake_ups(), self.agent.processor_time()))
    }
}

/// Waits until something has passed and nothing more does, and returns what has passed in all.
fn quiet(network: &Network) -> Result<Passed, PerfError> {
    let (mut last, mut since, begun) = (network.passed()?, Instant::now(), Instant::now());
    while (last.bytes == 0 || since.elapsed() < QUIET) && begun.elapsed() < Duration::from_secs(60) {
        pause(Duration::from_millis(200));
        let now = network.passed()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}

/// Measures and prints the table.
#[allow(clippy::print_stdout, reason = "the table is the output of the command")]
pub(super) fn run(options: &Options) -> Result<(), PerfError> {
    let programs = Programs::at_or_built(options.programs.as_deref())?;
    if options.far {
        return far::run(&programs);
    }
    let run = folder()?;
    let authority = Authority::new(run.path())?;
    let start = |number| Link::start(number, &programs, &authority, run.path());
    let mut links = (0..LINKS.len()).map(start).collect::<Result<Vec<_>, _>>()?;
    let before = links.iter().map(|link| link.network.passed()).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..PAIRS {
        pause(BETWEEN_CALLS);
        for link in &links {
            Load { work: "create-delete", ..Load::new(0.0) }.run(&programs, &link.endpoint)?;
        }
    }
    pause(BETWEEN_CALLS);
    for (link, before) in links.iter_mut().zip(before) {
        link.pair = (link.network.passed()?.bytes - before.bytes) / PAIRS;
    }
    let samples = links.iter().map(Link::sample).collect::<Result<Vec<_>, _>>()?;
    let length = Duration::from_secs_f64(options.minutes.max(0.5) * 60.0);
    pause(length);
    println!("IP packets and bytes in both directions; idle for {:.0} s.\n", length.as_secs_f64());
    println!(
        "| link | connect: bytes (packets) | connect again | CreateVolume, DeleteVolume | idle: kB/day | agent: wake-ups/min | CPU s/day | resident KiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (link, before) in links.iter().zip(samples) {
        let now = link.sample()?;
        let a_day = 86_400.0 / length.as_secs_f64();
        println!(
            "| {} | {} ({}) | {} | {} | {:.0} | {:.1} | {:.1} | {} |",
            link.name,
            link.connect.bytes,
            link.connect.packets,
            link.again.map_or_else(|| "-".to_owned(), |again| format!("{} ({})", again.bytes, again.packets)),
            link.pair,
            (now.0.bytes - before.0.bytes) as f64 * a_day / 1e3,
            (now.1 - before.1) as f64 * 60.0 / length.as_secs_f64(),
            (now.2 - before.2).as_secs_f64() * a_day,
            link.agent.resident(),
        );
    }
    Ok(())
}
