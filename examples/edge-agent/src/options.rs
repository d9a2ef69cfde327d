//! The command line of `edge-agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use csi_proxy::NodeId;
use edge_transport::link::Address;

use super::inspect::Inspect;
use super::kubelet_sockets::KubeletSocketOptions;
use super::kubernetes::KubernetesOptions;
use super::volumes::VolumesOptions;
use edge_csi_common::allow::AllowRule;
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::uplink::FailbackOptions;
use edge_csi_common::values::{DriverAt, MAX_DURATION, duration, duration_within, listen_address};

/// The minimum of `--driver-timeout`. A shorter timeout would cancel ordinary work of drivers.
const MIN_DRIVER_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum of `--operation-queue-timeout`. A waiting request holds a slot and memory.
const MAX_QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// Relays CSI calls from the hub to the sockets of this node's CSI drivers, and mounts volumes without a kubelet.
///
/// Drivers are named by --driver, or register in the --plugins-registry directory as with kubelet; at least one of the two is
/// required. The agent waits for drivers and hubs that are not running yet.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-agent", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    /// The subcommand, about the state of an agent.
    #[command(subcommand)]
    pub command: Option<Inspect>,

    /// The options of the agent itself.
    #[command(flatten)]
    pub options: Option<AgentOptions>,
}

/// The options of an agent.
#[derive(Debug, Clone, Args)]
// The argument that selects these options.
#[group(args = ["nodeid"])]
#[command(group(clap::ArgGroup::new("drivers").required(true).multiple(true).args(["driver", "plugins_registry"])))]
pub struct AgentOptions {
    /// Name of this node: the agent's name at the hub, and the value of the proxy's --nodeid
    #[arg(long, value_name = "NAME")]
    pub nodeid: NodeId,

    /// Address of a hub: quic://HOST:PORT, wss://HOST:PORT, ws://HOST:PORT or unix:///PATH (ports 10001 for quic, else
    /// 10000). May be repeated: one at a time is connected. Addresses of one scheme are equal and tried in random order;
    /// schemes are tried in the order given
    #[arg(long, value_name = "URL", required = true)]
    pub hub: Vec<Address>,

    /// Failback between those addresses.
    #[command(flatten)]
    pub failback: FailbackOptions,

    /// The link costs money by the byte, or wakes a radio: websockets are preferred to QUIC and pinged every 4 minutes while no
    /// call waits, in place of every 50 s, and preferred addresses are not tried while another one is in use. A reverse proxy or
    /// load balancer before the hub must allow a websocket to be idle for longer. A hub then takes up to 10 minutes to notice
    /// that this node is down, unless a call waits for it
    #[arg(long, conflicts_with = "failback_interval")]
    pub metered: bool,

    /// Directory for state that survives a restart, created if missing. Without it, only the clock distinguishes a restarted
    /// proxy from its predecessor, and the agent does not renew the certificate of --tls-cert, which needs a hub with
    /// --node-signer
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Driver and its socket, as NAME=unix:///PATH; may be repeated
    #[arg(long, value_name = "NAME=URL")]
    pub driver: Vec<DriverAt>,

    /// Directory in which drivers register as with kubelet. Use a directory that kubelet does not watch; otherwise
    /// both answer the registrars
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
    pub kubelet_sockets: KubeletSocketOptions,

    /// Maximum duration of one call at a driver, even while its caller waits; then the call is cancelled (ms, s, m, h; at least
    /// 1s). Raise it for drivers with longer operations, which would otherwise restart without end
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration_within(MIN_DRIVER_TIMEOUT, MAX_DURATION))]
    pub driver_timeout: Duration,

    /// Maximum wait of a request for another operation on the same volume, before it fails with ABORTED; never longer than its
    /// deadline (ms, s, m; at most 1m; 0s: no wait)
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration_within(Duration::ZERO, MAX_QUEUE_TIMEOUT))]
    pub operation_queue_timeout: Duration,

    /// Calls to allow in addition to the rules of the hub, in the form of its --allow, as in
    /// csi-proxy=edge-1:hostpath.csi.edge; may be repeated, all other calls are refused. Without any rule, the hub decides
    #[arg(long, value_name = "FROM=TO:DRIVER", value_delimiter = ',')]
    pub allow: Vec<AllowRule>,

    /// Certificates and tokens.
    #[command(flatten)]
    pub security: ClientSecurity,

    /// Address for /livez, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http_endpoint: Option<SocketAddr>,

    /// Maximum wait after SIGTERM for open calls and for operations of drivers (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}
