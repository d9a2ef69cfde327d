//! Why TLS material cannot be used.

use crate::reload::ReadError;

/// Certificates or a key cannot be used. `from` says where they came from: the file, or which argument.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is not PEM.
    #[error("{from} is not valid PEM: {cause}")]
    Pem {
        /// Where it came from.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// No certificate is in it.
    #[error("no certificate in {from}: expected PEM with a CERTIFICATE section")]
    NoCertificate {
        /// Where it came from.
        from: String,
    },
    /// No private key is in it.
    #[error(
        "no private key in {from}: expected PEM with a PRIVATE KEY section (PKCS#8, SEC1 or PKCS#1, not encrypted)"
    )]
    NoPrivateKey {
        /// Where it came from.
        from: String,
    },
    /// A certificate cannot be understood.
    #[error("certificate in {from} cannot be used: {cause}")]
    BadCertificate {
        /// Where it came from.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// The key is of a kind that the crypto library does not know, or damaged.
    #[error(
        "private key in {from} cannot be used: {cause}; use ECDSA P-256, P-384, Ed25519 or RSA of 2048 bits and more"
    )]
    BadPrivateKey {
        /// Where it came from.
        from: String,
        /// What is wrong.
        cause: String,
    },
    /// Certificate and key are not a pair.
    #[error(
        "the private key in {key} does not belong to the certificate in {certificate}: give the key that it was issued for"
    )]
    KeyMismatch {
        /// Where the key came from.
        key: String,
        /// Where the certificate came from.
        certificate: String,
    },
    /// The certificate's time is over.
    #[error("the certificate in {from} expired {ago_seconds} s ago: renew it, or set this host's clock")]
    Expired {
        /// Where it came from.
        from: String,
        /// Seconds since it expired.
        ago_seconds: u64,
    },
    /// An accepting end has no certificate to show.
    #[error("no certificate was given for the accepting end: give its certificate chain and the private key")]
    NoIdentity,
    /// There is nothing to verify the other end with.
    #[error("no certificate authority was given to verify {whom} with: give its CA certificate")]
    NoRoots {
        /// The other end.
        whom: &'static str,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS configuration: {0}")]
    Config(String),
}
