//! The certificate of the other end.

use std::time::SystemTime;

use crate::name::PeerId;

/// A certificate that the other end has presented and TLS has verified.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCertificate {
    /// The names of the subject alternative name in order, or without one the common name.
    pub names: Vec<PeerId>,
    /// The serial number without leading zero bytes; empty if it is not readable.
    pub serial: Vec<u8>,
    /// The SHA-256 of the certificate in DER form.
    pub sha256: [u8; 32],
    /// When the certificate expires; `None` if that is not readable.
    pub expires: Option<SystemTime>,
    /// The authorities that have verified the certificate, at an accepting end with certificates from files.
    #[cfg(feature = "tls")]
    pub(crate) verified_by: Option<crate::tls::AuthoritiesId>,
}

/// Creates a certificate that only proves names, for links inside a process and for tests.
impl From<Vec<PeerId>> for PeerCertificate {
    fn from(names: Vec<PeerId>) -> Self {
        Self {
            names,
            serial: Vec::new(),
            sha256: [0; 32],
            expires: None,
            #[cfg(feature = "tls")]
            verified_by: None,
        }
    }
}
