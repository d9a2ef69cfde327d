//! Frames off one incoming stream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use quinn::{ReadError, RecvStream};

use super::FORMAT;
use crate::link::LinkError;
use crate::link::framing::{Decoded, END, NO_FRAME, PREFIX, checked, decode};

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
    /// A mark in place of a frame: none comes first, or a keep-alive.
    NoFrame,
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

/// An incoming stream. Ends when the stream is finished, reset, or gone with its connection.
pub(super) struct IncomingLane {
    stream: RecvStream,
    control: bool,
    greeted: bool,
    input: BytesMut,
    /// How many of its bytes are counted among those of unfinished frames.
    held: usize,
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
            input: BytesMut::new(),
            held: 0,
            finished: false,
            excused: !control,
            max_frame,
            unfinished,
        }
    }

    /// Whether nothing more can come. Looks at the stream without waiting.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.finished && self.input.is_empty() {
            let _ = self.poll_fill(cx);
        }
        self.finished && self.input.is_empty() && self.excused
    }

    /// Takes bytes off the stream, or finds its end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut pieces = [const { Bytes::new() }; PIECES];
        let read = ready!(pin!(self.stream.read_chunks(&mut pieces)).poll(cx));
        match read {
            Ok(Some(count)) => {
                pieces.iter().take(count).for_each(|piece| self.input.extend_from_slice(piece));
            }
            Ok(None) => self.finished = true,
            Err(error) => {
                // The connection's end is told once, by the link.
                self.excused |= matches!(error, ReadError::ConnectionLost(_));
                self.finished = true;
                self.input.clear();
            }
        }
        Poll::Ready(())
    }

    /// The next arrival among the bytes that wait.
    fn decode(&mut self) -> Result<Option<Arrival>, LinkError> {
        if !self.greeted {
            let Ok(format) = self.input.try_get_u8() else { return Ok(None) };
            if format != FORMAT {
                return Err(LinkError::Malformed {
                    cause: format!("link format {format}; this end speaks {FORMAT}"),
                });
            }
            self.greeted = true;
            return Ok(Some(Arrival::Greeting));
        }
        if self.control
            && let Some(prefix) = self.input.first_chunk()
        {
            match u32::from_be_bytes(*prefix) {
                END if self.input.len() < PREFIX + COUNT => return Ok(None),
                END => {
                    self.input.advance(PREFIX);
                    self.excused = true;
                    return Ok(Some(Arrival::End(self.input.get_u64())));
                }
                NO_FRAME => {
                    self.input.advance(PREFIX);
                    return Ok(Some(Arrival::NoFrame));
                }
                _ => {}
            }
        }
        match decode(&mut self.input, self.max_frame)? {
            Decoded::Frame(frame) => Ok(Some(Arrival::Frame(frame))),
            Decoded::More(_) => Ok(None),
            // Only the control stream has an end mark: here it is a length beyond all bounds.
            Decoded::End => checked(END, self.max_frame).map(|_| None),
        }
    }

    /// Counts the bytes of a frame that has not come whole.
    fn hold(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.unfinished.remove(std::mem::replace(&mut self.held, bytes));
        self.unfinished.add(bytes)
    }

    /// The next arrival, if it has come whole.
    fn arrival(&mut self) -> Result<Option<Arrival>, LinkError> {
        let arrival = self.decode()?;
        self.hold(if arrival.is_some() { 0 } else { self.input.len() })?;
        Ok(arrival)
    }
}

impl Stream for IncomingLane {
    type Item = Result<Arrival, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.arrival() {
                Ok(Some(arrival)) => return Poll::Ready(Some(Ok(arrival))),
                Err(error) => {
                    self.finished = true;
                    self.excused = true;
                    self.input.clear();
                    return Poll::Ready(Some(Err(error)));
                }
                Ok(None) if self.finished && !self.excused => {
                    // Reset, or finished without the end mark: without its control stream there is no link.
                    self.excused = true;
                    return Poll::Ready(Some(Err(LinkError::Cut)));
                }
                Ok(None) if self.finished => return Poll::Ready(None),
                Ok(None) => {
                    if self.input.is_empty() {
                        // A stream that waits needs no memory.
                        self.input = BytesMut::new();
                    }
                    ready!(self.poll_fill(cx));
                }
            }
        }
    }
}

impl Drop for IncomingLane {
    fn drop(&mut self) {
        self.unfinished.remove(self.held);
    }
}
