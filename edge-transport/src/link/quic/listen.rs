//! The accepting side.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use quinn::{ConnectionError, Endpoint};
use tokio::net::{ToSocketAddrs, lookup_host};

use super::stream::QuicLink;
use super::{config, credentials, handshake_failed};
use crate::link::{Incoming, Limits, Link, LinkError, LinkKind, Listener};
use crate::tls::ServerTls;

/// Handshakes under way above which a client has to show first that its address is its own (RFC 9000 section 8.1.2): half
/// of what a hub allows by default. Costs honest clients a round trip, and those that invent addresses their place.
const UNVALIDATED: usize = 128;

/// Accepts QUIC links; made by [`bind`].
#[derive(Debug)]
pub struct QuicListener {
    endpoint: Endpoint,
    tls: ServerTls,
    current: Current,
    /// Held by each handshake under way.
    under_way: Arc<()>,
    address: SocketAddr,
    limits: Limits,
}

/// The configuration of the last handshake, and the TLS configuration that it was made of.
#[derive(Debug)]
struct Current {
    made_of: Arc<rustls::ServerConfig>,
    config: Arc<quinn::ServerConfig>,
}

/// Listens on a UDP address. The configuration comes from [`crate::tls::server_config`], or for trials from
/// [`crate::tls::insecure_server_config`]; its application protocols are replaced by [`ALPN`](super::ALPN).
///
/// # Errors
/// If the address cannot be listened on, or the configuration lacks TLS 1.3.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time.
pub async fn bind(
    address: impl ToSocketAddrs + fmt::Display,
    tls: &ServerTls,
    limits: Limits,
) -> Result<QuicListener, LinkError> {
    let made_of = tls.config();
    let config = config::server(&made_of)?;
    let failed = |source| LinkError::Io { doing: format!("listen on {address} (udp)"), source };
    let mut outcome =
        Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name stands for no address"));
    for candidate in lookup_host(&address).await.map_err(failed)? {
        outcome = Endpoint::server(config.clone(), candidate);
        if outcome.is_ok() {
            break;
        }
    }
    let endpoint = outcome.map_err(failed)?;
    let bound = endpoint.local_addr().map_err(failed)?;
    let current = Current { made_of, config: Arc::new(config) };
    Ok(QuicListener { endpoint, tls: tls.clone(), current, under_way: Arc::new(()), address: bound, limits })
}

impl QuicListener {
    /// The address listened on.
    #[must_use]
    pub const fn socket_address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration for the next handshake.
    fn config(&mut self) -> Arc<quinn::ServerConfig> {
        let latest = self.tls.config();
        if !Arc::ptr_eq(&latest, &self.current.made_of) {
            match config::renewed(&self.current.config, &latest) {
                Ok(config) => self.current.config = Arc::new(config),
                Err(error) => tracing::error!(%error, "the old certificate stays in use for QUIC"),
            }
            self.current.made_of = latest;
        }
        Arc::clone(&self.current.config)
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
            let crowded = Arc::strong_count(&self.under_way) > UNVALIDATED;
            if incoming.remote_address_validated() || !incoming.may_retry() || !crowded {
                break incoming;
            }
            // Cannot fail: it was asked just now.
            let _ = incoming.retry();
        };
        let place = Arc::clone(&self.under_way);
        let (limits, config) = (self.limits.clone(), self.config());
        Ok(Box::pin(async move {
            let remote = incoming.remote_address().to_string();
            let greet = async {
                let refused = |error| handshake_failed(&remote, explain(&error));
                let connection = incoming.accept_with(config).map_err(refused)?.await.map_err(refused)?;
                let credentials = credentials(&connection);
                let io = QuicLink::start(connection, limits.max_frame).await?;
                Ok(Link::new(io, LinkKind::Quic, &*remote, credentials))
            };
            let outcome = tokio::time::timeout(limits.handshake_timeout, greet).await;
            drop(place);
            outcome.unwrap_or_else(|_| {
                Err(handshake_failed(&remote, format!("not done within {:?}", limits.handshake_timeout)))
            })
        }))
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
            "the client showed no certificate: give it one that the client CA has issued".to_owned()
        }
        error => error.to_string(),
    }
}
