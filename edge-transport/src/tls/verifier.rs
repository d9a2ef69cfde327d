//! Verifies the certificates of clients, at the handshake and again while their links are open.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "runtime")]
use std::time::SystemTime;

#[cfg(feature = "runtime")]
use rustls::CertificateError;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::revocation::RevocationLists;
use super::{TlsError, provider};
use crate::reload::Reloading;

/// Revocation lists that are reloaded from a file, and its path.
pub(crate) type ReloadedLists = Arc<Reloading<(PathBuf, RevocationLists), TlsError>>;

/// A digest of the authorities that have verified a certificate. Each session has two, so that an absent one takes no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AuthoritiesId(NonZeroU64);

impl AuthoritiesId {
    pub(super) fn of(authorities: &[CertificateDer<'_>]) -> Self {
        let each: Vec<u8> = authorities.iter().flat_map(|one| super::sha256(one)).collect();
        let [a, b, c, d, e, f, g, h, ..] = super::sha256(&each);
        Self(NonZeroU64::MIN | u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Verifies the certificates of clients with fixed authorities and the revocation lists in use. Without lists no certificate
/// is checked for revocation; with lists, a certificate is refused whose issuer has none.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    roots: Arc<RootCertStore>,
    #[cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only links need it"))]
    authorities: AuthoritiesId,
    is_optional: bool,
    hints: Vec<DistinguishedName>,
    lists: Option<ReloadedLists>,
    /// Verifies with the latest lists, and their generation.
    latest: Mutex<(u64, Arc<dyn ClientCertVerifier>)>,
}

impl ClientVerifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        authorities: AuthoritiesId,
        is_optional: bool,
        lists: Option<ReloadedLists>,
    ) -> Result<Self, TlsError> {
        let generation = generation(lists.as_ref());
        let latest = build(&roots, is_optional, lists.as_ref())?;
        let (hints, latest) = (roots.subjects(), Mutex::new((generation, latest)));
        Ok(Self { roots, authorities, is_optional, hints, lists, latest })
    }

    /// What identifies the authorities.
    #[cfg(feature = "runtime")]
    pub(super) const fn authorities(&self) -> AuthoritiesId {
        self.authorities
    }

    /// Returns the verifier with the latest lists.
    fn latest(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        // Read before the lists: lists that are replaced meanwhile are used from the next handshake on.
        let generation = generation(self.lists.as_ref());
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.0 != generation {
            let verifier = build(&self.roots, self.is_optional, self.lists.as_ref())
                .map_err(|error| Error::General(error.to_string()))?;
            *latest = (generation, verifier);
        }
        Ok(Arc::clone(&latest.1))
    }

    /// Checks that a chain which was verified once would be accepted again, as far as an authority decides that. Verifies the
    /// whole chain only if the authorities have changed since, or if a revocation list has one of its serial numbers.
    ///
    /// # Errors
    /// Returns why not. That the status of a certificate is unknown now, or that the clock is before its validity, does not
    /// count: nothing was withdrawn.
    #[cfg(feature = "runtime")]
    pub(super) fn verify_again(
        &self,
        chain: impl FnOnce() -> Vec<CertificateDer<'static>>,
        verified_by: Option<AuthoritiesId>,
        now: SystemTime,
    ) -> Result<(), String> {
        let lists = self.lists.as_ref().and_then(|lists| lists.current().ok());
        let is_known = verified_by == Some(self.authorities);
        if is_known && lists.is_none() {
            return Ok(());
        }
        let chain = chain();
        let Some((end_entity, intermediates)) = chain.split_first() else { return Ok(()) };
        if is_known && !lists.is_some_and(|lists| lists.1.may_revoke(&chain)) {
            return Ok(());
        }
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = UnixTime::since_unix_epoch(since);
        let verified =
            self.latest().and_then(|latest| latest.verify_client_cert(end_entity, intermediates, time));
        match verified {
            Ok(_)
            | Err(
                Error::InvalidCertRevocationList(_)
                | Error::General(_)
                | Error::InvalidCertificate(
                    CertificateError::UnknownRevocationStatus
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. },
                ),
            ) => Ok(()),
            Err(Error::InvalidCertificate(CertificateError::Revoked)) => {
                Err("its authority has revoked its certificate".to_owned())
            }
            Err(error) => Err(format!("the hub no longer accepts its certificate: {error}")),
        }
    }
}

/// Returns a number that rises when the lists are replaced.
pub(super) fn generation(lists: Option<&ReloadedLists>) -> u64 {
    lists.map_or(0, |lists| lists.generation())
}

fn build(
    roots: &Arc<RootCertStore>,
    is_optional: bool,
    lists: Option<&ReloadedLists>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider());
    // Without valid lists there is no configuration to offer, and so no handshake.
    if let Some(Ok(lists)) = lists.map(|lists| lists.current()) {
        builder = builder.with_crls(lists.1.lists().iter().cloned());
    }
    let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|error| TlsError::Config(error.to_string()))
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.is_optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.latest()?.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.latest()?.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.latest()?.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
