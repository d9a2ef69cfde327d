//! A network namespace of its own, whose only port counts what passes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::PerfError;
use super::build::run_to_end;
use super::cable::{Cable, Condition};
use super::chain::pause;

/// Bytes of Ethernet's header, which no network provider counts.
const ETHERNET: u64 = 14;

/// How long a link has carried nothing when it counts as quiet: longer than any answer takes here.
const QUIET: Duration = Duration::from_secs(5);

/// How long nothing passes until the agent takes an idle connection over QUIC for lost, 35 s at most, and its hub does not yet.
const LOST: Duration = Duration::from_secs(36);

/// The hardware addresses of the near and of the far end, and one that no port has.
const MAC: &str = "02:00:00:00:00:01";
const FAR_MAC: &str = "02:00:00:00:00:02";
const NO_PORT: &str = "02:00:00:00:00:03";

/// A network namespace with one port, whose other end is here. Removed when dropped.
#[derive(Debug)]
pub(super) struct Network {
    namespace: String,
    port: String,
    /// The addresses of the near and of the far end.
    address: String,
    far: String,
    /// What is between the two ports, if they are not connected directly.
    cable: Option<Cable>,
}

/// What has passed a port, without Ethernet's headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) bytes: u64,
    pub(super) packets: u64,
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
        let mut network = Self {
            namespace: format!("edge-csi-{process}-{number}"),
            port: format!("ec{process}-{number}"),
            address: near,
            far,
            cable: None,
        };
        let (space, port) = (network.namespace.as_str(), network.port.as_str());
        let (near, far) = (&network.address, &network.far);
        ip(&["netns", "add", space])?;
        let inner = [format!("{port}a"), format!("{port}b")];
        let (left, right) =
            (["link", "add", port, "address", MAC, "type", "veth", "peer", "name"], ["wan", "netns", space]);
        match condition {
            None => ip(&[&left[..], &right].concat())?,
            Some(_) => {
                ip(&[&left[..], &[&inner[0]]].concat())?;
                ip(&[&["link", "add", &inner[1], "type", "veth", "peer", "name"], &right[..]].concat())?;
            }
        }
        ip(&["-n", space, "link", "set", "wan", "address", FAR_MAC])?;
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
        network.address_frames([FAR_MAC, MAC])?;
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

    /// Lets nothing pass any more, or all again. What is sent and lost is counted.
    pub(super) fn cut(&self, is_cut: bool) -> Result<(), PerfError> {
        self.address_frames(if is_cut { [NO_PORT; 2] } else { [FAR_MAC, MAC] })
    }

    /// Sets the addresses of the frames to the far and to the near end.
    fn address_frames(&self, [to_far, to_near]: [&str; 2]) -> Result<(), PerfError> {
        let replace =
            |to, mac, port| ["neigh", "replace", to, "lladdr", mac, "dev", port, "nud", "permanent"];
        ip(&replace(&self.far, to_far, &self.port))?;
        ip(&[&["-n", &self.namespace][..], &replace(&self.address, to_near, "wan")].concat())
    }

    pub(super) fn passed(&self) -> Result<Passed, PerfError> {
        let figure = |name: &str| -> Result<u64, PerfError> {
            let path = format!("/sys/class/net/{}/statistics/{name}", self.port);
            let text = std::fs::read_to_string(&path).map_err(PerfError::io(format!("read {path}")))?;
            Ok(text.trim().parse().unwrap_or_default())
        };
        let packets = figure("rx_packets")? + figure("tx_packets")?;
        Ok(Passed { bytes: figure("rx_bytes")? + figure("tx_bytes")? - ETHERNET * packets, packets })
    }

    /// Ends the connections of the namespace, and returns what passes until they are replaced and the link is quiet again. Those
    /// of TCP are reset; for others, nothing passes until the far end takes them for lost.
    pub(super) fn connected_again(&self, is_tcp: bool) -> Result<Passed, PerfError> {
        let before = if is_tcp {
            let before = self.passed()?;
            ip(&["netns", "exec", &self.namespace, "ss", "-K", "dst", &self.address])?;
            before
        } else {
            self.cut(true)?;
            pause(LOST);
            let before = self.passed()?;
            self.cut(false)?;
            before
        };
        let after = quiet(self, before)?;
        Ok(Passed { bytes: after.bytes - before.bytes, packets: after.packets - before.packets })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.namespace]);
        // The other end of this port, if it is not in the namespace, which is there before the cable.
        if Path::new(&format!("/sys/class/net/{}a", self.port)).exists() {
            let _ = ip(&["link", "del", &self.port]);
        }
    }
}

/// Waits until something has passed since `before` and nothing more does, and returns what has passed in all.
pub(super) fn quiet(network: &Network, before: Passed) -> Result<Passed, PerfError> {
    let (mut last, mut since, begun) = (network.passed()?, Instant::now(), Instant::now());
    while (last == before || since.elapsed() < QUIET) && begun.elapsed() < Duration::from_secs(60) {
        pause(Duration::from_millis(200));
        let now = network.passed()?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}
