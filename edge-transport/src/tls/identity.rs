//! A certificate chain, its key, and the authorities that the other end is verified with.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::der::Body;
use super::names::peer_names;
use super::verifier::AuthoritiesId;
use super::{TlsError, provider};
use crate::name::PeerId;

/// The certificate of this end and the authorities that it trusts. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    pair: Option<Arc<CertifiedKey>>,
    roots: Arc<RootCertStore>,
    valid_from: Option<SystemTime>,
    expires: Option<SystemTime>,
    authorities_expire: Option<SystemTime>,
    authorities_id: AuthoritiesId,
}

/// PEM text and its origin.
pub(super) struct Pem<'a> {
    pub(super) text: &'a [u8],
    pub(super) from: &'a str,
}

impl Identity {
    /// Parses PEM text: the certificate chain (own certificate first), its private key, and the authorities of the other end.
    /// For files use [`ServerTls::open`](super::ServerTls::open) and [`ClientTls::open`](super::ClientTls::open).
    ///
    /// # Errors
    /// [`TlsError`], which names the argument and what to do.
    pub fn from_pem(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, TlsError> {
        let chain = Pem { text: chain, from: "the given chain" };
        let key = Pem { text: key, from: "the given key" };
        let authorities = Pem { text: authorities, from: "the given CA certificates" };
        Self::assemble(Some((chain, key)), Some(authorities))
    }

    /// Parses the PEM text of the other end's authorities, without a certificate: for a dialing end that proves its name by a
    /// [token](crate::token), or not at all.
    ///
    /// # Errors
    /// [`TlsError`], which names the argument and what to do.
    pub fn without_certificate(authorities: &[u8]) -> Result<Self, TlsError> {
        Self::assemble(None, Some(Pem { text: authorities, from: "the given CA certificates" }))
    }

    pub(super) fn assemble(
        pair: Option<(Pem<'_>, Pem<'_>)>,
        authorities: Option<Pem<'_>>,
    ) -> Result<Self, TlsError> {
        let mut identity = Self {
            pair: None,
            roots: Arc::new(RootCertStore::empty()),
            valid_from: None,
            expires: None,
            authorities_expire: None,
            authorities_id: AuthoritiesId::of(&[]),
        };
        if let Some(authorities) = authorities {
            let found = certificates(&authorities)?;
            // The latest expiry counts: older authorities may be kept for certificates that are still in use.
            identity.authorities_expire = found.iter().filter_map(expiry_of).max();
            identity.authorities_id = AuthoritiesId::of(&found);
            let mut roots = RootCertStore::empty();
            for authority in found {
                roots.add(authority).map_err(|error| TlsError::BadCertificate {
                    from: authorities.from.to_owned(),
                    cause: error.to_string(),
                })?;
            }
            identity.roots = Arc::new(roots);
        }
        if let Some((chain, key)) = pair {
            identity.set_pair(&chain, &key)?;
        }
        Ok(identity)
    }

    fn set_pair(&mut self, chain: &Pem<'_>, key: &Pem<'_>) -> Result<(), TlsError> {
        let (chain_from, key_from) = (chain.from.to_owned(), key.from.to_owned());
        let found = certificates(chain)?;
        let key = PrivateKeyDer::from_pem_slice(key.text).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoPrivateKey { from: key_from.clone() },
            error => TlsError::Pem { from: key_from.clone(), cause: error.to_string() },
        })?;
        self.valid_from = found.first().and_then(start_of);
        // The chain expires with the first of its certificates.
        self.expires = found.iter().filter_map(expiry_of).min();
        let pair = CertifiedKey::from_der(found, key, &provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::KeyMismatch { key: key_from.clone(), certificate: chain_from.clone() }
            }
            Error::InvalidCertificate(cause) => {
                TlsError::BadCertificate { from: chain_from.clone(), cause: format!("{cause:?}") }
            }
            error => TlsError::BadPrivateKey { from: key_from, cause: error.to_string() },
        })?;
        self.pair = Some(Arc::new(pair));
        // A certificate that is not yet valid is accepted: the clock of a host without a battery may be slow after a
        // start.
        match self.expires.map(|end| SystemTime::now().duration_since(end)) {
            Some(Ok(ago)) => Err(TlsError::Expired { from: chain_from, ago_seconds: ago.as_secs() }),
            _ => Ok(()),
        }
    }

    /// The names in the own certificate, as the other end reads them; empty without a certificate.
    #[must_use]
    pub fn names(&self) -> Vec<PeerId> {
        self.pair.as_ref().and_then(|pair| pair.cert.first()).map(peer_names).unwrap_or_default()
    }

    /// Whether the identity has a certificate.
    #[must_use]
    pub const fn has_certificate(&self) -> bool {
        self.pair.is_some()
    }

    /// When the own certificate begins to be valid.
    #[must_use]
    pub const fn valid_from(&self) -> Option<SystemTime> {
        self.valid_from
    }

    /// When the first certificate of the own chain expires.
    #[must_use]
    pub const fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// When the last of the authorities expires.
    #[must_use]
    pub const fn authorities_expire(&self) -> Option<SystemTime> {
        self.authorities_expire
    }

    /// What identifies the authorities.
    pub(super) const fn authorities_id(&self) -> AuthoritiesId {
        self.authorities_id
    }

    pub(super) fn roots(&self, peer: &'static str) -> Result<Arc<RootCertStore>, TlsError> {
        if self.roots.is_empty() {
            return Err(TlsError::NoRoots { peer });
        }
        Ok(Arc::clone(&self.roots))
    }

    /// Returns a resolver that presents the certificate, if there is one.
    pub(super) fn resolver(&self) -> Option<Arc<SingleCertAndKey>> {
        self.pair.as_ref().map(|pair| Arc::new(SingleCertAndKey::from(CertifiedKey::clone(pair))))
    }
}

/// When a certificate begins to be valid, if that is readable.
fn start_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let seconds = Body::read(certificate)?.not_before()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// When a certificate expires, if its expiry is readable.
pub(super) fn expiry_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let seconds = Body::read(certificate)?.not_after()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

impl fmt::Debug for Identity {
    // Must not contain the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("names", &self.names())
            .field("expires", &self.expires)
            .field("authorities", &self.roots.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn certificates(pem: &Pem<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem.text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem { from: pem.from.to_owned(), cause: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { from: pem.from.to_owned() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(until: (i32, u8)) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(vec!["edge-1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until.0, until.1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn error(chain: &str, key: &str, authorities: &str) -> TlsError {
        Identity::from_pem(chain.as_bytes(), key.as_bytes(), authorities.as_bytes()).unwrap_err()
    }

    #[test]
    fn distinguishes_invalid_material() {
        let (chain, key) = pair((2090, 1));
        let (old, old_key) = pair((2001, 1));
        let other = pair((2090, 1)).1;
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), chain.as_bytes()).unwrap();
        assert_eq!(identity.names(), [PeerId::new("edge-1").unwrap(),].to_vec());
        assert!(!format!("{identity:?}").contains("PRIVATE"));
        assert!(
            matches!(error("", &key, &chain), TlsError::NoCertificate { from } if from == "the given chain")
        );
        assert!(
            matches!(error(&chain, "", &chain), TlsError::NoPrivateKey { from } if from == "the given key")
        );
        assert!(matches!(error(&chain, &chain, &chain), TlsError::NoPrivateKey { .. }));
        assert!(
            matches!(error(&chain, &key, &key), TlsError::NoCertificate { from } if from == "the given CA certificates")
        );
        assert!(matches!(error(&chain, &other, &chain), TlsError::KeyMismatch { .. }));
        assert!(matches!(error(broken, &key, &chain), TlsError::BadCertificate { .. }));
        assert!(matches!(error(&chain, &key, broken), TlsError::BadCertificate { .. }));
        assert!(matches!(error("-----BEGIN CERTIFICATE-----\nAAAA", &key, &chain), TlsError::Pem { .. }));
        assert!(
            matches!(error(&old, &old_key, &chain), TlsError::Expired { ago_seconds, .. } if ago_seconds > 700_000_000)
        );
    }
}
