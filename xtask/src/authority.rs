//! A certificate authority for one run, and the certificates that it issues.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot make a certificate for {name}: {cause}")]
    Make { name: String, cause: rcgen::Error },
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write { path: PathBuf, cause: io::Error },
}

/// What a certificate is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    /// For those who listen.
    Server,
    /// For those who dial.
    Client,
}

/// An authority and the folder that its files go to.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// PEM files of one name.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    /// Gives a command this certificate to show, and with `authority_option` the authority that it believes.
    pub(crate) fn show(&self, command: &mut Command, authority_option: &str, authority: &Path) {
        command.arg("--tls-cert").arg(&self.certificate).arg("--tls-key").arg(&self.key);
        command.arg(authority_option).arg(authority);
    }
}

impl Authority {
    /// Makes an authority; its certificate is `ca.pem` in the folder.
    pub(crate) fn new(folder: &Path) -> Result<Self, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "edge-csi test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = KeyPair::generate()
            .and_then(|key| CertifiedIssuer::self_signed(params, key))
            .map_err(|cause| CertificateError::Make { name: "the authority".to_owned(), cause })?;
        let authority = Self { issuer, folder: folder.to_owned() };
        write(&authority.root(), &authority.issuer.pem())?;
        Ok(authority)
    }

    /// The authority's own certificate.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Makes a certificate for these names, as `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(&self, file: &str, names: &[&str], usage: Usage) -> Result<Pair, CertificateError> {
        let failed = |cause| CertificateError::Make { name: file.to_owned(), cause };
        let key = KeyPair::generate().map_err(failed)?;
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.extended_key_usages = vec![match usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let stem = self.folder.join(file);
        let pair = Pair { certificate: stem.with_extension("pem"), key: stem.with_extension("key") };
        write(&pair.certificate, &signed.pem())?;
        write(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

fn write(path: &Path, pem: &str) -> Result<(), CertificateError> {
    std::fs::write(path, pem).map_err(|cause| CertificateError::Write { path: path.to_owned(), cause })
}
