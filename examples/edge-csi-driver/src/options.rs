//! The command line of `edge-csi-driver`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use csi_proto::DriverName;
use csi_proxy::{NodeId, SocketAddress};
use edge_transport::link::Address;

use super::decommission::Command;
use super::route::TopologyOptions;
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::uplink::RoadOptions;
use edge_csi_common::values::{duration, listen_address};

/// A CSI socket in the cloud whose driver is on a node at the edge: point the Kubernetes sidecars at it.
///
/// The socket is up at once and stays up; while the hub or the node cannot be reached, Probe answers ready=false and calls
/// end with UNAVAILABLE, after which the sidecars try again. A liveness probe of this container must therefore ask --http
/// /healthz; livenessprobe, which asks Probe, would restart it for as long as the edge is off.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-csi-driver", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    /// What the process that serves sockets is to do.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// How to serve sockets.
    #[command(flatten)]
    pub options: Option<CsiDriverOptions>,
}

/// The options of a proxy.
#[derive(Debug, Clone, Args)]
// By what it is seen that there are any.
#[group(args = ["drivername"])]
pub struct CsiDriverOptions {
    /// Name of the driver, as its GetPluginInfo gives it
    #[arg(long, value_name = "NAME", env = "CSI_DRIVERNAME")]
    pub drivername: DriverName,

    /// Socket for the sidecars (mode 0600). Not used with --route sockets
    #[arg(long, value_name = "URL", env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: SocketAddress,

    /// Address of the hub: unix:///PATH, quic://HOST:PORT, wss://HOST:PORT or ws://HOST:PORT (ports 10001 for quic, else
    /// 10000). May be given again, or hold several separated by commas: they are tried in order
    #[arg(
        long,
        visible_alias = "hub",
        value_name = "URL",
        env = "KUBEEDGE_ENDPOINT",
        value_delimiter = ',',
        default_value = edge_csi_common::uplink::DEFAULT_HUB
    )]
    pub kubeedge_endpoint: Vec<Address>,

    /// How those addresses are used.
    #[command(flatten)]
    pub roads: RoadOptions,

    /// How long after the node or the hub was lost a call that was not sent yet waits for it to be connected again; never longer
    /// than its caller waits (ms, s, m, h; 0s: not at all). A call to a node that has been away for longer ends with UNAVAILABLE
    /// at once. Probe changes when this time is over
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub reconnect_grace: Duration,

    /// Node that the driver is on: every call goes there. With --route topology: the node of volumes that may be anywhere
    #[arg(long, value_name = "NAME", env = "KUBE_NODE_NAME")]
    pub nodeid: Option<NodeId>,

    /// How the node of a call is chosen; without it every call goes to --nodeid
    #[arg(long, value_enum, value_name = "MODE")]
    pub route: Option<Route>,

    /// How topology chooses.
    #[command(flatten)]
    pub topology: TopologyOptions,

    /// With --route sockets: directory, made if missing, with a socket NODE/csi.sock (mode 0600) for each node
    #[arg(long, value_name = "DIR")]
    pub endpoint_dir: Option<PathBuf>,

    /// Directory for what is kept over a restart, made if missing, and for the socket of `decommission` and `recommission`
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Certificates, or none.
    #[command(flatten)]
    pub security: ClientSecurity,

    /// Address for /healthz, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http: Option<SocketAddr>,

    /// Longest wait for open calls after SIGTERM (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}

/// How the node of a call is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Route {
    /// New volumes by their topology, everything else by where it was made; needs --state-dir
    Topology,
    /// By the socket that a call comes in on, one for each node, for a set of sidecars for each node; needs --endpoint-dir
    Sockets,
}

#[cfg(test)]
mod tests {
    use super::*;
    use edge_csi_common::process;

    #[test]
    fn a_command_needs_no_option_of_the_proxy_and_the_proxy_needs_no_command() {
        let read = |line: &str| process::parse::<CommandLine>(line.split(' '));
        let (line, _) = read("edge-csi-driver decommission edge-2 --state-dir /state").unwrap();
        let Some(Command::Decommission(target)) = line.command else { unreachable!() };
        assert_eq!((target.node.as_str(), target.state_dir.to_str()), ("edge-2", Some("/state")));
        let (line, log) = read("edge-csi-driver --drivername a.b --nodeid edge-1 -v").unwrap();
        assert!(line.command.is_none() && line.options.is_some() && log.verbose == 1, "{line:?}");
        let (_, log) = read("edge-csi-driver recommission edge-2 --state-dir /state -vv").unwrap();
        assert_eq!(log.verbose, 2);
        for wrong in
            ["decommission", "decommission edge-2", "recommission ../x --state-dir /s", "forget edge-2"]
        {
            assert!(read(&format!("edge-csi-driver {wrong}")).is_err(), "{wrong}");
        }
        let missing = read("edge-csi-driver --nodeid edge-1").unwrap_err().to_string();
        assert!(missing.contains("--drivername"), "{missing}");
    }
}
