//! Authentication of the ends of a link: by certificates, by tokens, by the unix socket, or, with `--insecure`,
//! none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edge_transport::reload::FileWatch;
use edge_transport::tls::{ClientAuth, ServerTls, TlsPaths};
use edge_transport::token::TokenFile;

use crate::process::Fatal;

/// How often files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The security options of the clients: the agent and the proxy.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClientSecurity {
    /// PEM file with this peer's certificate chain; its name is the peer's name at the hub
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the authorities that must have signed the hub's certificate
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// File with nothing but a token that proves this peer's name to the hub, instead of --tls-cert. Read again for each
    /// connection
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_cert", "tls_key"])]
    pub token_file: Option<PathBuf>,

    /// Use ws:// and quic:// without verifying the hub and without authenticating this peer: for tests only
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    pub insecure: bool,
}

impl ClientSecurity {
    /// Returns the files with the certificate and the authorities that the options name, if any.
    ///
    /// # Errors
    /// If `--tls-ca` is given without a certificate and without a token.
    pub fn paths(&self) -> Result<Option<TlsPaths>, Fatal> {
        let Some(authorities) = &self.tls_ca else { return Ok(None) };
        let mut paths = TlsPaths::default().with_authorities(authorities);
        match (&self.tls_cert, &self.tls_key, &self.token_file) {
            (Some(certificate), Some(key), _) => paths = paths.with_certificate(certificate, key),
            (_, _, Some(_)) => {}
            _ => {
                return Err(Fatal::Input(
                    "--tls-ca verifies the hub, but this peer cannot authenticate: give --tls-cert and --tls-key, or \
                     --token-file"
                        .to_owned(),
                ));
            }
        }
        Ok(Some(paths))
    }

    /// Returns the one file with a renewed certificate and its key, if the options name a certificate that can be renewed.
    pub fn renewed(&self, path: &Path) -> Option<TlsPaths> {
        let (authorities, _) = self.tls_ca.as_ref().zip(self.tls_cert.as_ref())?;
        Some(TlsPaths::default().with_certificate(path, path).with_authorities(authorities))
    }
}

/// The security options of the hub.
#[derive(Debug, Clone, clap::Args)]
pub struct HubSecurity {
    /// PEM file with the hub's certificate chain
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the authorities that must have signed the peers' certificates. With --tokens a peer may use a token instead
    /// of a certificate; with --tokens alone every peer must use one
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub client_ca: Option<PathBuf>,

    /// PEM file with the certificate revocation lists of the authorities in --client-ca and of their intermediate authorities.
    /// Every authority needs a list: a peer is refused whose certificate is revoked, or whose authority has none. Also ends open
    /// sessions; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    pub client_crl: Option<PathBuf>,

    /// File with the tokens of peers: in each line a peer's name, a space and the SHA-256 of its token in
    /// hexadecimal (printf %s TOKEN | sha256sum). A token also proves the names below its own
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub tokens: Option<PathBuf>,

    /// Accept peers of ws and quic listeners without authentication, under any name: for tests only
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    pub insecure: bool,
}

impl HubSecurity {
    /// Reads the certificates that the options name, if any. Files that cannot be used are no error: they are read again until
    /// they are valid.
    ///
    /// # Errors
    /// If the options do not authenticate peers.
    pub fn files(&self) -> Result<Option<ServerTls>, Fatal> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let mut paths = TlsPaths::default().with_certificate(certificate, key);
        let clients = match (&self.client_ca, &self.tokens) {
            (Some(_), None) => ClientAuth::Required,
            (Some(_), Some(_)) => ClientAuth::Optional,
            (None, Some(_)) => ClientAuth::None,
            (None, None) => {
                return Err(Fatal::Input(
                    "--tls-cert: peers must be authenticated: give --client-ca, --tokens, or both".to_owned(),
                ));
            }
        };
        if let Some(authorities) = &self.client_ca {
            paths = paths.with_authorities(authorities);
        }
        if let Some(lists) = &self.client_crl {
            paths = paths.with_revocation_lists(lists);
        }
        Ok(Some(ServerTls::open_when_valid(paths, clients)))
    }

    /// Opens the token file that the options name, if any. A file that cannot be used is no error: it is read again until it is
    /// valid.
    pub fn tokens(&self) -> Option<TokenFile> {
        self.tokens.as_ref().map(TokenFile::open_when_valid)
    }
}

/// Starts a task that checks the files for changes until the process ends.
pub fn spawn_reload(watch: &Arc<FileWatch>) {
    if !watch.is_empty() {
        tokio::spawn(Arc::clone(watch).run(RELOAD_INTERVAL));
    }
}
