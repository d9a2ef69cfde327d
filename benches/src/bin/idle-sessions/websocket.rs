//! Dials a hub over wss from a local address of choice: one address has ports for 28,000 connections to a hub.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::link::{
    Credentials, Dialer, FrameLink, Link, LinkError, LinkKind, Protection, WireFrame,
};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// The time for TCP, TLS and websocket together, as in the transport's own dialer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval of pings while no call waits, as in the transport's own dialer.
const IDLE_PING: Duration = Duration::from_secs(50);

/// The read buffer of a session.
const READ_BUFFER: usize = 4 << 10;

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
        TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await
    }

    async fn attempt(&self) -> Result<Link, LinkError> {
        let io = |source| LinkError::Io { doing: format!("connect from {}", self.from), source };
        let stream = self.connect().await.map_err(io)?;
        let config = WebSocketConfig::default().read_buffer_size(READ_BUFFER);
        let socket = client_async_with_config("wss://localhost/", stream, Some(config)).await;
        let (socket, _) = socket.map_err(|error| self.failed(error.to_string()))?;
        let link = Link::new(MessageLink(socket), LinkKind::WSS, self.address(), Credentials::None);
        Ok(link.with_protection(Protection::Verified).with_idle_ping(IDLE_PING))
    }

    fn failed(&self, cause: String) -> LinkError {
        LinkError::Handshake { kind: LinkKind::WSS, remote: self.hub.to_string(), cause }
    }
}

#[async_trait::async_trait]
impl Dialer for SourceDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let timed_out = |_| Err(self.failed(format!("timed out after {HANDSHAKE_TIMEOUT:?}")));
        tokio::time::timeout(HANDSHAKE_TIMEOUT, self.attempt()).await.unwrap_or_else(timed_out)
    }

    fn address(&self) -> &str {
        "wss://localhost"
    }
}

/// Frames as binary messages. Frames above 16 KiB, which a hub takes only in fragments, are not sent here.
struct MessageLink(WebSocketStream<TlsStream<TcpStream>>);

impl FrameLink for MessageLink {}

impl Stream for MessageLink {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            return Poll::Ready(match ready!(self.0.poll_next_unpin(cx)) {
                Some(Ok(Message::Binary(frame))) => Some(Ok(frame)),
                Some(Ok(Message::Close(_))) => None,
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => Some(Err(LinkError::Lost)),
            });
        }
    }
}

impl Sink<WireFrame> for MessageLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_ready_unpin(cx).map_err(|_| LinkError::Lost)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        let message = Message::binary([frame.head, frame.body].concat());
        self.0.start_send_unpin(message).map_err(|_| LinkError::Lost)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_flush_unpin(cx).map_err(|_| LinkError::Lost)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.0.poll_close_unpin(cx).map_err(|_| LinkError::Lost)
    }
}
