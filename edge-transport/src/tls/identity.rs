//! A certificate chain, its key, and the authorities that the other end is verified with.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::der::Body;
use super::names::peer_names;
use super::{TlsError, provider};
use crate::name::PeerId;

/// Who this end is, and whom it believes. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    pair: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    expires: Option<SystemTime>,
}

impl Identity {
    /// Reads PEM files: the certificate chain (own certificate first), its private key, and the authorities of the other end.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do.
    pub fn from_pem_files(
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
        authorities: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        let read = |what, path: &Path| {
            let text =
                fs::read(path).map_err(|source| TlsError::Read { what, path: path.to_owned(), source })?;
            Ok((text, path.display().to_string()))
        };
        let chain = read("certificate chain", chain.as_ref())?;
        let key = read("private key", key.as_ref())?;
        let authorities = read("CA certificates", authorities.as_ref())?;
        Self::assemble(chain, key, Some(authorities))
    }

    /// Takes PEM text: the certificate chain (own certificate first), its private key, and the authorities of the other end.
    ///
    /// # Errors
    /// [`TlsError`], which names the argument and what to do.
    pub fn from_pem(chain: &[u8], key: &[u8], authorities: &[u8]) -> Result<Self, TlsError> {
        let named = |text: &[u8], name: &str| (text.to_vec(), name.to_owned());
        let authorities = named(authorities, "the given CA certificates");
        Self::assemble(named(chain, "the given chain"), named(key, "the given key"), Some(authorities))
    }

    /// Reads PEM files of an end that verifies nobody: a server that asks for no client certificate.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what to do.
    pub fn without_authorities(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, TlsError> {
        let read = |what, path: &Path| {
            let text =
                fs::read(path).map_err(|source| TlsError::Read { what, path: path.to_owned(), source })?;
            Ok((text, path.display().to_string()))
        };
        Self::assemble(read("certificate chain", chain.as_ref())?, read("private key", key.as_ref())?, None)
    }

    fn assemble(
        (chain, chain_from): (Vec<u8>, String),
        (key, key_from): (Vec<u8>, String),
        authorities: Option<(Vec<u8>, String)>,
    ) -> Result<Self, TlsError> {
        let chain = certificates(&chain, &chain_from)?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoPrivateKey { from: key_from.clone() },
            error => TlsError::Pem { from: key_from.clone(), cause: error.to_string() },
        })?;
        let expires = chain.first().and_then(|own| Body::read(own)).and_then(|body| body.not_after());
        let expires = expires.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let pair = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::KeyMismatch { key: key_from.clone(), certificate: chain_from.clone() }
            }
            Error::InvalidCertificate(cause) => {
                TlsError::BadCertificate { from: chain_from.clone(), cause: format!("{cause:?}") }
            }
            error => TlsError::BadPrivateKey { from: key_from, cause: error.to_string() },
        })?;
        let mut roots = RootCertStore::empty();
        if let Some((authorities, from)) = authorities {
            for authority in certificates(&authorities, &from)? {
                roots.add(authority).map_err(|error| TlsError::BadCertificate {
                    from: from.clone(),
                    cause: error.to_string(),
                })?;
            }
        }
        let identity = Self { pair: Arc::new(pair), roots: Arc::new(roots), expires };
        // A certificate of the future is let pass: hosts without a battery start with a clock that is behind.
        match identity.expires.map(|end| SystemTime::now().duration_since(end)) {
            Some(Ok(ago)) => Err(TlsError::Expired { from: chain_from, ago_seconds: ago.as_secs() }),
            _ => Ok(identity),
        }
    }

    /// The names in the own certificate, as the other end will read them.
    #[must_use]
    pub fn names(&self) -> Vec<PeerId> {
        self.pair.cert.first().map(peer_names).unwrap_or_default()
    }

    /// When the own certificate ends.
    #[must_use]
    pub const fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    pub(super) fn roots(&self, whom: &'static str) -> Result<Arc<RootCertStore>, TlsError> {
        if self.roots.is_empty() {
            return Err(TlsError::NoRoots { whom });
        }
        Ok(Arc::clone(&self.roots))
    }

    pub(super) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::new(SingleCertAndKey::from(CertifiedKey::clone(&self.pair)))
    }
}

impl fmt::Debug for Identity {
    // Nothing of the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("names", &self.names())
            .field("expires", &self.expires)
            .field("authorities", &self.roots.len())
            .finish_non_exhaustive()
    }
}

fn certificates(text: &[u8], from: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem { from: from.to_owned(), cause: error.to_string() })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { from: from.to_owned() });
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
    fn what_is_wrong_with_the_material_is_told_apart_and_named() {
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

    #[test]
    fn a_missing_file_is_named() {
        let error = Identity::from_pem_files("/nowhere/tls.crt", "k", "a").unwrap_err().to_string();
        assert!(error.contains("certificate chain /nowhere/tls.crt"), "{error}");
    }
}
