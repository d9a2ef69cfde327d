//! How the ends of a link know each other: by certificates, by the unix socket, or, if asked for by name, not at all.

use std::path::PathBuf;

/// The client's side: the agent and the proxy.
#[derive(Debug, Clone, clap::Args)]
#[non_exhaustive]
pub struct ClientSecurity {
    /// PEM file with this peer's certificate chain; its name is the peer's name at the hub
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the authorities that the hub's certificate must come from
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,

    /// Use ws:// and quic:// without verifying the hub and without proving who this is: for tests only
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    pub insecure: bool,
}

/// The hub's side.
#[derive(Debug, Clone, clap::Args)]
#[non_exhaustive]
pub struct HubSecurity {
    /// PEM file with the hub's certificate chain
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "client_ca"])]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "client_ca"])]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the authorities that the peers' certificates must come from
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub client_ca: Option<PathBuf>,

    /// Let anyone who reaches --ws or --quic be whom they claim to be: for tests only
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    pub insecure: bool,
}
