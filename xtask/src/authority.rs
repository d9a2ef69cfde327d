//! A certificate authority for one run, and the certificates that it issues.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// The error of creating a certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot create a certificate for {name}: {cause}")]
    Create { name: String, cause: rcgen::Error },
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write { path: PathBuf, cause: io::Error },
}

/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    /// For a listener.
    Server,
    /// For a dialer.
    Client,
}

/// A certificate authority, and the folder of its files.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// The PEM files of one certificate.
#[derive(Debug, Clone)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl CertificateFiles {
    /// Adds the options for this certificate to a command, and with `authority_option` the authority that the command trusts.
    pub(crate) fn add_options(&self, command: &mut Command, authority_option: &str, authority: &Path) {
        command.arg("--tls-cert").arg(&self.certificate).arg("--tls-key").arg(&self.key);
        command.arg(authority_option).arg(authority);
    }
}

impl Authority {
    /// Creates an authority, and writes its certificate as `ca.pem` to the folder.
    pub(crate) fn new(folder: &Path) -> Result<Self, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "edge-csi test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = KeyPair::generate()
            .and_then(|key| CertifiedIssuer::self_signed(params, key))
            .map_err(|cause| CertificateError::Create { name: "the authority".to_owned(), cause })?;
        let authority = Self { issuer, folder: folder.to_owned() };
        write(&authority.root(), &authority.issuer.pem())?;
        Ok(authority)
    }

    /// Returns the path of the authority's own certificate.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Issues a certificate for these names, as `FILE.pem` and `FILE.key`.
    pub(crate) fn issue(
        &self,
        file: &str,
        names: &[&str],
        usage: Usage,
    ) -> Result<CertificateFiles, CertificateError> {
        let failed = |cause| CertificateError::Create { name: file.to_owned(), cause };
        let key = KeyPair::generate().map_err(failed)?;
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.extended_key_usages = vec![match usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let stem = self.folder.join(file);
        let files =
            CertificateFiles { certificate: stem.with_extension("pem"), key: stem.with_extension("key") };
        write(&files.certificate, &signed.pem())?;
        write(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

fn write(path: &Path, pem: &str) -> Result<(), CertificateError> {
    std::fs::write(path, pem).map_err(|cause| CertificateError::Write { path: path.to_owned(), cause })
}
