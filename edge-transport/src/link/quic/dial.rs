//! The dialling side.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use quinn::{ConnectionError, Endpoint, TransportErrorCode};
use tokio::net::lookup_host;

use super::stream::QuicLink;
use super::{config, credentials, handshake_failed};
use crate::link::address::host_and_port;
use crate::link::candidates::{ADDRESS_STAGGER, first_of};
use crate::link::{Credentials, Dialer, Limits, Link, LinkError, LinkKind};
use crate::tls::ClientTls;

/// Makes links to a QUIC listener. Each goes out from a fresh UDP port, so that it outlives whatever became of the last one.
#[derive(Debug, Clone)]
pub struct QuicDialer {
    host: String,
    port: u16,
    tls: ClientTls,
    limits: Limits,
    address: String,
}

impl QuicDialer {
    /// Takes a host name or address (IPv6 without brackets), and TLS, without which there is no QUIC.
    ///
    /// # Errors
    /// If the TLS configuration lacks TLS 1.3.
    pub fn new(host: &str, port: u16, tls: &ClientTls, limits: Limits) -> Result<Self, LinkError> {
        // Only whether it can be made: each attempt makes its own, since the certificates may change.
        config::client(&tls.config())?;
        Ok(Self {
            host: host.to_owned(),
            port,
            tls: tls.clone(),
            limits,
            address: format!("quic://{}", host_and_port(host, port)),
        })
    }

    async fn attempt(&self) -> Result<Link, LinkError> {
        let resolved = lookup_host((&*self.host, self.port))
            .await
            .map_err(|source| LinkError::Io { doing: format!("look up {}", self.address), source })?;
        self.attempt_any(resolved).await
    }

    async fn attempt_any(&self, candidates: impl IntoIterator<Item = SocketAddr>) -> Result<Link, LinkError> {
        let outcome = first_of(candidates, ADDRESS_STAGGER, |candidate| self.attempt_at(candidate)).await;
        outcome.unwrap_or_else(|| Err(handshake_failed(&self.address, "the name stands for no address")))
    }

    async fn attempt_at(&self, server: SocketAddr) -> Result<Link, LinkError> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = Endpoint::client(local).map_err(|source| LinkError::Io {
            doing: format!("open a UDP port for {}", self.address),
            source,
        })?;
        let config = config::client(&self.tls.config())?;
        let connection = endpoint
            .connect_with(config, server, &self.host)
            .map_err(|error| handshake_failed(&self.address, error.to_string()))?
            .await
            .map_err(|error| handshake_failed(&self.address, explain(&error)))?;
        let credentials = if self.tls.verifies() { credentials(&connection) } else { Credentials::None };
        let mut io = QuicLink::start(connection.clone(), self.limits.max_frame).await?;
        // The server looks at the client's certificate only after this end believes that all is done.
        if std::future::poll_fn(|cx| io.poll_greeted(cx)).await.is_err() {
            let cause = connection.close_reason().map_or_else(
                || "it does not speak this link's format".to_owned(),
                |error| format!("the server refused: {error}"),
            );
            return Err(handshake_failed(&self.address, cause));
        }
        Ok(Link::new(io, LinkKind::Quic, &*self.address, credentials))
    }
}

fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            "the hub cannot take this link now: it is busy, try again later".to_owned()
        }
        error => error.to_string(),
    }
}

#[async_trait::async_trait]
impl Dialer for QuicDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let limit = self.limits.handshake_timeout;
        tokio::time::timeout(limit, self.attempt()).await.unwrap_or_else(|_| {
            Err(handshake_failed(&self.address, format!("not done within {limit:?}; is UDP let through?")))
        })
    }

    fn address(&self) -> &str {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UdpSocket;

    use super::*;
    use crate::link::{Listener, quic};
    use crate::tls::insecure_server_config;

    #[tokio::test]
    async fn a_name_whose_first_address_swallows_packets_is_reached_at_the_next() {
        let tls = insecure_server_config().unwrap();
        let mut hub = quic::bind("127.0.0.1:0", &tls, Limits::default()).await.unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let candidates = [silent.local_addr().unwrap(), hub.socket_address()];
        let tls = ClientTls::insecure(None).unwrap();
        let dialer = QuicDialer::new("localhost", 1, &tls, Limits::default()).unwrap();
        let accepting = async { hub.accept().await?.await };
        let both = async { tokio::try_join!(dialer.attempt_any(candidates), accepting) };
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, both).await.expect("within its bound").unwrap();
    }
}
