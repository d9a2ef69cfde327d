//! The command line of `edge-agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use csi_proxy::NodeId;
use edge_transport::link::Address;

use super::inspect::Inspect;
use super::kubernetes::KubernetesOptions;
use super::shim::ShimOptions;
use super::volumes::VolumesOptions;
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::uplink::RoadOptions;
use edge_csi_common::values::{DriverAt, LONGEST, duration, duration_within, listen_address};

/// Less would cut work that every driver needs time for.
const SHORTEST_CEILING: Duration = Duration::from_secs(1);
/// What waits holds a place and a request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Answers for the CSI drivers of one node: calls come in over a link to the hub, and go to the drivers' own sockets.
///
/// Drivers are named by --driver, or found as kubelet finds them in a --plugins-registry directory; at least one of the two
/// must be given. A driver or a hub that is not there yet is waited for.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-agent", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    /// What to tell of an agent that runs with --volumes.
    #[command(subcommand)]
    pub what: Option<Inspect>,

    /// How to be an agent.
    #[command(flatten)]
    pub options: Option<AgentOptions>,
}

/// The options of an agent.
#[derive(Debug, Clone, Args)]
// By what it is seen that there are any.
#[group(args = ["nodeid"])]
#[command(group(clap::ArgGroup::new("drivers").required(true).multiple(true).args(["driver", "plugins_registry"])))]
pub struct AgentOptions {
    /// Name of this node: the agent's name at the hub, and what the proxy's --nodeid names
    #[arg(long, value_name = "NAME")]
    pub nodeid: NodeId,

    /// Address of the hub: quic://HOST:PORT, wss://HOST:PORT, ws://HOST:PORT or unix:///PATH (ports 10001 for quic, else
    /// 10000). May be given again: the addresses are tried in order
    #[arg(long, value_name = "URL", required = true)]
    pub hub: Vec<Address>,

    /// How those addresses are used.
    #[command(flatten)]
    pub roads: RoadOptions,

    /// Directory for what is kept over a restart, made if missing. Without it a restart is told from its predecessor by the clock alone
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// A driver and its socket, as NAME=unix:///PATH. May be given again
    #[arg(long, value_name = "NAME=URL")]
    pub driver: Vec<DriverAt>,

    /// Directory in which drivers register as with kubelet. It should be the agent's own: in a directory that kubelet watches
    /// too, both answer the registrars
    #[arg(long, value_name = "DIR")]
    pub plugins_registry: Option<PathBuf>,

    /// Volumes of this node.
    #[command(flatten)]
    pub volumes: VolumesOptions,

    /// Volumes of pods.
    #[command(flatten)]
    pub kubernetes: KubernetesOptions,

    /// Sockets for kubelet.
    #[command(flatten)]
    pub shim: ShimOptions,

    /// Longest time for one call at a driver, whoever still waits for it; then it is cancelled at the driver (ms, s, m, h; at
    /// least 1s). More for drivers whose work takes longer, or it is begun again and again
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration_within(SHORTEST_CEILING, LONGEST))]
    pub call_ceiling: Duration,

    /// How long a request waits while the driver is at another one for the same volume, before it is told ABORTED; less if its caller
    /// does not wait as long (ms, s, m; at most 1m; 0s: not at all)
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration_within(Duration::ZERO, LONGEST_WAIT))]
    pub volume_wait: Duration,

    /// Certificates, or none.
    #[command(flatten)]
    pub security: ClientSecurity,

    /// Address for /healthz, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http: Option<SocketAddr>,

    /// Longest wait after SIGTERM for open calls, and for drivers' work that nobody waits for any more (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}
