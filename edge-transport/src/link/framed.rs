//! Frames on a byte stream, with few system calls and no buffers while idle.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
#[cfg(feature = "ws")]
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use crate::link::framing::{Decoded, END, FIRST_RESERVE, decode, encode};
use crate::link::{FrameLink, LinkError, ReceiveLimits, SEND_BUFFER, WireFrame};

/// Smallest and largest size of one read in bytes; full reads double it, small ones halve it. The socket zeroes the buffer
/// before each read, so that small frames need small reads.
const READ_SIZE: (usize, usize) = (2 << 10, 128 << 10);

/// Maximum number of buffers in one vectored write.
const MAX_SLICES: usize = 16;

/// Largest write buffer in bytes that is kept while it is empty.
const MAX_IDLE_BUFFER: usize = 64 << 10;

/// Frames on a byte stream.
pub(super) struct FramedStream<S> {
    io: S,
    max_frame: usize,
    limits: ReceiveLimits,
    input: BytesMut,
    read_size: usize,
    ended: bool,
    /// Buffers to send before `tail`, in order.
    pieces: VecDeque<Bytes>,
    pieces_len: usize,
    tail: BytesMut,
    closed: bool,
    /// Returns the certificate chain of the other end, which TLS keeps.
    #[cfg(feature = "ws")]
    chain: fn(&S) -> Vec<CertificateDer<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> FramedStream<S> {
    pub(super) fn new(io: S, max_frame: usize) -> Self {
        Self {
            io,
            max_frame,
            limits: ReceiveLimits::UNLIMITED,
            input: BytesMut::new(),
            read_size: READ_SIZE.0,
            ended: false,
            pieces: VecDeque::new(),
            pieces_len: 0,
            tail: BytesMut::new(),
            closed: false,
            #[cfg(feature = "ws")]
            chain: |_| Vec::new(),
        }
    }

    /// Sets how the certificate chain of the other end is found.
    #[cfg(feature = "ws")]
    pub(super) fn with_chain(self, chain: fn(&S) -> Vec<CertificateDer<'static>>) -> Self {
        Self { chain, ..self }
    }

    /// Adds bytes that were read before.
    #[cfg(feature = "uds")]
    pub(super) fn with_input(mut self, read: Option<u8>) -> Self {
        self.input.extend(read);
        self
    }

    fn buffered(&self) -> usize {
        self.pieces_len + self.tail.len()
    }

    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, LinkError>> {
        loop {
            let max_frame = self.max_frame.min(self.limits.max_frame);
            let missing = match decode(&mut self.input, max_frame)? {
                Decoded::Frame(frame) => return Poll::Ready(Ok(Some(frame))),
                Decoded::End => return Poll::Ready(Ok(None)),
                Decoded::More(missing) => missing,
            };
            let allowed = self.limits.max_unfinished.saturating_sub(self.input.len());
            if allowed == 0 {
                // The link is polled again when its limits are raised.
                return Poll::Pending;
            }
            // Memory is reserved for received bytes, not for the announced length.
            let reserve = missing.min(self.input.len().max(FIRST_RESERVE));
            let room = self.read_size.min(allowed);
            self.input.reserve(reserve.max(room));
            match pin!(self.io.read_buf(&mut (&mut self.input).limit(room))).poll(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(LinkError::Lost)),
                Poll::Ready(Ok(read)) if read >= room => {
                    self.read_size = (self.read_size * 2).min(READ_SIZE.1);
                }
                Poll::Ready(Ok(read)) if read < self.read_size / 4 => {
                    self.read_size = (self.read_size / 2).max(READ_SIZE.0);
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(source)) => return Poll::Ready(Err(lost("read", source))),
                Poll::Pending => {
                    if self.input.is_empty() {
                        self.input = BytesMut::new();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Writes until the buffers are empty.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while self.buffered() > 0 {
            let written = {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let waiting =
                    self.pieces.iter().map(|piece| &piece[..]).chain(std::iter::once(&self.tail[..]));
                let count =
                    slices.iter_mut().zip(waiting).map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
                ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]))
            };
            match written {
                Ok(0) => return Poll::Ready(Err(LinkError::Lost)),
                Ok(written) => self.sent(written),
                Err(source) => return Poll::Ready(Err(lost("write", source))),
            }
        }
        if self.tail.capacity() > MAX_IDLE_BUFFER {
            self.tail = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    fn sent(&mut self, mut written: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let now = written.min(piece.len());
            piece.advance(now);
            self.pieces_len -= now;
            written -= now;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.tail.advance(written);
    }
}

/// Converts an error: a lost connection becomes [`LinkError::Lost`], any other error keeps its source.
fn lost(doing: &'static str, source: io::Error) -> LinkError {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    match source.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => LinkError::Lost,
        _ => LinkError::Io { doing: format!("{doing} on the link"), source },
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for FramedStream<S> {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll_input(cx)).transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> FrameLink for FramedStream<S> {
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        self.limits = ReceiveLimits { max_frame, max_unfinished };
    }

    fn unfinished(&self) -> usize {
        self.input.len()
    }

    fn unwritten(&self) -> usize {
        self.buffered()
    }

    #[cfg(feature = "ws")]
    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        (self.chain)(&self.io)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<WireFrame> for FramedStream<S> {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.buffered() < SEND_BUFFER {
            return Poll::Ready(Ok(()));
        }
        self.poll_drain(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        if self.closed {
            return Err(LinkError::Lost);
        }
        let max_frame = self.max_frame;
        if let Some(body) = encode(frame, max_frame, &mut self.tail)? {
            let tail = self.tail.split().freeze();
            self.pieces_len += tail.len() + body.len();
            self.pieces.extend([tail, body]);
        }
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_drain(cx))?;
        // The stream may have a buffer of its own, as TLS does.
        Pin::new(&mut self.io).poll_flush(cx).map_err(|source| lost("write", source))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if !self.closed {
            self.closed = true;
            self.tail.put_u32(END);
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx).map_err(|source| lost("close", source))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::link::Lane;

    fn frame(size: usize) -> WireFrame {
        WireFrame::new(Lane::Control, false, Bytes::from_static(b"head"), Bytes::from(vec![1; size]))
    }

    #[tokio::test]
    async fn sends_many_frames_in_one_write() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (mut io, mut writes) = (near, 0);
        let mut link = FramedStream::new(Counting { io: &mut io, writes: &mut writes }, 1 << 20);
        for _ in 0..100 {
            link.feed(frame(300)).await.unwrap();
        }
        link.flush().await.unwrap();
        drop(link);
        assert_eq!(writes, 1);
        drop(far);
    }

    /// A stream may keep what is written to it, as TLS does, until it is flushed.
    #[tokio::test]
    async fn flushes_the_buffer_of_its_stream() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let mut sending = FramedStream::new(tokio::io::BufWriter::new(near), 1 << 20);
        let mut receiving = FramedStream::new(far, 1 << 20);
        sending.send(frame(1)).await.unwrap();
        let received = futures_util::poll!(receiving.next());
        assert!(matches!(received, Poll::Ready(Some(Ok(_)))), "{received:?}");
    }

    struct Counting<'a, S> {
        io: &'a mut S,
        writes: &'a mut usize,
    }

    impl<S: AsyncRead + Unpin> AsyncRead for Counting<'_, S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut *self.io).poll_read(cx, buffer)
        }
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<'_, S> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            *self.writes += 1;
            Pin::new(&mut *self.io).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            *self.writes += 1;
            Pin::new(&mut *self.io).poll_write_vectored(cx, slices)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut *self.io).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut *self.io).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn distinguishes_lost_from_closed_streams() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let mut link = FramedStream::new(near, 100);
        far.write_all(&[0, 0, 0, 2, b'o', b'k', 0, 0, 0, 9, b'x']).await.unwrap();
        drop(far);
        assert_eq!(link.next().await.unwrap().unwrap(), "ok");
        assert!(matches!(link.next().await, Some(Err(LinkError::Lost))));
        assert!(link.next().await.is_none());

        let (near, far) = tokio::io::duplex(1 << 10);
        let (mut near, mut far) = (FramedStream::new(near, 100), FramedStream::new(far, 100));
        near.close().await.unwrap();
        assert!(far.next().await.is_none());
        assert!(matches!(near.send(frame(1)).await, Err(LinkError::Lost)));
    }

    #[tokio::test]
    async fn idle_link_has_no_buffers() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (mut near, mut far) = (FramedStream::new(near, 8 << 20), FramedStream::new(far, 8 << 20));
        let (sent, received) = tokio::join!(near.send(frame(4 << 20)), far.next());
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap().len(), (4 << 20) + 4);
        assert!(futures_util::poll!(far.next()).is_pending());
        assert_eq!(far.input.capacity(), 0);
        assert!(near.tail.capacity() <= MAX_IDLE_BUFFER && near.pieces.is_empty());
    }

    /// Before its peer is admitted, a link ends at a length above 16 KiB, and holds at most 20 KiB; later it reads
    /// as far as allowed.
    #[tokio::test]
    async fn reads_no_further_than_allowed() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut link = FramedStream::new(near, 8 << 20);
        link.limits = ReceiveLimits::UNADMITTED;
        far.write_all(&(8_u32 << 20).to_be_bytes()).await.unwrap();
        assert!(matches!(link.next().await, Some(Err(LinkError::TooLarge { found: 0x0080_0000, .. }))));

        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut link = FramedStream::new(near, 8 << 20);
        far.write_all(&(1_u32 << 20).to_be_bytes()).await.unwrap();
        far.write_all(&[0; 200 << 10]).await.unwrap();
        for max_unfinished in [20 << 10, 100 << 10] {
            link.limit_receiving(usize::MAX, max_unfinished);
            assert!(futures_util::poll!(link.next()).is_pending());
            assert_eq!(link.unfinished(), max_unfinished);
        }
    }

    #[tokio::test]
    async fn announced_length_allocates_nothing() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let mut link = FramedStream::new(near, 8 << 20);
        far.write_all(&(8_u32 << 20).to_be_bytes()).await.unwrap();
        assert!(futures_util::poll!(link.next()).is_pending());
        assert!(link.input.capacity() <= 2 * FIRST_RESERVE, "{}", link.input.capacity());
        let mut nothing = [0; 1];
        assert!(futures_util::poll!(std::pin::pin!(far.read(&mut nothing))).is_pending());
    }
}
