//! A certificate authority for tests, and PEM files signed by it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, PublicKeyData, RevokedCertParams,
    SignatureAlgorithm, date_time_ymd,
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
        fs::write(directory.join(format!("{name}.key")), key.serialize_pem())
            .expect("the directory can be written");
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
        self.sign_with(&format!("-{serial}"), names, |parameters| {
            parameters.serial_number = Some(serial.into());
            parameters.not_before = date_time_ymd(1975, 1, 1);
            parameters.not_after = date_time_ymd(4096, 1, 1);
        })
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

    /// Signs a certificate as [`issue`](Self::issue) does that is valid since some time ago and for some time from now.
    ///
    /// # Panics
    /// As [`issue`](Self::issue).
    #[must_use]
    pub fn issue_until(&self, names: &[&str], ago: Duration, left: Duration) -> Files {
        self.sign_with("-short", names, |parameters| set_validity(parameters, ago, left))
    }

    /// Signs a certificate for the name and the key of a certificate request (PKCS #10 with ECDSA P-256, in DER), valid for some
    /// time from now. The request is not checked. Returns PEM.
    ///
    /// # Panics
    /// If the name is not valid in a certificate, or the request has no such key.
    #[must_use]
    pub fn sign_request(&self, request: &[u8], name: &str, left: Duration) -> String {
        let mut parameters = CertificateParams::new([name.to_owned()]).expect("the name is valid");
        parameters.distinguished_name = DistinguishedName::new();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut parameters, Duration::ZERO, left);
        let key = RequestedKey::find(request).expect("a key");
        parameters.signed_by(&key, &self.issuer).expect("a certificate").pem()
    }

    /// The private key of the authority, as a file.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.directory.join(format!("{}.key", self.name))
    }

    /// The certificate of the authority, as a file.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    fn sign(&self, suffix: &str, names: &[&str], years: Range<i32>) -> Files {
        self.sign_with(suffix, names, |parameters| {
            parameters.not_before = date_time_ymd(years.start, 1, 1);
            parameters.not_after = date_time_ymd(years.end, 1, 1);
        })
    }

    fn sign_with(&self, suffix: &str, names: &[&str], set: impl FnOnce(&mut CertificateParams)) -> Files {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let stem = format!("{}-{}{suffix}", self.name, names[0].replace('/', "_"));
        let mut parameters = CertificateParams::new(names).expect("the names are valid");
        set(&mut parameters);
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

/// Returns a certificate request (PKCS #10) for a name and a new key, as PEM in base64, which the API of Kubernetes requires.
///
/// # Panics
/// If the name is not valid in a certificate.
#[must_use]
pub fn request(name: &str) -> String {
    let mut parameters = CertificateParams::new([name.to_owned()]).expect("the name is valid");
    parameters.distinguished_name = DistinguishedName::new();
    let request = parameters.serialize_request(&KeyPair::generate().expect("a key")).expect("a request");
    STANDARD.encode(request.pem().expect("PEM"))
}

fn set_validity(parameters: &mut CertificateParams, ago: Duration, left: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    parameters.not_before = date_time_ymd(1970, 1, 1) + (now - ago);
    parameters.not_after = date_time_ymd(1970, 1, 1) + (now + left);
}

/// The public key of a certificate request.
struct RequestedKey<'a>(&'a [u8]);

impl<'a> RequestedKey<'a> {
    fn find(request: &'a [u8]) -> Option<Self> {
        // The curve P-256 in an algorithm identifier, and the beginning of a bit string with an uncompressed point.
        const BEFORE: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00];
        let start = request.windows(BEFORE.len()).position(|bytes| bytes == BEFORE)? + BEFORE.len();
        request.get(start..start + 65).map(Self)
    }
}

impl PublicKeyData for RequestedKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
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
