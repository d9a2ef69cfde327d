//! The dialing side.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};

use super::files::Source;
use super::insecure::AcceptAnyServer;
use super::{Identity, RenewableFiles, TlsError, TlsFiles, provider};

/// Creates the TLS configuration of a dialing end that verifies the server and presents the identity's certificate.
///
/// # Errors
/// If the identity has no authorities to verify the server with.
pub fn client_config(identity: &Identity) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = builder()?.with_root_certificates(identity.roots("the server")?);
    Ok(Arc::new(with_identity(builder, Some(identity))))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}

fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&Identity>,
) -> ClientConfig {
    match identity.and_then(Identity::resolver) {
        Some(resolver) => builder.with_client_cert_resolver(resolver),
        None => builder.with_no_client_auth(),
    }
}

/// The TLS settings of a dialer: a fixed or reloaded configuration, and whether it verifies the server.
#[derive(Debug, Clone)]
pub struct ClientTls {
    source: ClientSource,
    verifies: bool,
}

#[derive(Debug, Clone)]
enum ClientSource {
    One(Source<ClientConfig>),
    Renewable(RenewableFiles),
}

impl ClientTls {
    /// Verifies the server and presents the identity's certificate.
    ///
    /// # Errors
    /// If the identity has no authorities to verify the server with.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        Ok(client_config(identity)?.into())
    }

    /// Encrypts without verifying the server: for experiments on one host only. Links have [`Credentials::None`]. The
    /// certificate of a given identity is still presented, to an unverified server.
    ///
    /// # Errors
    /// If the TLS library rejects the configuration.
    ///
    /// [`Credentials::None`]: crate::link::Credentials::None
    pub fn insecure(identity: Option<&Identity>) -> Result<Self, TlsError> {
        let builder =
            builder()?.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyServer(provider())));
        let config = Source::Fixed(Arc::new(with_identity(builder, identity)));
        Ok(Self { source: ClientSource::One(config), verifies: false })
    }

    /// The configuration for the next attempt.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if it is read from files that were never valid.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        match &self.source {
            ClientSource::One(source) => source.config(),
            ClientSource::Renewable(files) => files.current().config(),
        }
    }

    /// Whether the server is verified.
    #[must_use]
    pub const fn verifies(&self) -> bool {
        self.verifies
    }
}

/// Uses a custom configuration, which must verify the server: the names of its certificate become the link's credentials.
impl From<Arc<ClientConfig>> for ClientTls {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self { source: ClientSource::One(Source::Fixed(config)), verifies: true }
    }
}

/// Uses reloaded files: verifies the server, and presents the certificate if there is one.
impl From<TlsFiles<ClientConfig>> for ClientTls {
    fn from(files: TlsFiles<ClientConfig>) -> Self {
        Self { source: ClientSource::One(Source::Files(files)), verifies: true }
    }
}

/// Uses the certificate that is valid longest.
impl From<RenewableFiles> for ClientTls {
    fn from(files: RenewableFiles) -> Self {
        Self { source: ClientSource::Renewable(files), verifies: true }
    }
}
