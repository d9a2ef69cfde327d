//! The command line of `edge-hub`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use edge_csi_common::allow::AllowRule;
use edge_csi_common::security::HubSecurity;
use edge_csi_common::uplink::DEFAULT_HUB;
use edge_csi_common::values::{ListenUrl, duration, listen_address};

/// Forwards CSI calls between proxies in the cloud and agents at the edge.
///
/// wss and quic listeners need certificates (--tls-cert, --tls-key, and --client-ca or --tokens) and rules (--allow). All of them
/// use the same certificate. Certificate and token files are reloaded when they change.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-hub", version)]
pub struct HubOptions {
    /// Address to listen on; may be repeated: unix:///PATH (mode 0600; root and the hub's own user may connect), wss://IP:PORT,
    /// quic://IP:PORT (UDP), or, with --insecure, ws://IP:PORT
    #[arg(long, value_name = "URL", default_value = DEFAULT_HUB)]
    pub listen: Vec<ListenUrl>,

    /// Address for /livez, /readyz, /metrics and a status page, PORT or IP:PORT; off if not given
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub http_endpoint: Option<SocketAddr>,

    /// Certificates and tokens.
    #[command(flatten)]
    pub security: HubSecurity,

    /// Calls to allow, by caller, node and driver, as in csi-proxy=edge-*:hostpath.csi.edge; may be repeated, all other calls
    /// are refused. A peer's name includes the names below it (csi-proxy), edge-* is a prefix, * is every name; @SERVICE in place
    /// of the driver allows another service of the nodes (@volumes). Required with wss and quic; without any rule, a peer that
    /// offers no service may call every other
    #[arg(long, value_name = "FROM=TO:DRIVER", value_delimiter = ',')]
    pub allow: Vec<AllowRule>,

    /// File with peers and certificates to refuse, also in open sessions; reloaded when it changes. One entry a line: a peer's
    /// name, which includes the names below it, or serial:HEX or sha256:HEX of a certificate
    #[arg(long, value_name = "FILE")]
    pub deny: Option<PathBuf>,

    /// Watch the API server of Kubernetes, and send each node its pods, claims, volumes and attachments on request: a kubeconfig
    /// file, or `in-cluster` for the service account of the hub's pod
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "FILE|in-cluster")]
    pub kubeconfig: Option<super::KubernetesAccess>,

    /// Watch the API server of Kubernetes; needs a build with the feature `kubernetes`
    #[cfg(not(feature = "kubernetes"))]
    #[arg(long, value_name = "FILE|in-cluster", value_parser = no_kubernetes)]
    pub kubeconfig: Option<String>,

    /// Maximum wait for open calls after SIGTERM (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}

#[cfg(not(feature = "kubernetes"))]
fn no_kubernetes(_: &str) -> Result<String, &'static str> {
    Err("this build has no Kubernetes support; build with --features kubernetes")
}
