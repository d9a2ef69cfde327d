//! Frames off one incoming stream.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use quinn::{ReadError, RecvStream};

use super::FORMAT;
use crate::link::LinkError;
use crate::link::framing::{BEGIN, END, FIRST_RESERVE, PREFIX, checked};

/// Pieces taken from the stream at once.
const PIECES: usize = 16;

/// Bytes behind the end mark: how many streams there were.
const COUNT: usize = 8;

/// What an incoming stream brings.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A frame.
    Frame(Bytes),
    /// The other end sends no more; it has opened so many streams.
    End(u64),
    /// The first byte of the control stream: the other end has accepted the link.
    Greeting,
    /// No control frame comes first.
    Begin,
}

/// The bytes of unfinished frames on all streams of a link, which have one bound together.
#[derive(Debug, Clone)]
pub(super) struct Unfinished {
    held: Arc<AtomicUsize>,
    max: usize,
}

impl Unfinished {
    pub(super) fn new(max: usize) -> Self {
        Self { held: Arc::default(), max }
    }

    fn add(&self, bytes: usize) -> Result<(), LinkError> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > self.max {
            let cause = format!("unfinished frames hold {held} bytes; at most {} are allowed", self.max);
            return Err(LinkError::Malformed { cause });
        }
        Ok(())
    }

    fn remove(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A frame of which a part has come.
struct Part {
    length: usize,
    bytes: BytesMut,
}

/// An incoming stream. Ends when the stream is finished, reset, or gone with its connection.
pub(super) struct IncomingLane {
    stream: RecvStream,
    control: bool,
    greeted: bool,
    pieces: VecDeque<Bytes>,
    part: Option<Part>,
    finished: bool,
    /// The end is accounted for: by the end mark, or because the connection has gone.
    excused: bool,
    max_frame: usize,
    unfinished: Unfinished,
}

impl IncomingLane {
    pub(super) fn new(stream: RecvStream, max_frame: usize, unfinished: Unfinished) -> Self {
        let control = stream.id().index() == 0;
        Self {
            stream,
            control,
            greeted: !control,
            pieces: VecDeque::new(),
            part: None,
            finished: false,
            excused: !control,
            max_frame,
            unfinished,
        }
    }

    /// Whether nothing more can come. Looks at the stream without waiting.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.finished && self.pieces.is_empty() {
            let _ = self.poll_fill(cx);
        }
        self.finished && self.pieces.is_empty() && self.excused
    }

    /// Takes bytes off the stream, or finds its end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pieces = [const { Bytes::new() }; PIECES];
        let read = ready!(pin!(self.stream.read_chunks(&mut pieces)).poll(cx));
        match read {
            Ok(Some(count)) => self.pieces.extend(pieces.into_iter().take(count)),
            Ok(None) => self.finished = true,
            Err(error) => {
                // The connection's end is told once, by the link.
                self.excused |= matches!(error, ReadError::ConnectionLost(_));
                self.finished = true;
                self.pieces.clear();
            }
        }
        Poll::Ready(())
    }

    fn waiting(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Takes exactly `N` bytes, if so many wait.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.waiting() < N {
            return None;
        }
        let mut taken = [0; N];
        for byte in &mut taken {
            let piece = self.pieces.front_mut()?;
            *byte = piece.get_u8();
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        Some(taken)
    }

    /// The next arrival among the bytes that wait.
    fn decode(&mut self) -> Result<Option<Arrival>, LinkError> {
        if !self.greeted {
            let Some([format]) = self.take() else { return Ok(None) };
            if format != FORMAT {
                return Err(LinkError::Malformed {
                    cause: format!("link format {format}; this end speaks {FORMAT}"),
                });
            }
            self.greeted = true;
            return Ok(Some(Arrival::Greeting));
        }
        let mut part = match self.part.take() {
            Some(part) => part,
            None => match self.begin()? {
                Ok(part) => part,
                Err(arrival) => return Ok(arrival),
            },
        };
        while part.bytes.len() < part.length {
            let Some(piece) = self.pieces.front_mut() else { break };
            let wanted = piece.split_to(piece.len().min(part.length - part.bytes.len()));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            if wanted.len() == part.length {
                // The whole frame came in one piece, and stays in it.
                return Ok(Some(Arrival::Frame(wanted)));
            }
            if let Err(error) = self.unfinished.add(wanted.len()) {
                self.unfinished.remove(part.bytes.len() + wanted.len());
                return Err(error);
            }
            if part.bytes.capacity() - part.bytes.len() < wanted.len() {
                let grown = part.bytes.len().max(FIRST_RESERVE).max(wanted.len());
                part.bytes.reserve(grown.min(part.length - part.bytes.len()));
            }
            part.bytes.extend_from_slice(&wanted);
        }
        if part.bytes.len() < part.length {
            self.part = Some(part);
            return Ok(None);
        }
        self.unfinished.remove(part.length);
        Ok(Some(Arrival::Frame(part.bytes.freeze())))
    }

    /// Reads a length: a frame begins, or the stream ends here, or more bytes are wanted.
    fn begin(&mut self) -> Result<Result<Part, Option<Arrival>>, LinkError> {
        let Some(prefix) = self.peek_prefix() else { return Ok(Err(None)) };
        if prefix == END && self.control {
            if self.waiting() < PREFIX + COUNT {
                return Ok(Err(None));
            }
            let _: Option<[u8; PREFIX]> = self.take();
            self.excused = true;
            return Ok(Err(self.take().map(|count| Arrival::End(u64::from_be_bytes(count)))));
        }
        if prefix == BEGIN && self.control {
            let _: Option<[u8; PREFIX]> = self.take();
            return Ok(Err(Some(Arrival::Begin)));
        }
        let length = checked(prefix, self.max_frame)?;
        let _: Option<[u8; PREFIX]> = self.take();
        Ok(Ok(Part { length, bytes: BytesMut::new() }))
    }

    fn peek_prefix(&self) -> Option<u32> {
        let mut bytes = self.pieces.iter().flat_map(|piece| piece.iter().copied());
        let mut prefix = [0; PREFIX];
        for byte in &mut prefix {
            *byte = bytes.next()?;
        }
        Some(u32::from_be_bytes(prefix))
    }
}

impl Stream for IncomingLane {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.decode() {
                Ok(Some(arrival)) => return Poll::Ready(Some(Ok(arrival))),
                Err(error) => {
                    self.finished = true;
                    self.excused = true;
                    self.pieces.clear();
                    return Poll::Ready(Some(Err(error)));
                }
                Ok(None) if self.finished && !self.excused => {
                    // Reset, or finished without the end mark: without its control stream there is no link.
                    self.excused = true;
                    return Poll::Ready(Some(Err(LinkError::Cut)));
                }
                Ok(None) if self.finished => return Poll::Ready(None),
                Ok(None) => ready!(self.poll_fill(cx)),
            }
        }
    }
}

impl Drop for IncomingLane {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            self.unfinished.remove(part.bytes.len());
        }
    }
}
