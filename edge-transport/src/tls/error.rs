//! Why TLS material cannot be used.

use crate::reload::FileError;

/// Why certificates or a key cannot be used. `from` is the file or the argument that contains them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] FileError),
    /// The text is not PEM.
    #[error("{from} is not valid PEM: {cause}")]
    Pem {
        /// Origin of the text.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// The text contains no certificate.
    #[error("no certificate in {from}: expected PEM with a CERTIFICATE section")]
    NoCertificate {
        /// Origin of the text.
        from: String,
    },
    /// The text contains no private key.
    #[error(
        "no private key in {from}: expected PEM with a PRIVATE KEY section (PKCS#8, SEC1 or PKCS#1, not encrypted)"
    )]
    NoPrivateKey {
        /// Origin of the text.
        from: String,
    },
    /// A certificate is invalid.
    #[error("certificate in {from} cannot be used: {cause}")]
    BadCertificate {
        /// Origin of the certificate.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// The crypto library does not support the key, or the key is damaged.
    #[error(
        "private key in {from} cannot be used: {cause}; use ECDSA P-256, P-384, Ed25519 or RSA of 2048 bits and more"
    )]
    BadPrivateKey {
        /// Origin of the key.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// Certificate and key are not a pair.
    #[error(
        "the private key in {key} does not belong to the certificate in {certificate}: give the key that it was issued for"
    )]
    KeyMismatch {
        /// Origin of the key.
        key: String,
        /// Origin of the certificate.
        certificate: String,
    },
    /// The certificate has expired.
    // In days, so that the text changes, and is logged, once a day.
    #[error(
        "the certificate in {from} expired {days} days ago: renew it, or correct this host's clock",
        days = ago_seconds / 86_400
    )]
    Expired {
        /// Origin of the certificate.
        from: String,
        /// Seconds since it expired.
        ago_seconds: u64,
    },
    /// The text contains no revocation list.
    #[error("no revocation list in {from}: expected PEM with an X509 CRL section")]
    NoRevocationList {
        /// Origin of the text.
        from: String,
    },
    /// A revocation list is invalid.
    #[error(
        "revocation list in {from} cannot be used: {cause}; expected complete lists of version 2 with a next update, at \
        most {max} bytes together, each signed by its authority"
    )]
    BadRevocationList {
        /// Origin of the list.
        from: String,
        /// Maximum number of bytes of the lists of one file.
        max: usize,
        /// What is wrong.
        cause: String,
    },
    /// An accepting end has no certificate.
    #[error("no certificate was given for the accepting end: give its certificate chain and the private key")]
    NoIdentity,
    /// No authority was given to verify the other end.
    #[error("no certificate authority was given to verify {peer} with: give its CA certificate")]
    NoRoots {
        /// The other end.
        peer: &'static str,
    },
    /// The files were never valid since the start.
    #[error("{cause}")]
    Unusable {
        /// Why the files are invalid.
        cause: String,
    },
    /// The TLS library rejects the configuration.
    #[error("TLS configuration: {0}")]
    Config(String),
}
