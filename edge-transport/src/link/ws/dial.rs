//! The dialing side.

use std::io;
use std::time::SystemTime;

use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::client_async_with_config;

use super::meter::MeteredStream;
use super::stream::WsLink;
use super::{GREETING, READ_BUFFER, TLS_READ_BUFFER, config, explain, handshake_failed, timed_out};
use crate::link::description::EXPIRED;
use crate::link::framed::FramedStream;
use crate::link::host::Host;
use crate::link::{Credentials, Dialer, Limits, Link, LinkError, LinkKind, Protection};
use crate::tls::{ClientTls, LINK_PROTOCOL, peer_certificate};

/// Dials a websocket listener.
#[derive(Debug, Clone)]
pub(in crate::link) struct WsDialer {
    host: Host,
    /// Also has the path, for a proxy that routes by it.
    url: String,
    tls: Option<(ClientTls, ServerName<'static>)>,
    limits: Limits,
}

impl WsDialer {
    /// Creates a dialer: `wss` with TLS, plain `ws` without. The path begins with a slash.
    ///
    /// # Errors
    /// If `tls` is set and the host is not a valid server name.
    pub(in crate::link) fn new(
        host: &str,
        port: u16,
        path: &str,
        tls: Option<ClientTls>,
        limits: Limits,
    ) -> Result<Self, LinkError> {
        let kind = if tls.is_some() { LinkKind::WSS } else { LinkKind::WS };
        let host = Host::new(kind, host, port);
        let tls = match tls {
            Some(tls) => Some((tls, server_name(&host)?)),
            None => None,
        };
        Ok(Self { url: format!("{}{path}", host.address()), host, tls, limits })
    }

    async fn attempt(&self) -> Result<Link, LinkError> {
        let failed = |cause: String| handshake_failed(self.host.kind(), self.address(), cause);
        let tls = match &self.tls {
            Some((tls, name)) => {
                Some((tls.config().map_err(|error| failed(error.to_string()))?, tls.verifies(), name))
            }
            None => None,
        };
        let connect = async |server| {
            let refused = |source| LinkError::Io { doing: format!("connect to {}", self.address()), source };
            TcpStream::connect(server).await.map_err(refused)
        };
        let stream = self.host.first_ok(connect).await?;
        // Without TCP_NODELAY the kernel delays small writes of the handshake and of every call.
        let _ = stream.set_nodelay(true);
        // The library reads host and path from the URL.
        let config = |read_buffer| Some(config(self.limits.max_frame, read_buffer));
        let Some((tls, verifies, name)) = tls else {
            let config = config(READ_BUFFER);
            let (socket, _) = client_async_with_config(&self.url, MeteredStream::new(stream), config)
                .await
                .map_err(|e| failed(explain(e)))?;
            let io = WsLink::new(socket, self.limits.max_frame);
            let link = Link::new(io, LinkKind::WS, self.address(), Credentials::None);
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
            Link::new(io, LinkKind::WSS, self.address(), credentials)
        } else {
            let config = config(TLS_READ_BUFFER);
            let (socket, _) = client_async_with_config(&self.url, MeteredStream::new(stream), config)
                .await
                .map_err(|e| failed(explain(e)))?;
            let io = WsLink::new(socket, self.limits.max_frame);
            Link::new(io, LinkKind::WSS, self.address(), credentials)
        };
        Ok(link.with_protection(protection).with_idle_ping(self.limits.idle_ping))
    }
}

#[async_trait::async_trait]
impl Dialer for WsDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        tokio::time::timeout(self.limits.handshake_timeout, self.attempt()).await.unwrap_or_else(|_| {
            Err(handshake_failed(self.host.kind(), self.address(), timed_out(&self.limits)))
        })
    }

    fn address(&self) -> &str {
        self.host.address()
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        let pinned = |host| -> Box<dyn Dialer> { Box::new(Self { host, ..self.clone() }) };
        Ok(self.host.resolve().await?.into_iter().map(pinned).collect())
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

fn server_name(host: &Host) -> Result<ServerName<'static>, LinkError> {
    let name = host.name();
    ServerName::try_from(name.to_owned()).map_err(|_| LinkError::Address {
        address: host.address().to_owned(),
        cause: format!("{name:?} is not a valid server name: expected a DNS name or an IP address"),
    })
}
