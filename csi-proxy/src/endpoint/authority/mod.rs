//! Accepts callers that send the path of the socket, or nothing, as `:authority`.
//!
//! `h2` resets each such stream with `PROTOCOL_ERROR`, which the caller sees as `INTERNAL`. Over a unix socket the
//! authority carries no information, so it is rewritten before `h2` parses it: an invalid authority becomes a valid
//! one of the same length, made of `x`.
//!
//! Clients that need the rewrite, with their current releases:
//! - gRPC's C core, and so Python, C++, Ruby and PHP: for `unix:` targets the authority is the percent-encoded
//!   path without its first slash, since `UnixResolverFactory` in
//!   `src/core/resolver/sockaddr/sockaddr_resolver.cc` does not replace `ResolverFactory::GetDefaultAuthority` of
//!   `src/core/resolver/resolver_factory.h`. Observed with grpcio 1.85.1.
//! - grpc-go 1.85.0 where a program gives a path and a dialer and no `WithAuthority`: `initAuthority` in `clientconn.go`
//!   percent-encodes the path.
//!
//! Clients that do not need it: csi-lib-utils 0.24.0 (`connection/connection.go`), and so the sidecars, since
//! grpc-go sends `localhost` for `unix:` targets (`internal/resolver/unix/unix.go`); kubelet 1.36.3
//! (`pkg/volume/csi/csi_client.go`) and csi-sanity 5.6.0 (`pkg/sanity/sanity.go`), which set
//! `WithAuthority("localhost")`.
//!
//! The length matters. Header compression stores the field in a table at both ends, which evicts by length; with the
//! length unchanged both tables stay equal, and no other part of the compression must be implemented here.
//!
//! If the first call of a connection has a valid authority, as today's sidecars send, the rest of the connection
//! passes without inspection.

mod block;
mod huffman;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::block::corrected;

/// The bytes before the first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;

/// A frame's length, type, flags and stream (RFC 9113, section 4.1).
const HEAD: usize = 9;

const HEADERS: u8 = 1;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// The maximum size of a header block that is buffered; larger blocks pass unchanged.
const MAX_BLOCK: usize = 16 * 1024;

/// The read size until the first call has been inspected.
const CHUNK: usize = 4 * 1024;

/// A connection whose invalid authorities are rewritten on read. Writes pass unchanged.
#[derive(Debug)]
pub(super) struct AuthorityRewriter<S> {
    socket: S,
    filter: Filter,
    /// Filtered bytes that were not read yet.
    passed: bytes::BytesMut,
}

impl<S> AuthorityRewriter<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, filter: Filter::default(), passed: bytes::BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, filter, passed } = &mut *self;
        loop {
            if passed.has_remaining() {
                let size = passed.len().min(buf.remaining());
                buf.put_slice(&passed.split_to(size));
                return Poll::Ready(Ok(()));
            }
            if filter.state == State::Open {
                return Pin::new(socket).poll_read(cx, buf);
            }
            let mut bytes = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // End of stream. The buffered bytes are an incomplete frame and are dropped.
                return Poll::Ready(Ok(()));
            }
            filter.push(chunk.filled(), passed);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Rewrites the authorities in a stream of frames, received in pieces.
#[derive(Debug)]
struct Filter {
    state: State,
    /// Whether an authority was rewritten on this connection.
    has_rewritten: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// This many bytes pass without inspection.
    Skipping(usize),
    /// The received part of a frame head.
    Head(Vec<u8>),
    /// The received part of a frame with headers, and the length of the frame.
    Block(Vec<u8>, usize),
    /// Everything passes without inspection.
    Open,
}

impl Default for Filter {
    fn default() -> Self {
        Self { state: State::Skipping(PREFACE), has_rewritten: false }
    }
}

impl Filter {
    fn push(&mut self, mut bytes: &[u8], passed: &mut bytes::BytesMut) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Open => return passed.extend_from_slice(bytes),
                State::Skipping(left) => {
                    let (skipped, rest) = bytes.split_at((*left).min(bytes.len()));
                    passed.extend_from_slice(skipped);
                    bytes = rest;
                    *left -= skipped.len();
                    if *left == 0 {
                        self.state = State::Head(Vec::with_capacity(HEAD));
                    }
                }
                State::Head(head) => {
                    bytes = fill(head, HEAD, bytes);
                    if head.len() == HEAD {
                        self.state = state_after(std::mem::take(head), passed);
                    }
                }
                State::Block(frame, whole) => {
                    bytes = fill(frame, *whole, bytes);
                    if frame.len() == *whole {
                        let frame = std::mem::take(frame);
                        self.block(&frame, passed);
                    }
                }
            }
        }
    }

    fn block(&mut self, frame: &[u8], passed: &mut bytes::BytesMut) {
        let (head, payload) = frame.split_at(HEAD);
        let flags = head.get(4).copied().unwrap_or_default();
        // The priority before the block: a weight and a stream dependency.
        let (before, block) = payload.split_at(if flags & PRIORITY == 0 { 0 } else { 5.min(payload.len()) });
        // Clients do not pad requests.
        let corrected = if flags & PADDED == 0 { corrected(block) } else { None };
        let Some(block) = corrected else {
            passed.extend_from_slice(frame);
            self.state = if self.has_rewritten { State::Head(Vec::with_capacity(HEAD)) } else { State::Open };
            return;
        };
        if !self.has_rewritten {
            tracing::debug!("rewriting invalid authority of a caller");
        }
        self.has_rewritten = true;
        self.state = State::Head(Vec::with_capacity(HEAD));
        let length = before.len() + block.len();
        // The length has three bytes; a buffered block and its rewrite are far below the limit.
        passed.extend_from_slice(
            u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes().get(1..).unwrap_or_default(),
        );
        passed.extend_from_slice(head.get(3..).unwrap_or_default());
        passed.extend_from_slice(before);
        passed.extend_from_slice(&block);
    }
}

/// Appends bytes up to the given length and returns the rest.
fn fill<'a>(to: &mut Vec<u8>, whole: usize, bytes: &'a [u8]) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(whole.saturating_sub(to.len()).min(bytes.len()));
    to.extend_from_slice(taken);
    rest
}

/// The state after the head of a frame.
fn state_after(head: Vec<u8>, passed: &mut bytes::BytesMut) -> State {
    let length = head.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte));
    if head.get(3) == Some(&HEADERS) && (1..=MAX_BLOCK).contains(&length) {
        return State::Block(head, HEAD + length);
    }
    passed.extend_from_slice(&head);
    if length == 0 { State::Head(Vec::with_capacity(HEAD)) } else { State::Skipping(length) }
}

#[cfg(test)]
mod tests;
