//! A certificate authority for tests, and PEM files signed by it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};

use crate::cluster::NODE;

/// An authority with its certificate in a file.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
    name: String,
}

/// A certificate, its key and the authority to trust, as files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Files {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// The certificate of the authority that signed the chain.
    pub authority: PathBuf,
}

impl Files {
    /// Copies the certificate and the key to the files of `other`.
    ///
    /// # Panics
    /// If the files cannot be copied.
    pub fn install_as(&self, other: &Self) {
        fs::copy(&self.certificate, &other.certificate).expect("the certificate is copied");
        fs::copy(&self.key, &other.key).expect("the key is copied");
    }
}

impl Authority {
    /// Creates an authority that writes all files to `directory`.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn new(directory: &Path, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(Vec::new()).expect("no names");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(parameters, key).expect("a certificate");
        fs::write(directory.join(format!("{name}.pem")), issuer.pem()).expect("the directory can be written");
        Self { issuer, directory: directory.to_owned(), name: name.to_owned() }
    }

    /// Signs a certificate that is valid for `names`, DNS names or IP addresses.
    ///
    /// # Panics
    /// If a name is not valid in a certificate or the files cannot be written.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Files {
        self.sign("", names, 1975..4096)
    }

    /// Signs a certificate as [`issue`](Self::issue) does that is valid in these years only, and writes it to other files.
    ///
    /// # Panics
    /// As [`issue`](Self::issue).
    #[must_use]
    pub fn issue_for_years(&self, names: &[&str], years: Range<i32>) -> Files {
        self.sign(&format!("-{}-{}", years.start, years.end), names, years)
    }

    /// Signs a certificate as [`issue`](Self::issue) does with a serial number, and writes it to other files.
    ///
    /// # Panics
    /// As [`issue`](Self::issue).
    #[must_use]
    pub fn issue_numbered(&self, names: &[&str], serial: u64) -> Files {
        self.sign_with(&format!("-{serial}"), names, 1975..4096, Some(serial.into()))
    }

    /// Signs a list as PEM that revokes the certificates with these serial numbers.
    ///
    /// # Panics
    /// If the list cannot be signed.
    #[must_use]
    pub fn revoke(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let parameters = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        parameters.signed_by(&self.issuer).expect("a list").pem().expect("PEM")
    }

    fn sign(&self, suffix: &str, names: &[&str], years: Range<i32>) -> Files {
        self.sign_with(suffix, names, years, None)
    }

    fn sign_with(
        &self,
        suffix: &str,
        names: &[&str],
        years: Range<i32>,
        serial: Option<SerialNumber>,
    ) -> Files {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let stem = format!("{}-{}{suffix}", self.name, names[0].replace('/', "_"));
        let mut parameters = CertificateParams::new(names).expect("the names are valid");
        parameters.serial_number = serial;
        parameters.not_before = date_time_ymd(years.start, 1, 1);
        parameters.not_after = date_time_ymd(years.end, 1, 1);
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |extension: &str| self.directory.join(format!("{stem}.{extension}"));
        fs::write(file("pem"), certificate.pem()).expect("the directory can be written");
        fs::write(file("key"), key.serialize_pem()).expect("the directory can be written");
        Files {
            certificate: file("pem"),
            key: file("key"),
            authority: self.directory.join(format!("{}.pem", self.name)),
        }
    }
}

/// An authority, and a certificate for each process of a cluster.
#[derive(Debug)]
#[non_exhaustive]
pub struct ClusterCertificates {
    /// The hub's certificate, for `localhost` and `127.0.0.1`.
    pub hub: Files,
    /// The certificate of the agent on [`NODE`].
    pub agent: Files,
    /// The proxy's certificate.
    pub proxy: Files,
    authority: Authority,
}

impl ClusterCertificates {
    /// Issues all certificates, and writes them to `folder`.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let authority = Authority::new(folder, "authority");
        Self {
            hub: authority.issue(&["localhost", "127.0.0.1"]),
            agent: authority.issue(&[NODE]),
            proxy: authority.issue(&["proxy"]),
            authority,
        }
    }

    /// The authority of all certificates.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Issues an additional certificate, such as that of another node's agent.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Files {
        self.authority.issue(names)
    }
}
