//! The command line of `edge-hub`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use csi_proxy::SocketAddress;
use edge_transport::PeerId;
use edge_transport::hub::Rule;

use edge_csi_common::security::HubSecurity;
use edge_csi_common::values::{duration, listen_address};

/// Passes CSI calls between proxies in the cloud and agents at the edge.
///
/// Listens on a unix socket always, and on a websocket (--ws) and QUIC (--quic) if asked to. Those two need certificates
/// (--tls-cert, --tls-key, and --client-ca or --tokens) or, for tests, --insecure. All of these files are read again when they
/// change.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-hub", version)]
pub struct HubOptions {
    /// Unix socket for peers on this host (mode 0600; root and the hub's own user may connect). If --ws or --quic is given and
    /// this is not, a default socket that cannot be made is a warning only [default: unix:///run/edge-csi/hub.sock]
    #[arg(long, value_name = "URL")]
    pub uds: Option<SocketAddress>,

    /// Address for websockets, PORT or IP:PORT; wss with certificates, ws with --insecure. Port 10000 if none is named; off if
    /// not given
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "10000", value_parser = listen_address)]
    pub ws: Option<SocketAddr>,

    /// Address for QUIC (UDP), PORT or IP:PORT. Port 10001 if none is named; off if not given
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "10001", value_parser = listen_address)]
    pub quic: Option<SocketAddr>,

    /// Address for /healthz, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http: Option<SocketAddr>,

    /// Certificates, or none.
    #[command(flatten)]
    pub security: HubSecurity,

    /// Peers that may make calls, by the names in their certificates; may be repeated. All others, nodes for one, can only be
    /// called. If neither this nor --allow is given, whoever offers no service itself may call
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "allow")]
    pub callers: Vec<PeerId>,

    /// Calls that may pass, by the names of who makes them and who gets them; may be repeated, and all others are refused. Each
    /// side is a name and what lies below it (csi-proxy), the beginning of names (edge-*), or all of them (*)
    #[arg(long, value_name = "FROM=TO", value_delimiter = ',')]
    pub allow: Vec<Rule>,

    /// Watch the API server of Kubernetes, and tell each node that asks which pods, claims, volumes and attachments are its own: a
    /// kubeconfig file, or `in-cluster` for the service account of the hub's pod
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "FILE|in-cluster")]
    pub kubeconfig: Option<super::KubernetesAccess>,

    /// Watch the API server of Kubernetes; needs a build with the feature `kubernetes`
    #[cfg(not(feature = "kubernetes"))]
    #[arg(long, value_name = "FILE|in-cluster", value_parser = no_kubernetes)]
    pub kubeconfig: Option<String>,

    /// Longest wait for open calls after SIGTERM (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}

#[cfg(not(feature = "kubernetes"))]
fn no_kubernetes(_: &str) -> Result<String, &'static str> {
    Err("this build knows no Kubernetes; build with --features kubernetes")
}
