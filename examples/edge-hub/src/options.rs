//! The command line of `edge-hub`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use edge_csi_common::allow::AllowRule;
#[cfg(feature = "kubernetes")]
use edge_csi_common::process::Fatal;
use edge_csi_common::security::HubSecurity;
use edge_csi_common::uplink::DEFAULT_HUB;
use edge_csi_common::values::{ListenUrl, duration, listen_address};

use super::drivers::DriverOption;

/// Forwards CSI calls between proxies in the cloud and agents at the edge.
///
/// wss and quic listeners need certificates (--tls-cert, --tls-key, and --client-ca or --tokens) and rules (--allow). All of them
/// use the same certificate. Certificate and token files are reloaded when they change.
#[derive(Debug, Clone, Parser)]
#[command(name = "edge-hub", version, args_conflicts_with_subcommands = true)]
pub struct HubOptions {
    /// Command to a running hub; without one, runs the hub.
    #[command(subcommand)]
    pub command: Option<super::Command>,

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

    /// Let nodes renew their certificates: the signer of Kubernetes that signs the requests that the hub has checked and
    /// approved, as in issuers.cert-manager.io/edge-csi.edge-csi. --client-ca must accept what it signs
    #[cfg(feature = "kubernetes")]
    #[arg(long, value_name = "SIGNER", requires_all = ["kubeconfig", "client_ca"], conflicts_with = "insecure")]
    pub node_signer: Option<super::NodeSigner>,

    /// State that kube-controller-manager signs for a --node-signer of kubernetes.io with an authority that the API server does
    /// not accept. Otherwise the hub could make itself an administrator of the cluster
    #[cfg(feature = "kubernetes")]
    #[arg(long, requires = "node_signer")]
    pub node_signer_has_own_ca: bool,

    /// Driver whose CSI socket (mode 0600) the hub serves itself, in place of an edge-csi-driver, as NAME=unix:///PATH: new
    /// volumes go to a node by their topology. With NAME@NODE=unix:///PATH every call goes to that node. May be repeated
    #[arg(long, value_name = "NAME=URL")]
    pub driver: Vec<DriverOption>,

    /// With --driver: topology key whose value is the node's name, so that no node can take a segment of another. The key that
    /// the driver reports, or another one for a driver without a topology [default: none]
    #[arg(long, value_name = "PREFIX/NAME", requires = "driver")]
    pub topology_key: Option<String>,

    /// With --driver: topology key whose segments several nodes may have, such as topology.kubernetes.io/zone. May be repeated,
    /// or separated by commas [default: none]
    #[arg(long, value_name = "PREFIX/NAME", value_delimiter = ',', requires = "driver")]
    pub shared_topology_key: Vec<String>,

    /// Directory for the state of each --driver and the socket of its commands (edge-csi-driver decommission NODE
    /// --state-dir DIR/NAME); created if missing
    #[arg(long, value_name = "DIR", default_value = "/var/lib/edge-csi/hub")]
    pub state_dir: PathBuf,

    /// Threads that carry calls. Each call costs more on several, so give more than one only where one has no time left
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: NonZeroUsize,

    /// Maximum wait for open calls after SIGTERM (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
}

#[cfg(feature = "kubernetes")]
impl HubOptions {
    /// Returns the signer of nodes' certificates and the file with the authorities that the hub accepts, if the options name
    /// them.
    ///
    /// # Errors
    /// If the signer may be one of the cluster itself.
    pub(super) fn signer(&self) -> Result<Option<(super::NodeSigner, PathBuf)>, Fatal> {
        let Some((signer, authorities)) = self.node_signer.as_ref().zip(self.security.client_ca.as_ref())
        else {
            return Ok(None);
        };
        if signer.is_built_in() && !self.node_signer_has_own_ca {
            return Err(Fatal::Input(format!(
                "--node-signer {signer}: kube-controller-manager signs for it, by default with the authority of the cluster, and \
                 who may approve that can become an administrator of the cluster; use a signer of cert-manager, or, if \
                 kube-controller-manager has another authority for it, give --node-signer-has-own-ca"
            )));
        }
        Ok(Some((signer.clone(), authorities.clone())))
    }
}

#[cfg(not(feature = "kubernetes"))]
fn no_kubernetes(_: &str) -> Result<String, &'static str> {
    Err("this build has no Kubernetes support; build with --features kubernetes")
}

#[cfg(all(test, feature = "kubernetes"))]
mod tests {
    use super::*;

    /// A hub that may approve for a signer of the cluster could mint itself any identity of the cluster.
    #[test]
    fn signer_of_the_cluster_needs_an_explicit_statement() {
        let parse = |more: &str| {
            let line = format!("edge-hub --tls-cert a --tls-key b --client-ca ca.pem --kubeconfig k {more}");
            HubOptions::try_parse_from(line.split_whitespace()).map(|options| options.signer())
        };
        assert!(matches!(parse("").unwrap(), Ok(None)));
        let other = parse("--node-signer issuers.cert-manager.io/a.b").unwrap().unwrap();
        assert_eq!(other.map(|(_, authorities)| authorities), Some("ca.pem".into()));
        let built_in = "--node-signer kubernetes.io/kube-apiserver-client";
        let error = parse(built_in).unwrap().unwrap_err().to_string();
        assert!(error.contains("--node-signer-has-own-ca"), "{error}");
        assert!(parse(&format!("{built_in} --node-signer-has-own-ca")).unwrap().unwrap().is_some());
        for line in [
            "edge-hub --kubeconfig k --node-signer example.com/a",
            "edge-hub --insecure --kubeconfig k --node-signer example.com/a",
            "edge-hub --tls-cert a --tls-key b --client-ca c --node-signer example.com/a",
        ] {
            assert!(HubOptions::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
