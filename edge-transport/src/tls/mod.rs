//! Who a peer is, in certificates, and the TLS configurations that prove it.
//!
//! Everything here uses TLS 1.3 and names its crypto library (`aws-lc-rs`, or `ring` where only that feature is on): nothing is
//! installed for the whole process, and nothing that another part of the process installs has any effect.

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("TLS needs a crypto library: turn on the feature `aws-lc-rs` or `ring` of edge-transport");

mod client;
mod der;
mod error;
mod identity;
mod insecure;
mod names;
mod server;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use self::client::{ClientTls, client_config};
pub use self::error::TlsError;
pub use self::identity::Identity;
pub use self::insecure::insecure_server_config;
pub use self::names::peer_names;
pub use self::server::{ClientAuth, server_config};

#[cfg(feature = "aws-lc-rs")]
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
