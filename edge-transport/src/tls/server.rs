//! The accepting side.

use std::sync::Arc;

use rustls::version::TLS13;
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};

#[cfg(any(feature = "ws", feature = "quic"))]
use super::AuthoritiesId;
use super::files::Source;
use super::verifier::{ClientVerifier, ReloadedLists};
use super::{Identity, TlsError, TlsFiles, provider};

/// Whether clients must present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientAuth {
    /// Clients must present a certificate issued by an authority of the [`Identity`].
    Required,
    /// Clients may present a certificate, which must be valid. Clients without one have no credentials.
    Optional,
    /// Clients are not asked for a certificate and have no credentials.
    None,
}

/// The TLS settings of an accepting end: a fixed or reloaded configuration. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerTls(Source<ServerConfig>);

impl ServerTls {
    /// The configuration for the next handshake.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if it is read from files that were never valid.
    pub fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.0.config()
    }

    /// The configuration for the next handshake, and the authorities that it verifies clients with; `None` in a custom
    /// configuration, or without any.
    #[cfg(any(feature = "ws", feature = "quic"))]
    pub(crate) fn current(&self) -> Result<(Arc<ServerConfig>, Option<AuthoritiesId>), TlsError> {
        match &self.0 {
            Source::Fixed(config) => Ok((Arc::clone(config), None)),
            Source::Files(files) => files.server_config(),
        }
    }
}

/// Uses a custom configuration.
impl From<Arc<ServerConfig>> for ServerTls {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self(Source::Fixed(config))
    }
}

/// Uses reloaded files.
impl From<TlsFiles<ServerConfig>> for ServerTls {
    fn from(files: TlsFiles<ServerConfig>) -> Self {
        Self(Source::Files(files))
    }
}

/// Creates the TLS configuration of an accepting end.
///
/// # Errors
/// If the identity has no certificate, or has no authorities although clients must be verified.
pub fn server_config(identity: &Identity, clients: ClientAuth) -> Result<ServerTls, TlsError> {
    configuration(identity, clients, None).map(|(config, _)| config.into())
}

/// A configuration, and what verifies the clients in it, if anything does.
pub(super) type Configuration = (Arc<ServerConfig>, Option<Arc<ClientVerifier>>);

pub(super) fn configuration(
    identity: &Identity,
    clients: ClientAuth,
    lists: Option<ReloadedLists>,
) -> Result<Configuration, TlsError> {
    let resolver = identity.resolver().ok_or(TlsError::NoIdentity)?;
    let verifier = match clients {
        ClientAuth::None => None,
        ClientAuth::Required | ClientAuth::Optional => {
            let (roots, authorities) = (identity.roots("clients")?, identity.authorities_id());
            let is_optional = clients == ClientAuth::Optional;
            Some(Arc::new(ClientVerifier::new(roots, authorities, is_optional, lists)?))
        }
    };
    let builder = builder()?;
    let builder = match verifier.clone() {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    // A client that resumes with a ticket presents no certificate: its access could outlast its certificate and
    // authority.
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), verifier))
}

pub(super) fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}
