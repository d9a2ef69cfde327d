//! The command line of `edge-csi-driver`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use csi_proto::DriverName;
use csi_proxy::{NodeId, SocketAddress};
use edge_transport::link::Address;

use super::decommission::ControlCommand;
use super::route::TopologyOptions;
#[cfg(feature = "kubernetes")]
use super::sweep::Sweep;
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::values::{duration, listen_address};

/// Serves a CSI socket in the cloud for a driver on a node at the edge. The Kubernetes sidecars use this socket.
///
/// The socket opens at once and stays open. While the hub or the node is unreachable, Probe returns ready=false, calls fail with
/// UNAVAILABLE, and the sidecars retry. A liveness probe of this container must therefore use /livez of --http-endpoint: the
/// sidecar livenessprobe, which calls Probe, would restart it while the edge is offline.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-csi-driver", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct CommandLine {
    /// A command instead of a new edge-csi-driver.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The options of edge-csi-driver itself.
    #[command(flatten)]
    pub options: Option<CsiDriverOptions>,
}

/// A command.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// A command to a running edge-csi-driver.
    #[command(flatten)]
    Control(ControlCommand),
    /// Report the volumes that are left over: compare the placements of --placements kubernetes with the PersistentVolumes and
    /// with the volumes on the nodes. Changes nothing; exits with 1 if something is left over
    #[cfg(feature = "kubernetes")]
    Sweep(Sweep),
}

/// The options of a proxy.
#[derive(Debug, Clone, Args)]
// The argument that selects these options.
#[group(args = ["drivername"])]
pub struct CsiDriverOptions {
    /// Name of the driver, as its GetPluginInfo returns it
    #[arg(long, value_name = "NAME", env = "CSI_DRIVERNAME")]
    pub drivername: DriverName,

    /// Socket for the sidecars (mode 0600). Not used with --route sockets
    #[arg(long, value_name = "URL", env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: SocketAddress,

    /// Address of a hub: unix:///PATH, quic://HOST:PORT, wss://HOST:PORT or ws://HOST:PORT (ports 10001 for quic, else
    /// 10000). May be repeated, or separated by commas, once for each hub: all are connected. A DNS name means all its
    /// addresses and is resolved again while the proxy runs
    #[arg(
        long,
        visible_alias = "kubeedge-endpoint",
        value_name = "URL",
        env = "KUBEEDGE_ENDPOINT",
        value_delimiter = ',',
        default_value = edge_csi_common::uplink::DEFAULT_HUB
    )]
    pub hub: Vec<Address>,

    /// How long after the node or the hub was lost an unsent call waits for it to reconnect; never longer than the call's
    /// deadline (ms, s, m, h; 0s: no wait). After this time, calls to the node fail with UNAVAILABLE at once and Probe returns
    /// ready=false
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub reconnect_grace: Duration,

    /// Node of the driver: every call goes there. With --route topology: the node of volumes without topology requirements
    #[arg(long, value_name = "NAME", env = "KUBE_NODE_NAME")]
    pub nodeid: Option<NodeId>,

    /// How the node of a call is selected; without it every call goes to --nodeid
    #[arg(long, value_enum, value_name = "MODE")]
    pub route: Option<Route>,

    /// Options of the routes to several nodes.
    #[command(flatten)]
    pub topology: TopologyOptions,

    /// With --route sockets: directory, created if missing, with a socket NODE/csi.sock (mode 0600) for each node
    #[arg(long, value_name = "DIR")]
    pub endpoint_dir: Option<PathBuf>,

    /// Where the placements of --route topology are
    #[arg(long, value_enum, value_name = "STORE", default_value_t)]
    pub placements: PlacementsOption,

    /// With --placements kubernetes: the API server, a kubeconfig file, or `in-cluster` for the service account of the pod. Its
    /// namespace is that of the objects
    #[arg(long, value_name = "FILE|in-cluster", default_value = "in-cluster")]
    pub kubeconfig: String,

    /// Directory for state that survives a restart and for the control socket of the commands; created if missing
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Certificates and tokens.
    #[command(flatten)]
    pub security: ClientSecurity,

    /// Address for /livez, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http_endpoint: Option<SocketAddr>,

    /// Maximum wait for open calls after SIGTERM (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}

/// How the node of a call is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Route {
    /// New volumes by their topology, existing ones by their placement; needs --state-dir
    Topology,
    /// One socket, and one set of sidecars, for each node; needs --endpoint-dir
    Sockets,
}

/// Where placements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PlacementsOption {
    /// A file in --state-dir, for one edge-csi-driver of the driver
    #[default]
    Redb,
    /// Objects at the API server of Kubernetes, for several: one is active by a Lease, the others answer Probe with ready=false.
    /// Needs --route topology and a build with the feature `kubernetes`
    Kubernetes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use edge_csi_common::process;

    #[test]
    fn parses_commands_and_options_separately() {
        let read = |line: &str| process::parse::<CommandLine>(line.split(' '));
        let (line, _) = read("edge-csi-driver decommission edge-2 --state-dir /state").unwrap();
        let Some(Command::Control(ControlCommand::Decommission(target))) = line.command else {
            unreachable!()
        };
        assert_eq!((target.node.as_str(), target.state_dir.to_str()), ("edge-2", Some("/state")));
        let (line, log) = read("edge-csi-driver --drivername a.b --nodeid edge-1 -v").unwrap();
        assert!(line.command.is_none() && line.options.is_some() && log.verbose == 1, "{line:?}");
        let (_, log) = read("edge-csi-driver recommission edge-2 --state-dir /state -vv").unwrap();
        assert_eq!(log.verbose, 2);
        for wrong in [
            "decommission",
            "decommission edge-2",
            "recommission ../x --state-dir /s",
            "forget edge-2",
            "repair pvc-1 --state-dir /s",
            "repair pvc-1 --absent --node edge-1 --state-dir /s",
        ] {
            assert!(read(&format!("edge-csi-driver {wrong}")).is_err(), "{wrong}");
        }
        let (line, _) = read("edge-csi-driver repair pvc-1 --node edge-2 --state-dir /s").unwrap();
        let Some(Command::Control(ControlCommand::Repair(repair))) = line.command else { unreachable!() };
        assert_eq!((repair.name.as_str(), repair.node.is_some(), repair.absent), ("pvc-1", true, false));
        #[cfg(feature = "kubernetes")]
        {
            let (line, _) = read("edge-csi-driver sweep --drivername a.b").unwrap();
            let Some(Command::Sweep(sweep)) = line.command else { unreachable!() };
            assert_eq!((sweep.drivername.as_str(), sweep.settle), ("a.b", Duration::from_secs(60)));
            assert!(read("edge-csi-driver sweep").is_err());
        }
        let missing = read("edge-csi-driver --nodeid edge-1").unwrap_err().to_string();
        assert!(missing.contains("--drivername"), "{missing}");
    }
}
