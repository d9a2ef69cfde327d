//! The accepting side.

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};

use super::files::Source;
use super::{Identity, TlsError, TlsFiles, provider};

/// Whether those who dial must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientAuth {
    /// They must, and an authority of the [`Identity`] must have issued it.
    Required,
    /// They may; one that is shown must be good. Who shows none has no credentials.
    Optional,
    /// They are not asked: nobody who dials has credentials.
    None,
}

/// What an accepting end does about TLS: a configuration, which stays or follows files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerTls(Source<ServerConfig>);

impl ServerTls {
    /// The configuration for the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.config()
    }
}

/// Takes a configuration of one's own.
impl From<Arc<ServerConfig>> for ServerTls {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self(Source::Fixed(config))
    }
}

/// Follows the files.
impl From<TlsFiles<ServerConfig>> for ServerTls {
    fn from(files: TlsFiles<ServerConfig>) -> Self {
        Self(Source::Files(files))
    }
}

/// The TLS configuration of an accepting end.
///
/// # Errors
/// If the identity has no certificate, or those who dial are to be verified and it has no authorities.
pub fn server_config(identity: &Identity, clients: ClientAuth) -> Result<ServerTls, TlsError> {
    configuration(identity, clients).map(ServerTls::from)
}

pub(super) fn configuration(identity: &Identity, clients: ClientAuth) -> Result<Arc<ServerConfig>, TlsError> {
    let resolver = identity.resolver().ok_or(TlsError::NoIdentity)?;
    let builder = builder()?;
    let builder = match clients {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Required | ClientAuth::Optional => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(identity.roots("clients")?, provider());
            let optional = clients == ClientAuth::Optional;
            let verifier = if optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build().map_err(|error| TlsError::Config(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(resolver);
    // A client that comes back with a ticket shows no certificate: it would outlive its own, and its authority.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

pub(super) fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}
