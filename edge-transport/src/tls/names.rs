//! The names in a certificate.

use rustls_pki_types::CertificateDer;

use super::der::Body;
#[cfg(feature = "runtime")]
use crate::link::PeerCertificate;
use crate::name::PeerId;

/// Returns the names in a verified certificate: DNS names and URIs of the subject alternative name, in their order, then the
/// subject's common name. Names that are not a valid [`PeerId`], such as wildcards, are omitted. The caller must have verified
/// the certificate.
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
    if let Some(name) = Body::read(certificate).and_then(|body| body.common_name()) {
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

    #[test]
    fn returns_dns_names_uris_and_common_name() {
        let mut params =
            rcgen::CertificateParams::new(vec!["edge-1".to_owned(), "*.edge".to_owned()]).unwrap();
        params.subject_alt_names.push(rcgen::SanType::URI("spiffe://edge/node/1".try_into().unwrap()));
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:edge-1");
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let names = peer_names(certificate.der());
        assert_eq!(
            names.iter().map(PeerId::as_str).collect::<Vec<_>>(),
            ["edge-1", "spiffe://edge/node/1", "system:node:edge-1"]
        );
    }

    #[test]
    fn invalid_certificate_has_no_names() {
        assert!(peer_names(&CertificateDer::from(&b"garbage"[..])).is_empty());
    }
}
