//! The dialing side.

use std::io;
use std::net::SocketAddr;
use std::time::SystemTime;

use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::client_async_with_config;

use super::meter::MeteredStream;
use super::stream::WsLink;
use super::{GREETING, READ_BUFFER, TLS_READ_BUFFER, config, explain, handshake_failed, timed_out};
use crate::link::address::host_and_port;
use crate::link::description::EXPIRED;
use crate::link::framed::FramedStream;
use crate::link::happy_eyeballs::{ATTEMPT_DELAY, first_ok};
use crate::link::host::{addresses_of, pinned};
use crate::link::{Credentials, Dialer, Limits, Link, LinkError, LinkKind, Protection};
use crate::tls::{ClientTls, LINK_PROTOCOL, peer_certificate};

/// Dials a websocket listener.
#[derive(Debug, Clone)]
pub(in crate::link) struct WsDialer {
    host: String,
    port: u16,
    path: String,
    tls: Option<(ClientTls, ServerName<'static>)>,
    limits: Limits,
    address: String,
    /// The only address of the host that is dialed.
    at: Option<SocketAddr>,
}

impl WsDialer {
    /// Creates a dialer of a host name or address (IPv6 without brackets): `wss` with TLS, plain `ws` without.
    ///
    /// # Errors
    /// If `tls` is set and the host is not a valid server name.
    pub(in crate::link) fn new(
        host: &str,
        port: u16,
        tls: Option<ClientTls>,
        limits: Limits,
    ) -> Result<Self, LinkError> {
        let kind = if tls.is_some() { LinkKind::WSS } else { LinkKind::WS };
        let address = format!("{kind}://{}", host_and_port(host, port));
        let tls = match tls {
            Some(tls) => Some((tls, server_name(host, &address)?)),
            None => None,
        };
        Ok(Self { host: host.to_owned(), port, path: "/".to_owned(), tls, limits, address, at: None })
    }

    /// Sets the request path, for a proxy that routes by it. Default `/`.
    pub(in crate::link) fn with_path(mut self, path: &str) -> Self {
        let slash = if path.starts_with('/') { "" } else { "/" };
        self.path = format!("{slash}{path}");
        self
    }

    const fn kind(&self) -> LinkKind {
        if self.tls.is_some() { LinkKind::WSS } else { LinkKind::WS }
    }

    async fn attempt(&self) -> Result<Link, LinkError> {
        let failed = |cause: String| handshake_failed(self.kind(), &self.address, cause);
        let tls = match &self.tls {
            Some((tls, name)) => {
                Some((tls.config().map_err(|error| failed(error.to_string()))?, tls.verifies(), name))
            }
            None => None,
        };
        let stream = self
            .connect()
            .await
            .map_err(|source| LinkError::Io { doing: format!("connect to {}", self.address), source })?;
        // Without TCP_NODELAY the kernel delays small writes of the handshake and of every call.
        let _ = stream.set_nodelay(true);
        // The library requires a whole URL and reads host and path from it.
        let request = format!("{}://{}{}", self.kind(), host_and_port(&self.host, self.port), self.path);
        let config = |read_buffer| Some(config(self.limits.max_frame, read_buffer));
        let Some((tls, verifies, name)) = tls else {
            let config = config(READ_BUFFER);
            let (socket, _) = client_async_with_config(request, MeteredStream::new(stream), config)
                .await
                .map_err(|e| failed(explain(e)))?;
            let io = WsLink::new(socket, self.limits.max_frame);
            let link = Link::new(io, LinkKind::WS, &*self.address, Credentials::None);
            return Ok(link.with_idle_ping(self.limits.idle_ping));
        };
        let connect = TlsConnector::from(tls).connect(name.clone(), stream);
        let mut stream = connect.await.map_err(|error| failed(tls_cause(&error)))?;
        let credentials = match stream.get_ref().1.peer_certificates() {
            Some([own, ..]) if verifies => Credentials::Certificate(peer_certificate(own)),
            _ => Credentials::None,
        };
        if credentials.have_expired(SystemTime::now()) {
            return Err(failed(EXPIRED.to_owned()));
        }
        let protection = Protection::of_tls(&credentials);
        let link = if stream.get_ref().1.alpn_protocol() == Some(LINK_PROTOCOL) {
            let greeting = stream.read_u8().await.map_err(|error| failed(tls_cause(&error)))?;
            if greeting != GREETING {
                return Err(failed(format!("the server greets with {greeting}; expected {GREETING}")));
            }
            let io = FramedStream::new(stream, self.limits.max_frame);
            Link::new(io, LinkKind::WSS, &*self.address, credentials)
        } else {
            let config = config(TLS_READ_BUFFER);
            let (socket, _) = client_async_with_config(request, MeteredStream::new(stream), config)
                .await
                .map_err(|e| failed(explain(e)))?;
            let io = WsLink::new(socket, self.limits.max_frame);
            Link::new(io, LinkKind::WSS, &*self.address, credentials)
        };
        Ok(link.with_protection(protection).with_idle_ping(self.limits.idle_ping))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let candidates = match self.at {
            Some(address) => vec![address],
            None => addresses_of(&self.host, self.port).await?,
        };
        let no_address = || Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
        first_ok(candidates, ATTEMPT_DELAY, TcpStream::connect).await.unwrap_or_else(no_address)
    }
}

#[async_trait::async_trait]
impl Dialer for WsDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        tokio::time::timeout(self.limits.handshake_timeout, self.attempt())
            .await
            .unwrap_or_else(|_| Err(handshake_failed(self.kind(), &self.address, timed_out(&self.limits))))
    }

    fn address(&self) -> &str {
        &self.address
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        pinned(&self.host, self.port, self.at, self.kind(), |address, at| {
            Box::new(Self { address, at: Some(at), ..self.clone() })
        })
        .await
    }
}

/// Translates the TLS alert of a listener that rejects links when it is overloaded.
fn tls_cause(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::InternalError)) => {
            "the hub is overloaded; try again later".to_owned()
        }
        _ => error.to_string(),
    }
}

fn server_name(name: &str, address: &str) -> Result<ServerName<'static>, LinkError> {
    ServerName::try_from(name.to_owned()).map_err(|_| LinkError::Address {
        address: address.to_owned(),
        cause: format!("{name:?} is not a valid server name: expected a DNS name or an IP address"),
    })
}
