//! Reads frames from one incoming stream.

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

/// Maximum number of chunks read from the stream at once.
const MAX_CHUNKS: usize = 16;

/// Size in bytes of the number of streams that follows the end mark.
const STREAM_COUNT_LEN: usize = 8;

/// An item of an incoming stream.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A frame.
    Frame(Bytes),
    /// The end mark, with the number of streams that the other end has opened.
    End(u64),
    /// The first byte of the control stream: the other end has accepted the link.
    Greeting,
    /// A mark in place of a frame: the absence of a first frame, or a keep-alive.
    NoFrame,
}

/// Counts the bytes of unfinished frames on all streams of a link, which share one limit.
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

/// An incoming stream. Ends when the stream is finished or reset, or when its connection is lost.
pub(super) struct IncomingLane {
    stream: RecvStream,
    control: bool,
    greeted: bool,
    input: BytesMut,
    /// Bytes of `input` that are counted in `unfinished`.
    held: usize,
    finished: bool,
    /// Whether the end of the stream is expected: after the end mark, or because the connection is lost.
    end_expected: bool,
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
            end_expected: !control,
            max_frame,
            unfinished,
        }
    }

    /// Whether no item can follow. Polls the stream without waiting.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.finished && self.input.is_empty() {
            let _ = self.poll_fill(cx);
        }
        self.finished && self.input.is_empty() && self.end_expected
    }

    /// Reads bytes from the stream, or detects its end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut chunks = [const { Bytes::new() }; MAX_CHUNKS];
        let read = ready!(pin!(self.stream.read_chunks(&mut chunks)).poll(cx));
        match read {
            Ok(Some(count)) => {
                chunks.iter().take(count).for_each(|chunk| self.input.extend_from_slice(chunk));
            }
            Ok(None) => self.finished = true,
            Err(error) => {
                // The link reports the end of the connection once.
                self.end_expected |= matches!(error, ReadError::ConnectionLost(_));
                self.finished = true;
                self.input.clear();
            }
        }
        Poll::Ready(())
    }

    /// Decodes the next arrival from the buffered bytes.
    fn decode(&mut self) -> Result<Option<Arrival>, LinkError> {
        if !self.greeted {
            let Ok(format) = self.input.try_get_u8() else { return Ok(None) };
            if format != FORMAT {
                return Err(LinkError::Malformed {
                    cause: format!("link format {format}; this end supports {FORMAT}"),
                });
            }
            self.greeted = true;
            return Ok(Some(Arrival::Greeting));
        }
        if self.control
            && let Some(prefix) = self.input.first_chunk()
        {
            match u32::from_be_bytes(*prefix) {
                END if self.input.len() < PREFIX + STREAM_COUNT_LEN => return Ok(None),
                END => {
                    self.input.advance(PREFIX);
                    self.end_expected = true;
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
            // Only the control stream has an end mark: on other streams it is an invalid length.
            Decoded::End => checked(END, self.max_frame).map(|_| None),
        }
    }

    /// Counts the bytes of an unfinished frame.
    fn hold(&mut self, bytes: usize) -> Result<(), LinkError> {
        self.unfinished.remove(std::mem::replace(&mut self.held, bytes));
        self.unfinished.add(bytes)
    }

    /// Returns the next complete arrival.
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
                    self.end_expected = true;
                    self.input.clear();
                    return Poll::Ready(Some(Err(error)));
                }
                Ok(None) if self.finished && !self.end_expected => {
                    // Reset, or finished without the end mark: a link cannot work without its control stream.
                    self.end_expected = true;
                    return Poll::Ready(Some(Err(LinkError::Lost)));
                }
                Ok(None) if self.finished => return Poll::Ready(None),
                Ok(None) => {
                    if self.input.is_empty() {
                        // A waiting stream needs no buffer.
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
