//! The accepting side.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::{ConnectionError, Endpoint};
use tokio::net::{ToSocketAddrs, lookup_host};

use super::stream::QuicLink;
use super::{config, credentials, handshake_failed};
use crate::link::{Incoming, Limits, Link, LinkError, LinkKind, Listener};
use crate::tls::{ServerTls, TlsError, insecure_server_config};

/// Handshakes in progress above which a client must validate its address first (RFC 9000 section 8.1.2): half of a hub's
/// default limit. The validation costs honest clients a round trip and stops clients with spoofed addresses.
const ADDRESS_VALIDATION_THRESHOLD: usize = 128;

/// Accepts QUIC links; created by [`bind`].
#[derive(Debug)]
pub struct QuicListener {
    endpoint: Endpoint,
    tls: ServerTls,
    current: CurrentConfig,
    /// Counts the handshakes in progress: each one holds a clone.
    in_progress: Arc<()>,
    address: SocketAddr,
    limits: Limits,
}

/// The configuration of the last handshake and its TLS configuration.
#[derive(Debug)]
struct CurrentConfig {
    tls_config: Arc<rustls::ServerConfig>,
    config: Arc<quinn::ServerConfig>,
}

/// Listens on a UDP address. Use a configuration of [`crate::tls::server_config`], or for experiments of
/// [`crate::tls::insecure_server_config`]; its application protocols are replaced by [`ALPN`](super::ALPN).
///
/// # Errors
/// If the address cannot be bound, or the configuration does not support TLS 1.3.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time.
pub async fn bind(
    address: impl ToSocketAddrs + fmt::Display,
    tls: &ServerTls,
    limits: Limits,
) -> Result<QuicListener, LinkError> {
    // Without a valid certificate the port is open, and refuses handshakes: a placeholder stays until there is one.
    let tls_config = tls.config().or_else(|_| insecure_server_config()?.config());
    let tls_config = tls_config.map_err(|error| handshake_failed(&address.to_string(), error.to_string()))?;
    let config = config::server(&tls_config)?;
    let failed = |source| LinkError::Io { doing: format!("listen on {address} (udp)"), source };
    let mut outcome = Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address"));
    for candidate in lookup_host(&address).await.map_err(failed)? {
        outcome = Endpoint::server(config.clone(), candidate);
        if outcome.is_ok() {
            break;
        }
    }
    let endpoint = outcome.map_err(failed)?;
    let bound = endpoint.local_addr().map_err(failed)?;
    let current = CurrentConfig { tls_config, config: Arc::new(config) };
    Ok(QuicListener {
        endpoint,
        tls: tls.clone(),
        current,
        in_progress: Arc::new(()),
        address: bound,
        limits,
    })
}

impl QuicListener {
    /// The bound address.
    #[must_use]
    pub const fn socket_address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration for the next handshake, unless there is no valid certificate.
    fn config(&mut self) -> Result<Arc<quinn::ServerConfig>, TlsError> {
        let latest = self.tls.config()?;
        if !Arc::ptr_eq(&latest, &self.current.tls_config) {
            match config::renewed(&self.current.config, &latest) {
                Ok(config) => self.current.config = Arc::new(config),
                Err(error) => {
                    tracing::error!(%error, "new QUIC certificate rejected, keeping the old one");
                }
            }
            self.current.tls_config = latest;
        }
        Ok(Arc::clone(&self.current.config))
    }
}

#[async_trait::async_trait]
impl Listener for QuicListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let incoming = loop {
            let Some(incoming) = self.endpoint.accept().await else {
                return Err(LinkError::Io {
                    doing: format!("accept on {}", self.local_address()),
                    source: std::io::ErrorKind::NotConnected.into(),
                });
            };
            let many_handshakes = Arc::strong_count(&self.in_progress) > ADDRESS_VALIDATION_THRESHOLD;
            if incoming.remote_address_validated() || !incoming.may_retry() || !many_handshakes {
                break incoming;
            }
            // Cannot fail: `may_retry` was checked above.
            let _ = incoming.retry();
        };
        let slot = Arc::clone(&self.in_progress);
        let config = match self.config() {
            Ok(config) => config,
            Err(error) => {
                let error = handshake_failed(&incoming.remote_address().to_string(), error.to_string());
                incoming.refuse();
                return Ok(Incoming::new(std::future::ready(Err(error))));
            }
        };
        let limits = self.limits.clone();
        // An address that is not validated may be forged: it must not use the share of the network that it names.
        let address = match incoming.remote_address_validated() {
            true => incoming.remote_address().ip(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let source = address.into();
        // The connection's first packet has arrived, so there is no first byte to wait for.
        let handshake = async move {
            let remote = incoming.remote_address().to_string();
            let handshake = async {
                let refused = |error| handshake_failed(&remote, explain(&error));
                let connection = incoming.accept_with(config).map_err(refused)?.await.map_err(refused)?;
                let credentials = credentials(&connection);
                let io = QuicLink::start(connection, limits.max_frame).await?;
                Ok(Link::new(io, LinkKind::Quic, &*remote, credentials))
            };
            let outcome = tokio::time::timeout(limits.handshake_timeout, handshake).await;
            drop(slot);
            outcome.unwrap_or_else(|_| {
                Err(handshake_failed(&remote, format!("timed out after {:?}", limits.handshake_timeout)))
            })
        };
        Ok(Incoming::new(handshake).with_source(source))
    }

    fn kind(&self) -> LinkKind {
        LinkKind::Quic
    }

    fn local_address(&self) -> String {
        format!("quic://{}", self.address)
    }
}

fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TransportError(cause) if cause.reason.contains("no certificates") => {
            "the client sent no certificate: give it one issued by the client CA".to_owned()
        }
        error => error.to_string(),
    }
}
