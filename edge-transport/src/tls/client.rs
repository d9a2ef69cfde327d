//! The dialling side.

use std::sync::Arc;

use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};

use super::insecure::AnyServer;
use super::{Identity, TlsError, provider};

/// The TLS configuration of a dialling end that verifies the server and shows the identity's certificate.
///
/// # Errors
/// If the identity has no authorities to verify the server with.
pub fn client_config(identity: &Identity) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = builder()?.with_root_certificates(identity.roots("the server")?);
    Ok(Arc::new(builder.with_client_cert_resolver(identity.resolver())))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}

/// What a dialler does about TLS: a configuration, and whether the server's certificate means anything under it.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    verifies: bool,
}

impl ClientTls {
    /// Verifies the server and shows the identity's certificate.
    ///
    /// # Errors
    /// If the identity has no authorities to verify the server with.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        Ok(Self { config: client_config(identity)?, verifies: true })
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
        let config = match identity {
            Some(identity) => builder.with_client_cert_resolver(identity.resolver()),
            None => builder.with_no_client_auth(),
        };
        Ok(Self { config: Arc::new(config), verifies: false })
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Arc<ClientConfig> {
        &self.config
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
        Self { config, verifies: true }
    }
}
