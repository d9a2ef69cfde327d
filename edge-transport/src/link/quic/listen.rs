//! The accepting side.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionError, Endpoint};
use tokio::net::{ToSocketAddrs, lookup_host};

use super::stream::QuicLink;
use super::{config, credentials, handshake_failed};
use crate::link::host::no_address;
use crate::link::{Credentials, Incoming, Limits, Link, LinkError, LinkKind, Listener, Protection};
use crate::tls::{AuthoritiesId, ServerTls};

/// Links that are not admitted above which a client must validate its address first (RFC 9000 section 8.1.2): a quarter of a
/// hub's default limit. The validation costs honest clients a round trip. Clients with forged addresses cannot pass it, so that
/// their unfinished handshakes, of about 45 KiB each, take at most 3 MiB.
const ADDRESS_VALIDATION_THRESHOLD: usize = 64;

/// How long the state of a failed handshake, of about 25 KiB, remains in the QUIC implementation: three probe timeouts of a
/// connection without a measured round trip (RFC 9000 section 10.2, RFC 9002 section 6.2).
const DRAINING: Duration = Duration::from_secs(3);

/// Accepts QUIC links; created by [`bind`].
#[derive(Debug)]
pub(in crate::link) struct QuicListener {
    endpoint: Endpoint,
    tls: ServerTls,
    current: CurrentConfig,
    /// Counts the links that are not admitted: each one holds a clone. Without the later part of a link's way to its admission,
    /// links that never send a hello would all count as one unknown source, and keep out genuine ones.
    unadmitted: Arc<()>,
    address: SocketAddr,
    limits: Limits,
}

/// The configuration for handshakes.
#[derive(Debug)]
struct CurrentConfig {
    /// The latest TLS configuration, whether QUIC can use it or not.
    latest: Arc<rustls::ServerConfig>,
    config: Arc<quinn::ServerConfig>,
    /// The authorities that `config` verifies clients with.
    verified_by: Option<AuthoritiesId>,
    /// Whether `config` is one without a certificate of the hub, and must not be used.
    is_placeholder: bool,
    /// Why QUIC cannot use `latest`, if so.
    rejected: Option<String>,
}

impl CurrentConfig {
    /// Uses a new TLS configuration. If QUIC cannot use it, the old one stays, and the next one is tried.
    fn update(
        &mut self,
        latest: Arc<rustls::ServerConfig>,
        verified_by: Option<AuthoritiesId>,
        address: &str,
    ) {
        if Arc::ptr_eq(&latest, &self.latest) {
            return;
        }
        match config::renewed(&self.config, &latest) {
            Ok(config) => {
                (self.config, self.verified_by) = (Arc::new(config), verified_by);
                (self.is_placeholder, self.rejected) = (false, None);
            }
            Err(error) => {
                tracing::error!(address, %error, "QUIC cannot use the new certificates; trying again when they change");
                self.rejected = Some(error.to_string());
            }
        }
        self.latest = latest;
        #[cfg(feature = "metrics")]
        metrics::gauge!("edge_transport_quic_certificates_rejected", "address" => address.to_owned())
            .set(if self.rejected.is_some() { 1.0 } else { 0.0 });
    }

    /// Returns the configuration for a handshake.
    ///
    /// # Errors
    /// Returns why QUIC cannot use the first certificates.
    fn usable(&self) -> Result<Arc<quinn::ServerConfig>, String> {
        match &self.rejected {
            Some(cause) if self.is_placeholder => Err(cause.clone()),
            _ => Ok(Arc::clone(&self.config)),
        }
    }
}

/// Listens on a UDP address. Use a configuration of [`ServerTls::new`], or for experiments of
/// [`ServerTls::insecure`]; its application protocols are replaced by [`ALPN`](super::ALPN).
///
/// # Errors
/// If the address cannot be bound, or the configuration does not support TLS 1.3.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time.
pub(in crate::link) async fn bind(
    address: impl ToSocketAddrs + fmt::Display,
    tls: &ServerTls,
    limits: Limits,
) -> Result<QuicListener, LinkError> {
    // Without a valid certificate the port is open, and refuses handshakes: a placeholder stays until there is one.
    let current = tls.current();
    let is_placeholder = current.is_err();
    let current = current.or_else(|_| ServerTls::insecure()?.current());
    let (latest, verified_by) =
        current.map_err(|error| handshake_failed(&address.to_string(), error.to_string()))?;
    let config = config::server(&latest)?;
    let failed = |source| LinkError::Io { doing: format!("listen on {address} (udp)"), source };
    let mut outcome = Err(no_address());
    for candidate in lookup_host(&address).await.map_err(failed)? {
        outcome = Endpoint::server(config.clone(), candidate);
        if outcome.is_ok() {
            break;
        }
    }
    let endpoint = outcome.map_err(failed)?;
    let bound = endpoint.local_addr().map_err(failed)?;
    let current =
        CurrentConfig { latest, config: Arc::new(config), verified_by, is_placeholder, rejected: None };
    Ok(QuicListener { endpoint, tls: tls.clone(), current, unadmitted: Arc::new(()), address: bound, limits })
}

impl QuicListener {
    #[cfg(test)]
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration for the next handshake, unless there is no valid certificate.
    fn config(&mut self) -> Result<Arc<quinn::ServerConfig>, String> {
        let (latest, verified_by) = self.tls.current().map_err(|error| error.to_string())?;
        let address = self.local_address();
        self.current.update(latest, verified_by, &address);
        self.current.usable()
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
            let has_many = Arc::strong_count(&self.unadmitted) > ADDRESS_VALIDATION_THRESHOLD;
            if incoming.remote_address_validated() || !incoming.may_retry() || !has_many {
                break incoming;
            }
            // Cannot fail: `may_retry` was checked above.
            let _ = incoming.retry();
        };
        let unadmitted = Arc::clone(&self.unadmitted);
        let config = match self.config() {
            Ok(config) => config,
            Err(error) => {
                let error = handshake_failed(&incoming.remote_address().to_string(), error);
                incoming.refuse();
                return Ok(Incoming::new(std::future::ready(Err(error))));
            }
        };
        let (limits, verified_by) = (self.limits.clone(), self.current.verified_by);
        // An address that is not validated may be forged: it must not use the share of the network that it names.
        let address = match incoming.remote_address_validated() {
            true => incoming.remote_address().ip(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        // The connection's first packet has arrived, so there is no first byte to wait for.
        let handshake = async move {
            let remote = incoming.remote_address().to_string();
            let counted = Arc::clone(&unadmitted);
            let handshake = async {
                let refused = |error| handshake_failed(&remote, explain(&error));
                let connection = incoming.accept_with(config).map_err(refused)?.await.map_err(refused)?;
                let mut credentials = credentials(&connection);
                if let Credentials::Certificate(own) = &mut credentials {
                    own.verified_by = verified_by;
                }
                let io = QuicLink::start(connection, limits.max_frame).await?;
                let io = io.count_until_admitted(unadmitted);
                let protection = Protection::of_tls(&credentials);
                Ok(Link::new(io, LinkKind::QUIC, &*remote, credentials).with_protection(protection))
            };
            let outcome = tokio::time::timeout(limits.handshake_timeout, handshake).await;
            let outcome = outcome.unwrap_or_else(|_| {
                Err(handshake_failed(&remote, format!("timed out after {:?}", limits.handshake_timeout)))
            });
            if outcome.is_err() {
                // It holds its handshake slot as long as its memory. Otherwise a client that aborts many would use both without
                // limit.
                tokio::time::sleep(DRAINING).await;
            }
            drop(counted);
            outcome
        };
        Ok(Incoming::new(handshake).from_address(address))
    }

    fn kind(&self) -> LinkKind {
        LinkKind::QUIC
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

#[cfg(test)]
mod tests {
    use rustls::crypto::CryptoProvider;

    use super::*;

    /// A TLS configuration with or without the cipher suite that QUIC begins with.
    fn tls(for_quic: bool) -> Arc<rustls::ServerConfig> {
        let good = ServerTls::insecure().unwrap().config().unwrap();
        if for_quic {
            return good;
        }
        let mut provider = CryptoProvider::clone(good.crypto_provider());
        provider
            .cipher_suites
            .retain(|one| one.suite() == rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::clone(&good.cert_resolver)))
    }

    /// The placeholder of a start without valid files is never used in place of certificates that QUIC cannot use.
    #[test]
    fn rejected_certificates_are_reported_and_replaced_later() {
        let first = tls(true);
        let config = Arc::new(config::server(&first).unwrap());
        for is_placeholder in [true, false] {
            let (latest, config) = (Arc::clone(&first), Arc::clone(&config));
            let mut current =
                CurrentConfig { latest, config, verified_by: None, is_placeholder, rejected: None };
            let before = Arc::clone(&current.config);
            current.update(tls(false), None, "quic://test");
            assert!(current.rejected.as_ref().unwrap().contains("cannot serve QUIC"));
            match current.usable() {
                Err(cause) => assert!(is_placeholder && cause.contains("cannot serve QUIC"), "{cause}"),
                Ok(config) => assert!(!is_placeholder && Arc::ptr_eq(&config, &before), "the old one stays"),
            }
            current.update(tls(true), None, "quic://test");
            assert!(current.rejected.is_none() && !Arc::ptr_eq(&current.usable().unwrap(), &before));
        }
    }
}
