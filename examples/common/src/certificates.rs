//! The certificates that nodes request from a hub, over its service [`SERVICE`].

use std::sync::Arc;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, UnixTime};

/// The messages that are generated from `proto/edge_csi/certificates/v1/certificates.proto`.
pub mod message {
    pub use crate::generated::certificates::*;
}

/// The name of the service of a hub with `--node-signer`.
pub const SERVICE: &str = "certificates";

/// The maximum length of a chain in PEM, in bytes.
pub const MAX_CHAIN_BYTES: usize = 64 * 1024;

/// A chain is not valid for a client of the authorities.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The chain or the authorities are not PEM.
    #[error("not valid PEM: {0}")]
    Pem(#[from] pem::Error),
    /// The chain has no certificate.
    #[error("the chain has no certificate")]
    Empty,
    /// An authority is invalid.
    #[error("an authority cannot be used: {0}")]
    Authority(rustls::Error),
    /// There are no authorities.
    #[error("the authorities cannot be used: {0}")]
    Authorities(#[from] VerifierBuilderError),
    /// No authority has signed the chain, or the chain is not valid now, or not for a client.
    #[error("the certificate is not valid for a client of these authorities: {0}")]
    Refused(rustls::Error),
}

/// Returns the certificates of a PEM text, in their order.
///
/// # Errors
/// If the text is not PEM.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(text).collect()
}

/// Checks that authorities, given as PEM, accept a chain, own certificate first, as that of a client at a time.
///
/// # Errors
/// If they do not.
pub fn verify_client(
    chain: &[CertificateDer<'_>],
    authorities: &[u8],
    now: SystemTime,
) -> Result<(), ChainError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(authorities)? {
        roots.add(authority).map_err(ChainError::Authority)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    let (own, intermediates) = chain.split_first().ok_or(ChainError::Empty)?;
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    verifier.verify_client_cert(own, intermediates, now).map_err(ChainError::Refused)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn only_a_client_of_the_authority_is_accepted() {
        let (one, other) = (authority(), authority());
        let signed = |by: &CertifiedIssuer<'static, KeyPair>, usage, until: i32| {
            let mut params = CertificateParams::new(vec!["edge-1".to_owned()]).unwrap();
            params.extended_key_usages = vec![usage];
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            vec![params.signed_by(&KeyPair::generate().unwrap(), by).unwrap().der().clone()]
        };
        let verify = |chain: &[_]| verify_client(chain, one.pem().as_bytes(), SystemTime::now());
        let (client, server) = (ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth);
        verify(&signed(&one, client.clone(), 2090)).unwrap();
        for bad in
            [signed(&other, client.clone(), 2090), signed(&one, server, 2090), signed(&one, client, 2001)]
        {
            assert!(matches!(verify(&bad), Err(ChainError::Refused(_))));
        }
        assert!(matches!(verify(&[]), Err(ChainError::Empty)));
    }
}
