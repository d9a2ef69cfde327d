//! Certificate revocation lists from a PEM file.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use webpki::{BorrowedCertRevocationList, CertRevocationList, EndEntityCert};

use super::der;
use super::identity::{Pem, certificates};
use super::{TlsError, provider};

/// Maximum number of bytes of all lists in a file. Each handshake verifies the signature of the list that it needs.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The lists of one file.
pub(crate) struct RevocationLists {
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// The serial numbers of the revoked certificates of all authorities, as certificates encode them.
    #[cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only links need it"))]
    serials: HashSet<Box<[u8]>>,
    next_update: Option<SystemTime>,
}

impl RevocationLists {
    /// Reads the lists, and verifies those of the given authorities. The others are verified by the certificate of their
    /// authority when a peer presents it: they may be of intermediate authorities.
    pub(super) fn parse(lists: &Pem<'_>, authorities: &Pem<'_>) -> Result<Self, TlsError> {
        let authorities = certificates(authorities)?;
        let bad = |cause: String| TlsError::BadRevocationList {
            from: lists.from.to_owned(),
            max: MAX_BYTES,
            cause,
        };
        let found =
            CertificateRevocationListDer::pem_slice_iter(lists.text)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| TlsError::Pem { from: lists.from.to_owned(), cause: error.to_string() })?;
        if found.is_empty() {
            return Err(TlsError::NoRevocationList { from: lists.from.to_owned() });
        }
        let bytes: usize = found.iter().map(|list| list.len()).sum();
        if bytes > MAX_BYTES {
            return Err(bad(format!("the file has {bytes} bytes of them")));
        }
        let (mut serials, mut next_update) = (HashSet::new(), None);
        for list in &found {
            let parsed =
                BorrowedCertRevocationList::from_der(list).map_err(|error| bad(format!("{error:?}")))?;
            for revoked in &parsed {
                let revoked = revoked.map_err(|error| bad(format!("{error:?}")))?;
                serials.insert(revoked.serial_number.into());
            }
            let parts = der::RevocationList::read(list).ok_or_else(|| bad("BadDer".to_owned()))?;
            check_signature(&CertRevocationList::from(parsed), &parts, &authorities)
                .map_err(|cause| bad(cause.to_owned()))?;
            let end = parts.next_update.map(Duration::from_secs);
            let end = end.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
            // The first list to be replaced counts.
            next_update = [next_update, end].into_iter().flatten().min();
        }
        Ok(Self { lists: found, serials, next_update })
    }

    /// The lists in DER form.
    pub(super) fn lists(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.lists
    }

    /// Whether a list has the serial number of one of these certificates. Its authority may be another one.
    #[cfg(feature = "runtime")]
    pub(super) fn may_revoke(&self, chain: &[CertificateDer<'_>]) -> bool {
        chain.iter().any(|certificate| {
            EndEntityCert::try_from(certificate).is_ok_and(|parsed| self.serials.contains(parsed.serial()))
        })
    }

    /// When the first of the lists should have been replaced.
    pub(super) const fn next_update(&self) -> Option<SystemTime> {
        self.next_update
    }
}

/// Checks the signature of a list, if an authority has the name of its issuer.
fn check_signature(
    list: &CertRevocationList<'_>,
    parts: &der::RevocationList<'_>,
    authorities: &[CertificateDer<'_>],
) -> Result<(), &'static str> {
    let algorithms = provider().signature_verification_algorithms;
    let parsed = authorities.iter().filter_map(|authority| EndEntityCert::try_from(authority).ok());
    let mut issuers = parsed.filter(|authority| authority.subject() == list.issuer());
    let Some(issuer) = issuers.next() else { return Ok(()) };
    let same_key =
        |other: &EndEntityCert<'_>| other.subject_public_key_info() == issuer.subject_public_key_info();
    if !issuers.all(|other| same_key(&other)) {
        // The library that verifies certificates finds lists by the name of their issuer only.
        return Err(
            "authorities with different keys have the name of its issuer; expected one name for each key",
        );
    }
    let mut matching = algorithms.all.iter().filter(|one| one.signature_alg_id().as_ref() == parts.algorithm);
    if matching.any(|one| issuer.verify_signature(*one, parts.body, parts.signature).is_ok()) {
        return Ok(());
    }
    Err("the authority with the name of its issuer has not signed it")
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
        KeyPair, RevokedCertParams,
    };

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn authority(name: &str) -> Issuer {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn list(issuer: &Issuer, serials: &[u8], next_update: i32) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: vec![*serial].into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(next_update, 1, 1),
            crl_number: vec![1].into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(issuer).unwrap().pem().unwrap()
    }

    fn parse(lists: &str, authorities: &str) -> Result<RevocationLists, TlsError> {
        let (lists, authorities) = (lists.as_bytes(), authorities.as_bytes());
        RevocationLists::parse(&Pem { text: lists, from: "lists" }, &Pem { text: authorities, from: "CAs" })
    }

    #[test]
    fn reads_all_lists_of_a_file() {
        let (one, other) = (authority("one"), authority("other"));
        let text = list(&one, &[3, 4], 2040) + &list(&other, &[5], 2035);
        // The second one may be of an intermediate authority.
        let lists = parse(&text, &one.pem()).unwrap();
        assert_eq!((lists.lists().len(), lists.serials.len()), (2, 3));
        assert_eq!(lists.next_update(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(2_051_222_400)));
    }

    #[test]
    fn rejects_lists_that_cannot_be_used() {
        let (one, forger) = (authority("one"), authority("one"));
        let cut = list(&one, &[], 2040).replacen("MI", "AA", 1);
        for (text, expected) in [
            (String::new(), "no revocation list in lists"),
            (one.pem(), "no revocation list in lists"),
            (cut, "cannot be used"),
            (list(&forger, &[3], 2040), "has not signed it"),
            (list(&one, &[], 2040) + &list(&forger, &[3], 2040), "has not signed it"),
        ] {
            let error = parse(&text, &one.pem()).err().unwrap().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let both = one.pem() + &forger.pem();
        let error = parse(&list(&one, &[], 2040), &both).err().unwrap().to_string();
        assert!(error.contains("different keys"), "{error}");
        parse(&list(&one, &[], 2040), &(one.pem() + &one.pem())).unwrap();
    }

    #[test]
    fn damaged_lists_never_panic() {
        let one = authority("one");
        let good = CertificateRevocationListDer::from_pem_slice(list(&one, &[3], 2040).as_bytes()).unwrap();
        for at in 0..good.len() {
            let mut damaged = good.to_vec();
            let _ = der::RevocationList::read(&damaged[..at]);
            damaged[at] ^= 0x21;
            let _ = der::RevocationList::read(&damaged);
        }
    }
}
