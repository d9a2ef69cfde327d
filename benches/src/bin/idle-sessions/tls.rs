//! Dials a hub over wss from a local address of choice: one address has ports for 28,000 connections to a hub.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use edge_transport::link::{Credentials, DEFAULT_MAX_FRAME, Dialer, Link, LinkError, LinkKind, Protection};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// The time for TCP and TLS together, as in the transport's own dialer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval of pings while no call waits, as in the transport's own dialer.
const IDLE_PING: Duration = Duration::from_secs(50);

/// Dials a hub from one local address.
pub(super) struct SourceDialer {
    pub(super) from: Ipv4Addr,
    /// The hub. Its certificate is valid for the name localhost.
    pub(super) hub: SocketAddr,
    pub(super) tls: Arc<ClientConfig>,
}

impl SourceDialer {
    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        let stream = socket.connect(self.hub).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
        let mut stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        // The hub has verified this end.
        stream.read_u8().await?;
        Ok(stream)
    }

    async fn attempt(&self) -> Result<Link, LinkError> {
        let io = |source| LinkError::Io { doing: format!("connect from {}", self.from), source };
        let stream = self.connect().await.map_err(io)?;
        let link = Link::framed(stream, LinkKind::WSS, self.address(), Credentials::None, DEFAULT_MAX_FRAME);
        Ok(link.with_protection(Protection::Verified).with_idle_ping(IDLE_PING))
    }
}

#[async_trait::async_trait]
impl Dialer for SourceDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let timed_out = |_| {
            let cause = format!("timed out after {HANDSHAKE_TIMEOUT:?}");
            Err(LinkError::Handshake { kind: LinkKind::WSS, remote: self.hub.to_string(), cause })
        };
        tokio::time::timeout(HANDSHAKE_TIMEOUT, self.attempt()).await.unwrap_or_else(timed_out)
    }

    fn address(&self) -> &str {
        "wss://localhost"
    }
}
