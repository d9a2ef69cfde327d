//! The dialing side.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};

use super::files::TlsFiles;
use super::insecure::AcceptAnyServer;
use super::renewable::RenewableFiles;
use super::{Identity, TlsError, TlsPaths, protocols, provider};
use crate::name::PeerId;

/// Creates the TLS configuration of a dialing end that verifies the server and presents the identity's certificate.
///
/// # Errors
/// If the identity has no authorities to verify the server with.
pub(super) fn client_config(identity: &Identity) -> Result<Arc<ClientConfig>, TlsError> {
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
    let mut config = match identity.and_then(Identity::resolver) {
        Some(resolver) => builder.with_client_cert_resolver(resolver),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols();
    config
}

/// The TLS settings of a dialing end: a fixed configuration, or one that is reloaded from files. Cheap to clone; all clones share
/// the files, which a [`FileWatch`](crate::reload::FileWatch) checks for changes.
#[derive(Debug, Clone)]
pub struct ClientTls {
    source: ClientSource,
    verifies: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum ClientSource {
    Fixed(Arc<ClientConfig>, Option<Identity>),
    Files(TlsFiles<ClientConfig>),
    Renewable(RenewableFiles),
}

impl ClientTls {
    /// Verifies the server and presents the identity's certificate.
    ///
    /// # Errors
    /// If the identity has no authorities to verify the server with.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        let source = ClientSource::Fixed(client_config(identity)?, Some(identity.clone()));
        Ok(Self { source, verifies: true })
    }

    /// Reads PEM files: the certificate chain to present, own certificate first, its private key, and the authorities that the
    /// server is verified with. Short for [`open`](Self::open) with all three.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do.
    pub fn from_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        authorities: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::open(TlsPaths::default().with_certificate(certificate, key).with_authorities(authorities))
    }

    /// Reads the files: verifies the server, and presents the certificate if there is one.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do. Authorities are required.
    pub fn open(paths: TlsPaths) -> Result<Self, TlsError> {
        let (files, outcome) = TlsFiles::client(paths);
        outcome.map(|()| Self { source: ClientSource::Files(files), verifies: true })
    }

    /// Uses files that may be missing or invalid for now: dialing fails until a [`FileWatch`](crate::reload::FileWatch) has
    /// found valid ones.
    #[must_use]
    pub fn open_when_valid(paths: TlsPaths) -> Self {
        Self { source: ClientSource::Files(TlsFiles::client(paths).0), verifies: true }
    }

    /// Uses the files of an end that renews its own certificate: those that it was given, and those in which it keeps the
    /// renewed certificate of this name. Either may be missing or invalid for now.
    ///
    /// The renewed certificate is used while it is valid for the name and ends later than the given one, or while the given one
    /// cannot be used. A renewed file that is missing or invalid is no error.
    #[must_use]
    pub fn renewable(given: TlsPaths, renewed: TlsPaths, name: PeerId) -> Self {
        let [given, renewed] = [given, renewed].map(|paths| TlsFiles::client(paths).0);
        RenewableFiles::new(given, renewed, name).into()
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
        let config = Arc::new(with_identity(builder, identity));
        Ok(Self { source: ClientSource::Fixed(config, identity.cloned()), verifies: false })
    }

    /// The configuration for the next attempt.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if it is read from files that were never valid.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        match &self.source {
            ClientSource::Fixed(config, _) => Ok(Arc::clone(config)),
            ClientSource::Files(files) => files.config(),
            ClientSource::Renewable(files) => files.current().config(),
        }
    }

    /// The identity for the next attempt; `None` in a custom configuration.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], if it is read from files that were never valid.
    pub fn identity(&self) -> Result<Option<Identity>, TlsError> {
        match &self.source {
            ClientSource::Fixed(_, identity) => Ok(identity.clone()),
            ClientSource::Files(files) => files.identity().map(Some),
            ClientSource::Renewable(files) => files.current().identity().map(Some),
        }
    }

    /// Whether the next attempt presents a certificate that this end has [renewed](Self::renewable).
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        matches!(&self.source, ClientSource::Renewable(files) if files.is_renewed())
    }

    /// Whether the server is verified.
    #[must_use]
    pub const fn verifies(&self) -> bool {
        self.verifies
    }

    pub(crate) const fn source(&self) -> &ClientSource {
        &self.source
    }
}

/// Uses a custom configuration, which must verify the server: the names of its certificate become the link's credentials.
impl From<Arc<ClientConfig>> for ClientTls {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self { source: ClientSource::Fixed(config, None), verifies: true }
    }
}

/// Uses the certificate that is valid longest.
impl From<RenewableFiles> for ClientTls {
    fn from(files: RenewableFiles) -> Self {
        Self { source: ClientSource::Renewable(files), verifies: true }
    }
}
