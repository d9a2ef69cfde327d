//! Frames as binary messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::FRAGMENT;
use super::meter::{MessageTooLarge, MeteredStream};
use crate::link::memory::into_bytes;
use crate::link::{FrameLink, LinkError, ReceiveLimits, WireFrame};

/// Pings and other messages without a frame that are read before the task yields: their number is not limited.
const CONTROL_BATCH: usize = 32;

/// The unsent rest of a large message.
struct Rest {
    pieces: [Bytes; 2],
    begun: bool,
}

impl Rest {
    fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Returns the next fragment; `None` after the last one.
    fn next(&mut self) -> Option<Frame> {
        let from = self.pieces.iter_mut().find(|piece| !piece.is_empty())?;
        let fragment = from.split_to(from.len().min(FRAGMENT));
        let opcode = if self.begun { Data::Continue } else { Data::Binary };
        self.begun = true;
        let last = self.pieces.iter().all(Bytes::is_empty);
        Some(Frame::message(fragment, OpCode::Data(opcode), last))
    }
}

/// Frames over a websocket.
pub(super) struct WsLink<S> {
    socket: WebSocketStream<MeteredStream<S>>,
    max_frame: usize,
    rest: Option<Rest>,
    ended: bool,
    closed: bool,
    /// Returns the certificate chain of the other end, which TLS keeps.
    chain: fn(&S) -> Vec<CertificateDer<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsLink<S> {
    /// Wraps a websocket whose handshake is complete.
    pub(super) fn new(mut socket: WebSocketStream<MeteredStream<S>>, max_frame: usize) -> Self {
        socket.get_mut().begin_frames();
        Self { socket, max_frame, rest: None, ended: false, closed: false, chain: |_| Vec::new() }
    }

    /// Sets how the certificate chain of the other end is found.
    pub(super) fn with_chain(self, chain: fn(&S) -> Vec<CertificateDer<'static>>) -> Self {
        Self { chain, ..self }
    }

    fn socket(&mut self) -> Pin<&mut WebSocketStream<MeteredStream<S>>> {
        Pin::new(&mut self.socket)
    }

    /// Sends the rest of a large message.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while self.rest.is_some() {
            ready!(self.socket().poll_ready(cx)).map_err(lost)?;
            match self.rest.as_mut().and_then(Rest::next) {
                Some(fragment) => self.socket().start_send(Message::Frame(fragment)).map_err(lost)?,
                None => self.rest = None,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Converts an error: a lost connection becomes [`LinkError::Lost`], a violation of the other end keeps its description, any
/// other error its source.
fn lost(error: Error) -> LinkError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    match error {
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake | ProtocolError::SendAfterClosing) => {
            LinkError::Lost
        }
        Error::Io(source) => match source.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => {
                LinkError::Lost
            }
            _ => match source.get_ref().and_then(|cause| cause.downcast_ref()) {
                Some(MessageTooLarge { found, max }) => LinkError::TooLarge { found: *found, max: *max },
                None => LinkError::Io { doing: "use the websocket".to_owned(), source },
            },
        },
        Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            LinkError::TooLarge { found: size, max: max_size }
        }
        error => LinkError::Malformed { cause: error.to_string() },
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WsLink<S> {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut skipped = 0;
        let outcome = loop {
            if self.ended {
                return Poll::Ready(None);
            }
            if skipped == CONTROL_BATCH {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.socket().poll_next(cx)) {
                Some(Ok(Message::Binary(frame))) => return Poll::Ready(Some(Ok(frame))),
                // The library answers a ping with the next read or write, and only the last ping while it cannot write.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => skipped += 1,
                Some(Ok(Message::Close(_))) => {
                    // The reply is optional; whether it is sent does not matter here.
                    let _ = self.socket().poll_flush(cx);
                    break None;
                }
                Some(Ok(Message::Text(_))) => {
                    let cause = "received a text message; frames are binary messages".to_owned();
                    break Some(Err(LinkError::Malformed { cause }));
                }
                Some(Err(Error::Capacity(CapacityError::MessageTooLong { size, max_size: FRAGMENT }))) => {
                    break Some(Err(match size <= self.max_frame {
                        true => LinkError::Malformed {
                            cause: format!("fragment of {size} bytes; expected at most {FRAGMENT}"),
                        },
                        false => LinkError::TooLarge { found: size, max: self.max_frame },
                    }));
                }
                Some(Err(error)) => break Some(Err(lost(error))),
                None => break Some(Err(LinkError::Lost)),
            }
        };
        self.ended = true;
        Poll::Ready(outcome)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> FrameLink for WsLink<S> {
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        self.socket.get_mut().set_limits(ReceiveLimits { max_frame, max_unfinished });
    }

    fn unfinished(&self) -> usize {
        self.socket.get_ref().unfinished()
    }

    fn unwritten(&self) -> usize {
        self.rest.as_ref().map_or(0, Rest::len)
    }

    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        (self.chain)(self.socket.get_ref().get_ref())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<WireFrame> for WsLink<S> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_rest(cx))?;
        self.socket().poll_ready(cx).map_err(lost)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        if self.closed {
            return Err(LinkError::Lost);
        }
        let found = frame.len();
        if found > self.max_frame {
            return Err(LinkError::TooLarge { found, max: self.max_frame });
        }
        if found <= FRAGMENT {
            return self.socket().start_send(Message::Binary(into_bytes(frame))).map_err(lost);
        }
        self.rest = Some(Rest { pieces: [frame.head, frame.body], begun: false });
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_rest(cx))?;
        self.socket().poll_flush(cx).map_err(lost)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_rest(cx))?;
        self.closed = true;
        match ready!(self.socket().poll_close(cx)).map_err(lost) {
            // The other end closed first.
            Ok(()) | Err(LinkError::Lost) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, poll};
    use tokio::io::AsyncWriteExt;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;
    use crate::link::DEFAULT_MAX_FRAME;
    use crate::link::ws::{READ_BUFFER, config};

    /// An accepting end that has received these bytes.
    async fn received(bytes: &[u8]) -> (WsLink<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let config = Some(config(DEFAULT_MAX_FRAME, READ_BUFFER));
        let socket = WebSocketStream::from_raw_socket(MeteredStream::new(near), Role::Server, config).await;
        far.write_all(bytes).await.unwrap();
        (WsLink::new(socket, DEFAULT_MAX_FRAME), far)
    }

    /// A client cannot make the library keep a buffer of a whole large message: only fragments are accepted.
    #[tokio::test]
    async fn large_message_without_fragments_ends_the_link() {
        let size = FRAGMENT as u32 + 1;
        let header = [&[0x82, 0xff, 0, 0, 0, 0][..], &size.to_be_bytes(), &[0; 4]].concat();
        let (mut link, _far) = received(&header).await;
        let error = link.next().await.unwrap().unwrap_err();
        assert!(matches!(&error, LinkError::Malformed { cause } if cause.contains("16385")), "{error}");
    }

    /// Other tasks run between the answers to many pings.
    #[tokio::test]
    async fn many_pings_yield_to_other_tasks() {
        let pings = [0x89, 0x80, 0, 0, 0, 0].repeat(2 * CONTROL_BATCH);
        let (mut link, _far) = received(&[&pings[..], &[0x82, 0x81, 0, 0, 0, 0, b'x']].concat()).await;
        for _ in 0..2 {
            assert!(poll!(link.next()).is_pending());
        }
        assert_eq!(link.next().await.unwrap().unwrap(), "x");
    }
}
