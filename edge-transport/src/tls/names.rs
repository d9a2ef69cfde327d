//! The names in a certificate.

use rustls_pki_types::CertificateDer;

use super::der::Body;
#[cfg(feature = "runtime")]
use crate::link::PeerCertificate;
use crate::name::PeerId;

/// Returns the names in a verified certificate: the DNS names and URIs of the subject alternative name, in their order. The
/// subject's common name counts only in a certificate without a subject alternative name, because an authority may check
/// only one of the two (RFC 6125 section 6.4.4). Names that are not a valid [`PeerId`], such as wildcards, are omitted. The
/// caller must have verified the certificate.
#[must_use]
pub fn peer_names(certificate: &CertificateDer<'_>) -> Vec<PeerId> {
    let mut names = Vec::new();
    let mut add = |name: &str| {
        if let Ok(name) = PeerId::new(name)
            && !names.contains(&name)
        {
            names.push(name);
        }
    };
    if let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) {
        parsed.valid_dns_names().for_each(&mut add);
        parsed.valid_uri_names().for_each(&mut add);
    }
    if let Some(body) = Body::read(certificate)
        && body.has_alternative_name() == Some(false)
        && let Some(name) = body.common_name()
    {
        add(name);
    }
    names
}

/// Returns the names, serial number, SHA-256 and expiry of a verified certificate, for [`Credentials::Certificate`] of a custom
/// link. The caller must have verified the certificate.
///
/// [`Credentials::Certificate`]: crate::link::Credentials::Certificate
#[cfg(feature = "runtime")]
#[must_use]
pub fn peer_certificate(certificate: &CertificateDer<'_>) -> PeerCertificate {
    let mut own = PeerCertificate::from(peer_names(certificate));
    own.sha256 = super::sha256(certificate);
    if let Some(body) = Body::read(certificate) {
        own.serial = body.serial().to_owned();
        own.expires = super::identity::expiry_of(certificate);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(params: &rcgen::CertificateParams) -> Vec<String> {
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        peer_names(certificate.der()).iter().map(ToString::to_string).collect()
    }

    /// Only a certificate without a subject alternative name, of whatever kind, proves its common name.
    #[test]
    fn common_name_counts_without_alternative_names_only() {
        let with = |alternative: &[rcgen::SanType]| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:edge-1");
            params.subject_alt_names = alternative.to_vec();
            names(&params)
        };
        let dns = |name: &str| rcgen::SanType::DnsName(name.try_into().unwrap());
        let uri = rcgen::SanType::URI("spiffe://edge/node/1".try_into().unwrap());
        assert_eq!(with(&[]), ["system:node:edge-1"]);
        assert_eq!(with(&[dns("edge-1"), dns("*.edge"), uri]), ["edge-1", "spiffe://edge/node/1"]);
        assert_eq!(with(&[dns("*.edge")]), [""; 0]);
        assert_eq!(with(&[rcgen::SanType::IpAddress([127, 0, 0, 1].into())]), [""; 0]);
    }

    #[test]
    fn invalid_certificate_has_no_names() {
        assert!(peer_names(&CertificateDer::from(&b"garbage"[..])).is_empty());
    }
}
