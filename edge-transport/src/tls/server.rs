//! The accepting side.

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};

use super::{Identity, TlsError, provider};

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

/// The TLS configuration of an accepting end.
///
/// # Errors
/// If those who dial are to be verified and the identity has no authorities.
pub fn server_config(identity: &Identity, clients: ClientAuth) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = builder()?;
    let builder = match clients {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Required | ClientAuth::Optional => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(identity.roots("clients")?, provider());
            let verifier = match clients {
                ClientAuth::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|error| TlsError::Config(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(builder.with_cert_resolver(identity.resolver())))
}

pub(super) fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, TlsError> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Config(error.to_string()))
}
