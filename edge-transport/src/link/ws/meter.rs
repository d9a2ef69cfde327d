//! Limits what a websocket receives: measures the unfinished message below the websocket library, which buffers
//! it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::ReceiveLimits;

/// Longest header of a websocket frame in bytes: two, eight of length, four of mask (RFC 6455 section 5.2).
const MAX_FRAME_HEADER: usize = 14;

/// Longest payload of a control frame in bytes (RFC 6455 section 5.5). The library would reserve memory for a longer one.
const MAX_CONTROL_PAYLOAD: usize = 125;

/// A message is larger than allowed. The cause of an I/O error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("websocket message of {found} bytes; at most {max} are allowed")]
pub(super) struct MessageTooLarge {
    /// Announced bytes of the message.
    pub(super) found: usize,
    /// Bound in bytes.
    pub(super) max: usize,
}

/// A byte stream that measures the websocket frames read from it. It stops reading while an unfinished message is
/// as large as allowed.
pub(super) struct MeteredStream<S> {
    io: S,
    scanner: Option<FrameScanner>,
    /// Bytes read during the handshake.
    handshake: usize,
    limits: ReceiveLimits,
}

impl<S> MeteredStream<S> {
    /// Wraps a stream before its handshake, of TLS or websocket, which may use as many bytes as a first frame.
    pub(super) fn new(io: S) -> Self {
        Self { io, scanner: None, handshake: 0, limits: ReceiveLimits::UNADMITTED }
    }

    /// Starts to measure frames: the handshake is complete.
    pub(super) fn begin_frames(&mut self) {
        self.scanner = Some(FrameScanner::default());
        self.limits = ReceiveLimits::UNLIMITED;
    }

    pub(super) const fn get_ref(&self) -> &S {
        &self.io
    }

    pub(super) const fn set_limits(&mut self, limits: ReceiveLimits) {
        self.limits = limits;
    }

    /// Bytes of the unfinished message.
    pub(super) fn unfinished(&self) -> usize {
        self.scanner.as_ref().map_or(0, |scanner| scanner.unfinished)
    }

    fn check(&mut self, bytes: &[u8]) -> Result<(), MessageTooLarge> {
        let max = self.limits.max_frame;
        match &mut self.scanner {
            Some(scanner) => scanner.scan(bytes, max),
            None => {
                self.handshake += bytes.len();
                let found = self.handshake;
                if found > max { Err(MessageTooLarge { found, max }) } else { Ok(()) }
            }
        }
    }
}

/// The position in a sequence of websocket frames.
#[derive(Debug, Default)]
struct FrameScanner {
    header: [u8; MAX_FRAME_HEADER],
    header_len: usize,
    /// Bytes of the current frame's payload that have not arrived.
    payload_left: u64,
    /// Bytes of the current frame that have arrived, with its header.
    frame: usize,
    /// Announced payload of the current message.
    message: u64,
    /// Bytes of the current message that have arrived, with their headers.
    unfinished: usize,
}

impl FrameScanner {
    fn scan(&mut self, mut bytes: &[u8], max_message: usize) -> Result<(), MessageTooLarge> {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let part = bytes.len().min(usize::try_from(self.payload_left).unwrap_or(usize::MAX));
                bytes = bytes.get(part..).unwrap_or_default();
                self.payload_left -= part as u64;
                self.count(part);
            } else {
                let part = self.add_to_header(bytes);
                bytes = bytes.get(part..).unwrap_or_default();
                self.count(part);
                let Some(length) = self.payload_length() else { continue };
                self.payload_left = length;
                if self.is_control() {
                    let found = usize::try_from(length).unwrap_or(usize::MAX);
                    if found > MAX_CONTROL_PAYLOAD {
                        return Err(MessageTooLarge { found, max: MAX_CONTROL_PAYLOAD });
                    }
                }
                if !self.is_control() {
                    self.message = self.message.saturating_add(length);
                    let found = usize::try_from(self.message).unwrap_or(usize::MAX);
                    if found > max_message {
                        return Err(MessageTooLarge { found, max: max_message });
                    }
                }
            }
            if self.payload_left == 0 && self.payload_length().is_some() {
                self.end_frame();
            }
        }
        Ok(())
    }

    const fn count(&mut self, bytes: usize) {
        self.frame += bytes;
        self.unfinished += bytes;
    }

    /// Adds the bytes that belong to the current frame's header, at least one, and returns their number.
    fn add_to_header(&mut self, bytes: &[u8]) -> usize {
        let before = self.header_len;
        for (slot, byte) in self.header.iter_mut().skip(before).zip(bytes) {
            *slot = *byte;
        }
        let (extended, mask) = self.header_parts();
        // The length of the header is in its second byte.
        let whole = if before + bytes.len() < 2 { 2 } else { 2 + extended + mask };
        self.header_len = whole.min(before + bytes.len());
        self.header_len - before
    }

    /// The bytes of the extended length and of the mask, once the header has two bytes.
    const fn header_parts(&self) -> (usize, usize) {
        let [_, second, ..] = self.header;
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        (extended, if second & 0x80 == 0 { 0 } else { 4 })
    }

    /// The length of the current frame's payload, once its header is complete.
    fn payload_length(&self) -> Option<u64> {
        let (extended, mask) = self.header_parts();
        if self.header_len < 2 + extended + mask {
            return None;
        }
        let [_, second, rest @ ..] = &self.header;
        let length = |bytes: &[u8]| bytes.iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        match extended {
            0 => Some(u64::from(second & 0x7f)),
            _ => rest.get(..extended).map(length),
        }
    }

    const fn is_control(&self) -> bool {
        self.header[0] & 0x08 != 0
    }

    /// A control frame may occur within a message and leaves it unfinished.
    fn end_frame(&mut self) {
        if self.is_control() {
            self.unfinished -= self.frame;
        } else if self.header[0] & 0x80 != 0 {
            (self.unfinished, self.message) = (0, 0);
        }
        (self.frame, self.header_len) = (0, 0);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unfinished() >= self.limits.max_unfinished {
            // The link is polled again when its limits are raised.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        let checked = self.check(read);
        Poll::Ready(checked.map_err(|error| {
            // A failed read returns no bytes.
            buffer.set_filled(before);
            io::Error::new(io::ErrorKind::InvalidData, error)
        }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// A frame of a client, with its first byte and a payload of zeros.
    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![first];
        match payload {
            0..126 => frame.push(0x80 | payload as u8),
            126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((payload as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend([1, 2, 3, 4]);
        frame.resize(frame.len() + payload, 0);
        frame
    }

    /// Messages, fragments and pings of all lengths are measured byte by byte and in one piece.
    #[test]
    fn measures_the_unfinished_message() {
        let mut wire = [frame(0x82, 0), frame(0x82, 125), frame(0x82, 126), frame(0x82, 70_000)].concat();
        let unfinished = [frame(0x02, 300), frame(0x89, 125), frame(0x00, 0)].concat();
        wire.extend(&unfinished);
        wire.extend(&frame(0x80, 100)[..50]);
        let expected = unfinished.len() - frame(0x89, 125).len() + 50;
        for step in [1, 7, wire.len()] {
            let mut scanner = FrameScanner::default();
            for part in wire.chunks(step) {
                scanner.scan(part, 70_000).unwrap();
            }
            assert_eq!(scanner.unfinished, expected, "{step}");
        }
    }

    /// An announced length ends the link before its bytes are read, also as the sum of fragments.
    #[tokio::test]
    async fn refuses_a_message_by_its_announced_length() {
        let header = frame(0x82, 8 << 20)[..14].to_vec();
        let fragments = [frame(0x02, 10_000), frame(0x00, 6_385)].concat();
        for (wire, found) in [(header, 8 << 20), (fragments, 16_385)] {
            let mut stream = MeteredStream::new(&wire[..]);
            stream.begin_frames();
            stream.set_limits(ReceiveLimits::UNADMITTED);
            let error = stream.read_to_end(&mut Vec::new()).await.unwrap_err();
            let error = *error.get_ref().unwrap().downcast_ref::<MessageTooLarge>().unwrap();
            assert_eq!(error, MessageTooLarge { found, max: 16 << 10 });
        }
    }

    /// A ping that announces more than a control frame may have ends the link at its header.
    #[test]
    fn refuses_a_long_control_frame_by_its_header() {
        let header = frame(0x89, 8 << 20)[..14].to_vec();
        let error = FrameScanner::default().scan(&header, 16 << 20).unwrap_err();
        assert_eq!(error, MessageTooLarge { found: 8 << 20, max: 125 });
    }

    /// The handshake's request is limited like a first frame.
    #[tokio::test]
    async fn limits_the_handshake_request() {
        let endless = [b'a'; 64 << 10];
        let mut stream = MeteredStream::new(&endless[..]);
        let (mut buffer, mut read) = ([0; 4096], 0);
        let error = loop {
            match stream.read(&mut buffer).await {
                Ok(more) => read += more,
                Err(error) => break error,
            }
        };
        assert_eq!((read, error.kind()), (16 << 10, io::ErrorKind::InvalidData));
    }

    /// Reading stops while the unfinished message is as large as allowed, and continues when more is allowed.
    #[tokio::test]
    async fn reads_no_further_than_allowed() {
        let wire = frame(0x82, 1 << 20);
        let mut stream = MeteredStream::new(&wire[..]);
        stream.begin_frames();
        let mut buffer = [0; 4096];
        for max_unfinished in [20 << 10, 100 << 10] {
            stream.set_limits(ReceiveLimits { max_frame: usize::MAX, max_unfinished });
            while futures_util::poll!(std::pin::pin!(stream.read(&mut buffer))).is_ready() {}
            let read = wire.len() - stream.io.len();
            assert!((max_unfinished..max_unfinished + 4096).contains(&read), "{read}");
            assert_eq!(stream.unfinished(), read);
        }
    }
}
