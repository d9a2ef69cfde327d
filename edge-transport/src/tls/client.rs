//! The dialling side.

use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};

use super::files::Source;
use super::insecure::AnyServer;
use super::{Identity, TlsError, TlsFiles, provider};

/// The TLS configuration of a dialling end that verifies the server and shows the identity's certificate.
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

/// What a dialler does about TLS: a configuration, which stays or follows files, and whether the server's certificate means
/// anything under it.
#[derive(Debug, Clone)]
pub struct ClientTls {
    source: Source<ClientConfig>,
    verifies: bool,
}

impl ClientTls {
    /// Verifies the server and shows the identity's certificate.
    ///
    /// # Errors
    /// If the identity has no authorities to verify the server with.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        Ok(client_config(identity)?.into())
    }

    /// Encrypts, but talks to whoever answers: for trials on one host only. Links have [`Credentials::None`] then. A given
    /// identity's certificate is still shown, to whoever that is.
    ///
    /// # Errors
    /// If the TLS library refuses the configuration.
    ///
    /// [`Credentials::None`]: crate::link::Credentials::None
    pub fn insecure(identity: Option<&Identity>) -> Result<Self, TlsError> {
        let builder =
            builder()?.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider())));
        Ok(Self { source: Source::Fixed(Arc::new(with_identity(builder, identity))), verifies: false })
    }

    /// The configuration for the next attempt.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.source.config()
    }

    /// Whether the server is verified.
    #[must_use]
    pub const fn verifies(&self) -> bool {
        self.verifies
    }
}

/// Takes a configuration of one's own, which must verify the server: its certificate's names become the link's credentials.
impl From<Arc<ClientConfig>> for ClientTls {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self { source: Source::Fixed(config), verifies: true }
    }
}

/// Follows the files: verifies the server, and shows the certificate if there is one.
impl From<TlsFiles<ClientConfig>> for ClientTls {
    fn from(files: TlsFiles<ClientConfig>) -> Self {
        Self { source: Source::Files(files), verifies: true }
    }
}
