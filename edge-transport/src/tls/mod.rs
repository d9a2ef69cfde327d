//! TLS identities of peers and TLS configurations.
//!
//! Everything here uses TLS 1.3 and names its crypto library (`aws-lc-rs`, or `ring` where only that feature is on): it
//! installs no process-wide provider and ignores one that another part of the process installs.
//!
//! A client can resume its session, at most a day later, with a ticket that it uses once: then no certificates are exchanged. It
//! cannot once its certificate has expired, or the server's files or revocation lists have changed.
//!
//! Files are reloaded when they change: see [`crate::reload`].

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("TLS needs a crypto library: enable the feature `aws-lc-rs` or `ring` of edge-transport");

mod client;
mod der;
mod error;
mod files;
mod identity;
mod insecure;
mod names;
mod renewable;
mod resumption;
mod revocation;
mod server;
mod verifier;

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;

pub(crate) use self::client::ClientSource;
pub use self::client::ClientTls;
pub use self::error::TlsError;
pub(crate) use self::files::ClientFiles;
#[cfg(feature = "runtime")]
pub(crate) use self::files::ServerFiles;
pub use self::files::TlsPaths;
pub use self::identity::Identity;
#[cfg(feature = "runtime")]
pub use self::names::peer_certificate;
pub use self::names::peer_names;
pub(crate) use self::renewable::RenewableFiles;
pub use self::server::{ClientAuth, ServerTls};
#[cfg(feature = "runtime")]
pub(crate) use self::verifier::AuthoritiesId;

#[cfg(feature = "aws-lc-rs")]
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(feature = "aws-lc-rs")]
const SHA256_SUITE: SupportedCipherSuite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
const SHA256_SUITE: SupportedCipherSuite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

/// The application protocol of a link directly over TLS or QUIC (RFC 7301).
pub(crate) const LINK_PROTOCOL: &[u8] = b"edge-session/1";

/// The application protocols of both ends: an end that does not know the first one, such as a reverse proxy, serves websocket.
fn protocols() -> Vec<Vec<u8>> {
    vec![LINK_PROTOCOL.to_vec(), b"http/1.1".to_vec()]
}

/// Computes the SHA-256 of `data` with the crypto library.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    #[allow(clippy::expect_used, reason = "the constant is a suite of TLS 1.3")]
    let suite = SHA256_SUITE.tls13().expect("the suite belongs to TLS 1.3");
    let mut digest = [0; 32];
    digest.copy_from_slice(suite.common.hash_provider.hash(data).as_ref());
    digest
}
