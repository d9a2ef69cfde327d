//! A new key and the request for its certificate, and the check of the answer.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};

use edge_csi_common::certificates::{ChainError, MAX_CHAIN_BYTES, certificates, verify_client};
use edge_transport::PeerId;
use edge_transport::tls::{Identity, TlsError};

/// The maximum length of a common name in bytes (RFC 5280, ub-common-name).
const MAX_COMMON_NAME: usize = 64;

/// A key that has no certificate yet. Never leaves the node.
pub(super) struct NewKey {
    key: KeyPair,
    request: Vec<u8>,
}

/// The certificate in use and the authorities of the hub, as PEM.
pub(super) struct Present {
    pub(super) chain: Vec<u8>,
    pub(super) authorities: Vec<u8>,
    pub(super) expires: SystemTime,
}

/// Why an answer of the hub is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerRefused {
    /// The chain is too large.
    #[error("the hub sent a chain of {0} bytes; expected at most {MAX_CHAIN_BYTES}")]
    TooLarge(usize),
    /// The chain is no certificate of the key.
    #[error("the hub sent a certificate that cannot be used: {0}")]
    Pair(#[from] TlsError),
    /// The certificate has another name, or more than one.
    #[error("the hub sent a certificate for {found:?}; expected only {expected}")]
    Names {
        /// The names.
        found: Vec<String>,
        /// The name of this node.
        expected: PeerId,
    },
    /// The certificate does not end later.
    #[error("the hub sent a certificate that does not end later than the present one")]
    NotLater,
    /// Another authority has signed it.
    #[error("the hub sent a certificate that is not of the authority of the present one: {0}")]
    Authority(#[from] ChainError),
}

impl NewKey {
    /// Generates a key (ECDSA P-256), and a request for a certificate of this name.
    pub(super) fn generate(name: &PeerId) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new([name.as_str().to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        if name.as_str().len() <= MAX_COMMON_NAME {
            params.distinguished_name.push(DnType::CommonName, name.as_str());
        }
        let request = params.serialize_request(&key)?.der().to_vec();
        Ok(Self { key, request })
    }

    /// The request (PKCS #10 in DER).
    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// Checks the chain that the hub sent. Returns the text of a file with key and chain, and when the certificate ends.
    pub(super) fn accept(
        &self,
        chain: &str,
        name: &PeerId,
        present: &Present,
        now: SystemTime,
    ) -> Result<(String, SystemTime), AnswerRefused> {
        if chain.len() > MAX_CHAIN_BYTES {
            return Err(AnswerRefused::TooLarge(chain.len()));
        }
        let key = self.key.serialize_pem();
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), &present.authorities)?;
        let names = identity.names();
        if names.as_slice() != std::slice::from_ref(name) {
            let found = names.iter().map(ToString::to_string).collect();
            return Err(AnswerRefused::Names { found, expected: name.clone() });
        }
        let expires =
            identity.expires().filter(|end| *end > present.expires).ok_or(AnswerRefused::NotLater)?;
        // If the hub's authority has not signed the present certificate, its authority is not known here, and only the hub
        // can check the new one.
        let verify = |chain: &[u8], at| {
            verify_client(&certificates(chain).map_err(ChainError::from)?, &present.authorities, at)
        };
        // Also a present certificate that has just ended has its authority.
        let while_valid = now.min(present.expires - Duration::from_secs(1));
        if verify(&present.chain, while_valid).is_ok() {
            verify(chain.as_bytes(), now)?;
        }
        // One file: a power cut cannot leave the key of another certificate.
        Ok((format!("{key}{chain}"), expires))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, PublicKeyData as _};

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn name() -> PeerId {
        PeerId::new("edge-1").unwrap()
    }

    fn params(names: &[&str], year: i32) -> CertificateParams {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params
    }

    #[test]
    fn request_is_signed_for_the_name() {
        let key = NewKey::generate(&name()).unwrap();
        assert_ne!(
            key.key.subject_public_key_info(),
            NewKey::generate(&name()).unwrap().key.subject_public_key_info()
        );
        assert!(key.request().windows(6).any(|bytes| bytes == b"edge-1"));
        let long = PeerId::new(["a".repeat(60), "b".repeat(60)].join(".")).unwrap();
        assert!(NewKey::generate(&long).is_ok());
    }

    #[test]
    fn only_a_later_certificate_of_the_same_authority_is_used() {
        let (own, other) = (authority(), authority());
        let key = NewKey::generate(&name()).unwrap();
        let chain =
            |names: &[&str], year, by: &Authority| params(names, year).signed_by(&key.key, by).unwrap().pem();
        let old_key = KeyPair::generate().unwrap();
        let present = |by: &Authority| Present {
            chain: params(&["edge-1"], 2050).signed_by(&old_key, by).unwrap().pem().into_bytes(),
            authorities: own.pem().into_bytes(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(2_524_608_000),
        };
        let now = SystemTime::now();
        let accept = |chain: &str| key.accept(chain, &name(), &present(&own), now);

        let good = chain(&["edge-1"], 2060, &own);
        let (text, expires) = accept(&good).unwrap();
        assert!(expires > present(&own).expires && text.contains("PRIVATE KEY") && text.ends_with(&good));
        let read = Identity::from_pem(text.as_bytes(), text.as_bytes(), own.pem().as_bytes()).unwrap();
        assert_eq!(read.names(), [name()], "one file is a pair");

        for names in [&["edge-2"][..], &["edge-1", "csi-proxy"]] {
            let error = accept(&chain(names, 2060, &own)).unwrap_err();
            assert!(matches!(error, AnswerRefused::Names { .. }), "{error}");
        }
        assert!(matches!(accept(&chain(&["edge-1"], 2049, &own)), Err(AnswerRefused::NotLater)));
        assert!(matches!(accept(&chain(&["edge-1"], 2001, &own)), Err(AnswerRefused::Pair(_))), "expired");
        let foreign_key = params(&["edge-1"], 2060).signed_by(&old_key, &own).unwrap().pem();
        assert!(matches!(accept(&foreign_key), Err(AnswerRefused::Pair(_))));
        assert!(matches!(accept("nothing"), Err(AnswerRefused::Pair(_))));
        assert!(matches!(accept(&good.repeat(500)), Err(AnswerRefused::TooLarge(_))));

        let by_other = chain(&["edge-1"], 2060, &other);
        assert!(matches!(accept(&by_other), Err(AnswerRefused::Authority(_))));
        key.accept(&by_other, &name(), &present(&other), now).unwrap();
        let ended = Present {
            chain: params(&["edge-1"], 2001).signed_by(&old_key, &own).unwrap().pem().into_bytes(),
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(978_307_200),
            ..present(&own)
        };
        assert!(matches!(key.accept(&by_other, &name(), &ended, now), Err(AnswerRefused::Authority(_))));
    }
}
