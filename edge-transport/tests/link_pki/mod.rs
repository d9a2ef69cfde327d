//! Certificates for tests.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use edge_transport::link::{Credentials, Link};
use edge_transport::tls::Identity;
use rcgen::{
    CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
    KeyIdMethod, KeyPair, RevokedCertParams, SanType,
};

/// A private certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Certificates that an issued one needs to be verified.
    chain: String,
}

/// A certificate and its key as PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        // Each authority has a separate name, so that an unknown issuer is not reported as a bad signature.
        Self::named(&format!("authority {:02x?}", &key.public_key_raw()[..8]))
    }

    /// Creates an authority that may have the name of another one.
    pub(crate) fn named(name: &str) -> Self {
        let issuer = CertifiedIssuer::self_signed(Self::params(name), KeyPair::generate().unwrap()).unwrap();
        Self { issuer, chain: String::new() }
    }

    /// Creates an authority whose certificate this one issues, with a serial number.
    pub(crate) fn intermediate(&self, serial: u8) -> Self {
        let mut params = Self::params("intermediate authority");
        params.serial_number = Some(vec![serial].into());
        let issuer = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.issuer).unwrap();
        let chain = issuer.pem();
        Self { issuer, chain }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// Returns a list, as PEM, that revokes the certificates with these serial numbers; `next_update` is a year.
    pub(crate) fn revoke(&self, serials: &[u8], next_update: i32) -> String {
        let long_ago = rcgen::date_time_ymd(2020, 1, 1);
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: vec![*serial].into(),
            revocation_time: long_ago,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: long_ago,
            next_update: rcgen::date_time_ymd(next_update, 1, 1),
            crl_number: vec![1].into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// Issues a certificate with a serial number.
    pub(crate) fn issue_numbered(&self, name: &str, serial: u8) -> Issued {
        self.issue_with(name, |params| params.serial_number = Some(vec![serial].into()))
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate that is valid until the given year, for a peer that is also reachable at 127.0.0.1.
    pub(crate) fn issue_until(&self, name: &str, year: i32) -> Issued {
        self.issue_with(name, |params| params.not_after = rcgen::date_time_ymd(year, 1, 1))
    }

    /// Issues a certificate that expires after `time`.
    pub(crate) fn issue_for(&self, name: &str, time: Duration) -> Issued {
        let end = (SystemTime::now() + time).duration_since(UNIX_EPOCH).unwrap();
        self.issue_with(name, |params| params.not_after = rcgen::date_time_ymd(1970, 1, 1) + end)
    }

    fn issue_with(&self, name: &str, set: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { certificate: certificate.pem() + &self.chain, key: key.serialize_pem() }
    }

    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_until(name, 2090)
    }

    /// Issues an identity that trusts this authority.
    pub(crate) fn identity(&self, name: &str) -> Identity {
        self.issue(name).trusting(self)
    }
}

impl Issued {
    pub(crate) fn trusting(&self, authority: &Authority) -> Identity {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes(), authority.pem().as_bytes())
            .unwrap()
    }
}

/// The names in the other end's certificate.
pub(crate) fn names(link: &Link) -> Vec<&str> {
    match link.credentials() {
        Credentials::Certificate(own) => own.names.iter().map(edge_transport::PeerId::as_str).collect(),
        _ => Vec::new(),
    }
}
