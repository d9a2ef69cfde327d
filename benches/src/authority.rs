//! A certificate authority in memory.

use edge_transport::tls::{Identity, TlsError};
use rcgen::{BasicConstraints, CertificateParams, Error, IsCa, Issuer, KeyPair};

/// A certificate authority, whose key exists only in memory.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

/// A certificate that an [`Authority`] has issued, in PEM.
#[derive(Debug)]
#[non_exhaustive]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The certificate of the authority.
    pub root: String,
}

impl Issued {
    /// The identity of an end that trusts the same authority.
    ///
    /// # Errors
    /// If a part is not usable.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes(), self.root.as_bytes())
    }
}

impl Authority {
    /// Creates an authority with an ECDSA key (P-256).
    ///
    /// # Errors
    /// If the certificate cannot be created.
    pub fn new() -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), root })
    }

    /// Issues a certificate for these names, with a new ECDSA key (P-256).
    ///
    /// # Errors
    /// If a name is not valid in a certificate.
    pub fn issue(&self, names: &[&str]) -> Result<Issued, Error> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = CertificateParams::new(names)?.signed_by(&key, &self.issuer)?;
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        Ok(Issued { certificate, key, root: self.root.clone() })
    }
}
