//! Who a peer is, in certificates, and the TLS configurations that prove it.
//!
//! Everything here uses TLS 1.3 and names its crypto library (`aws-lc-rs`, or `ring` where only that feature is on): nothing is
//! installed for the whole process, and nothing that another part of the process installs has any effect.
//!
//! A server shows and takes certificates at every handshake: it gives out no tickets with which a client could come back later
//! without showing its own, when that has expired or its authority is no longer believed.
//!
//! Material in files is read again when they change: see [`TlsFiles`] and [`crate::reload`].

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("TLS needs a crypto library: turn on the feature `aws-lc-rs` or `ring` of edge-transport");

mod client;
mod der;
mod error;
mod files;
mod identity;
mod insecure;
mod names;
mod server;

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;

pub use self::client::{ClientTls, client_config};
pub use self::error::TlsError;
pub use self::files::{ClientFiles, ServerFiles, TlsFiles, TlsPaths};
pub use self::identity::Identity;
pub use self::insecure::insecure_server_config;
pub use self::names::peer_names;
pub use self::server::{ClientAuth, ServerTls, server_config};

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

/// SHA-256 as the crypto library makes it for TLS.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    #[allow(clippy::expect_used, reason = "each text is its proof")]
    let suite = SHA256_SUITE.tls13().expect("the suite is one of TLS 1.3, as its name says");
    let mut digest = [0; 32];
    digest.copy_from_slice(suite.common.hash_provider.hash(data).as_ref());
    digest
}
