//! The accepting side.

use std::path::Path;
use std::sync::Arc;

use rustls::version::TLS13;
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};

#[cfg(any(feature = "ws", feature = "quic"))]
use super::AuthoritiesId;
use super::files::ServerFiles;
use super::resumption::Sessions;
use super::verifier::{ClientVerifier, ReloadedLists};
use super::{Identity, TlsError, TlsPaths, protocols, provider};

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

/// The TLS settings of an accepting end: a fixed configuration, or one that is reloaded from files. Cheap to clone; all clones
/// share the files, which a [`FileWatch`](crate::reload::FileWatch) checks for changes.
///
/// New handshakes use the new configuration. Open links are not affected, except at a hub with
/// `HubBuilder::client_certificates`.
#[derive(Debug, Clone)]
pub struct ServerTls(Source);

#[derive(Debug, Clone)]
enum Source {
    Fixed(Arc<ServerConfig>),
    Files(ServerFiles),
}

impl ServerTls {
    /// Presents the identity's certificate.
    ///
    /// # Errors
    /// If the identity has no certificate, or has no authorities although clients must be verified.
    pub fn new(identity: &Identity, clients: ClientAuth) -> Result<Self, TlsError> {
        configuration(identity, clients, None).map(|(config, _)| config.into())
    }

    /// Reads PEM files: the certificate chain to present, own certificate first, its private key, and the authorities that must
    /// have issued the certificate of each client. Short for [`open`](Self::open) with all three and [`ClientAuth::Required`].
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do.
    pub fn from_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        authorities: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        let paths = TlsPaths::default().with_certificate(certificate, key).with_authorities(authorities);
        Self::open(paths, ClientAuth::Required)
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do. A certificate is required, and authorities unless `clients` is
    /// [`ClientAuth::None`].
    pub fn open(paths: TlsPaths, clients: ClientAuth) -> Result<Self, TlsError> {
        let (files, outcome) = ServerFiles::server(paths, clients);
        outcome.map(|()| Self(Source::Files(files)))
    }

    /// Uses files that may be missing or invalid for now: handshakes fail until a [`FileWatch`](crate::reload::FileWatch) has
    /// found valid ones.
    #[must_use]
    pub fn open_when_valid(paths: TlsPaths, clients: ClientAuth) -> Self {
        Self(Source::Files(ServerFiles::server(paths, clients).0))
    }

    /// The configuration for the next handshake.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if it is read from files that were never valid.
    pub fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        match &self.0 {
            Source::Fixed(config) => Ok(Arc::clone(config)),
            Source::Files(files) => files.config(),
        }
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

    /// The files, unless the configuration is fixed.
    pub(crate) const fn files(&self) -> Option<&ServerFiles> {
        match &self.0 {
            Source::Fixed(_) => None,
            Source::Files(files) => Some(files),
        }
    }
}

/// Uses a custom configuration.
impl From<Arc<ServerConfig>> for ServerTls {
    fn from(config: Arc<ServerConfig>) -> Self {
        Self(Source::Fixed(config))
    }
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
            Some(Arc::new(ClientVerifier::new(roots, authorities, is_optional, lists.clone())?))
        }
    };
    let sessions = Sessions::new(lists);
    let builder = builder()?;
    let builder = match verifier.clone() {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = protocols();
    config.session_storage = Arc::new(sessions);
    // A ticket is good for one resumption, which brings the next.
    config.send_tls13_tickets = 1;
    Ok((Arc::new(config), verifier))
}

pub(super) fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}
