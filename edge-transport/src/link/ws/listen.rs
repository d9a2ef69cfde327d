//! The accepting side.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::server::NoCallback;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::meter::{MessageTooLarge, MeteredStream};
use super::stream::WsLink;
use super::{GREETING, READ_BUFFER, TLS_READ_BUFFER, config, explain, handshake_failed, timed_out};
use crate::link::framed::FramedStream;
use crate::link::{
    Credentials, Incoming, Limits, Link, LinkError, LinkKind, Listener, PeerCertificate, Protection,
    ReceiveLimits, classify,
};
use crate::tls::{LINK_PROTOCOL, ServerTls, peer_certificate};

/// Accepts websocket links; created by [`bind`].
#[derive(Debug)]
pub(in crate::link) struct WsListener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<ServerTls>,
    limits: Limits,
}

/// Listens on a TCP address: `wss` with a TLS configuration (see [`ServerTls::new`]), plain `ws` without. Plain
/// links have no credentials and are not encrypted.
///
/// # Errors
/// If the address cannot be bound.
pub(in crate::link) async fn bind(
    address: impl ToSocketAddrs + fmt::Display,
    tls: Option<ServerTls>,
    limits: Limits,
) -> Result<WsListener, LinkError> {
    let failed = |source| LinkError::Io { doing: format!("listen on {address} (tcp)"), source };
    let listener = TcpListener::bind(&address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok(WsListener { listener, address: bound, tls, limits })
}

#[async_trait::async_trait]
impl Listener for WsListener {
    async fn accept(&mut self) -> Result<Incoming, LinkError> {
        let (stream, from) = match classify(self.listener.accept().await, || self.local_address()).await? {
            Ok(accepted) => accepted,
            Err(error) => return Ok(Incoming::new(std::future::ready(Err(error)))),
        };
        let unserved =
            Unserved { stream: Some(stream), from, tls: self.tls.clone(), limits: self.limits.clone() };
        let incoming = Incoming::with_first_byte(unserved, Unserved::poll_first_byte, Unserved::handshake);
        Ok(incoming.from_address(from.ip()))
    }

    fn kind(&self) -> LinkKind {
        if self.tls.is_some() { LinkKind::WSS } else { LinkKind::WS }
    }

    fn local_address(&self) -> String {
        format!("{}://{}", self.kind(), self.address)
    }
}

/// A connection whose handshake has not started. Dropping it sends a refusal, so that the peer retries later.
struct Unserved {
    stream: Option<TcpStream>,
    from: SocketAddr,
    tls: Option<ServerTls>,
    limits: Limits,
}

/// A TLS record with the fatal alert `internal_error`: "unrelated to the peer" (RFC 8446 section 6.2).
const BUSY_TLS: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

const BUSY_HTTP: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

impl Unserved {
    fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let Some(stream) = &self.stream else { return Poll::Ready(Err(LinkError::Lost)) };
        let mut byte = [0; 1];
        let peeked = ready!(stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)));
        Poll::Ready(if matches!(peeked, Ok(1..)) { Ok(()) } else { Err(LinkError::Lost) })
    }

    async fn handshake(mut self) -> Result<Link, LinkError> {
        let Some(stream) = self.stream.take() else { return Err(LinkError::Lost) };
        let (tls, limits, remote) = (self.tls.take(), &self.limits, self.from.to_string());
        let kind = if tls.is_some() { LinkKind::WSS } else { LinkKind::WS };
        let link = tokio::time::timeout(limits.handshake_timeout, accept(stream, &remote, tls, limits));
        link.await.unwrap_or_else(|_| Err(handshake_failed(kind, &remote, timed_out(limits))))
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            refuse(stream, self.tls.is_some());
        }
    }
}

/// Sends a refusal as well as possible, so that the peer retries later.
fn refuse(stream: TcpStream, tls: bool) {
    // Neither call blocks: the runtime's sockets are non-blocking.
    if let Ok(mut stream) = stream.into_std() {
        // If the request is not read, closing resets the connection and the response is lost.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write(if tls { BUSY_TLS } else { BUSY_HTTP });
    }
}

async fn accept(
    stream: TcpStream,
    remote: &str,
    tls: Option<ServerTls>,
    limits: &Limits,
) -> Result<Link, LinkError> {
    // Without TCP_NODELAY the kernel delays small writes of the handshake and of every call.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        let socket = upgrade(stream, LinkKind::WS, remote, limits).await?;
        return Ok(Link::new(WsLink::new(socket, limits.max_frame), LinkKind::WS, remote, Credentials::None));
    };
    let (config, verified_by) = match tls.current() {
        Ok(current) => current,
        Err(error) => {
            refuse(stream, true);
            return Err(handshake_failed(LinkKind::WSS, remote, error.to_string()));
        }
    };
    let mut stream = TlsAcceptor::from(config)
        .accept(MeteredStream::new(stream))
        .await
        .map_err(|error| handshake_failed(LinkKind::WSS, remote, tls_cause(&error)))?;
    stream.get_mut().0.set_limits(ReceiveLimits::UNLIMITED);
    let credentials = match stream.get_ref().1.peer_certificates() {
        Some([own, ..]) => Credentials::Certificate(PeerCertificate { verified_by, ..peer_certificate(own) }),
        _ => Credentials::None,
    };
    let protection = Protection::of_tls(&credentials);
    let link = if stream.get_ref().1.alpn_protocol() == Some(LINK_PROTOCOL) {
        let greeted = async {
            stream.write_u8(GREETING).await?;
            stream.flush().await
        };
        greeted.await.map_err(|error| handshake_failed(LinkKind::WSS, remote, tls_cause(&error)))?;
        let io = FramedStream::new(stream, limits.max_frame).with_chain(chain);
        Link::new(io, LinkKind::WSS, remote, credentials)
    } else {
        let socket = upgrade(stream, LinkKind::WSS, remote, limits).await?;
        let io = WsLink::new(socket, limits.max_frame).with_chain(chain);
        Link::new(io, LinkKind::WSS, remote, credentials)
    };
    Ok(link.with_protection(protection))
}

fn chain<S>(stream: &TlsStream<S>) -> Vec<CertificateDer<'static>> {
    stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default()
}

fn tls_cause(error: &io::Error) -> String {
    if let Some(MessageTooLarge { max, .. }) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return format!("a TLS handshake of more than {max} bytes; present a shorter certificate chain");
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            "not a TLS handshake; connect to this port with wss://".to_owned()
        }
        Some(rustls::Error::NoCertificatesPresented) => {
            "the client sent no certificate: give it one issued by the client CA".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The server side of the websocket handshake. Other requests get an HTTP error.
async fn upgrade<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    kind: LinkKind,
    remote: &str,
    limits: &Limits,
) -> Result<WebSocketStream<MeteredStream<S>>, LinkError> {
    let read_buffer = if kind == LinkKind::WSS { TLS_READ_BUFFER } else { READ_BUFFER };
    let config = Some(config(limits.max_frame, read_buffer));
    let mut stream = MeteredStream::new(stream);
    // The stream is borrowed, so that an error response can be sent below. A client that sends data before the response is
    // refused, so that no data is lost between this socket and the final one.
    let outcome =
        tokio_tungstenite::accept_hdr_async_with_config(&mut stream, NoCallback, config).await.map(drop);
    if let Err(error) = outcome {
        if let Some(answer) = refusal(&error) {
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        return Err(handshake_failed(kind, remote, explain(error)));
    }
    Ok(WebSocketStream::from_raw_socket(stream, Role::Server, config).await)
}

/// Returns the error response; `None` if the connection is lost.
fn refusal(error: &Error) -> Option<String> {
    let status = match error {
        Error::Io(_) => return None,
        Error::Protocol(
            ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader
            | ProtocolError::MissingSecWebSocketVersionHeader,
        ) => "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
        _ => "400 Bad Request",
    };
    let text = format!("This port supports only websocket: {error}\n");
    Some(format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    ))
}
