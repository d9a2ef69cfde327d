//! Reads frames from one incoming stream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use quinn::{ReadError, RecvStream};

use super::FORMAT;
use crate::frame_io::now;
use crate::link::framing::{Decoded, END, NO_FRAME, PREFIX, checked, decode};
use crate::link::{LinkError, ReceiveLimits};

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

/// Maximum number of unfinished frames of the largest size; this implementation sends at most three at once.
const UNFINISHED_FRAMES: usize = 4;

/// Counts the bytes of unfinished frames on all streams of a link, which share their limits.
#[derive(Debug, Clone)]
pub(super) struct Unfinished(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    held: AtomicUsize,
    /// The link's own limit of a frame.
    own_max_frame: usize,
    /// The current limits, which do not exceed the link's own.
    max_frame: AtomicUsize,
    max_unfinished: AtomicUsize,
}

impl Unfinished {
    pub(super) fn new(max_frame: usize) -> Self {
        Self(Arc::new(Shared {
            held: AtomicUsize::new(0),
            own_max_frame: max_frame,
            max_frame: AtomicUsize::new(max_frame),
            max_unfinished: AtomicUsize::new(usize::MAX),
        }))
    }

    pub(super) fn set_limits(&self, limits: ReceiveLimits) {
        self.0.max_frame.store(limits.max_frame.min(self.0.own_max_frame), Ordering::Relaxed);
        self.0.max_unfinished.store(limits.max_unfinished, Ordering::Relaxed);
    }

    fn max_frame(&self) -> usize {
        self.0.max_frame.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Whether no stream may be read until the limits are raised.
    pub(super) fn is_full(&self) -> bool {
        self.bytes() >= self.0.max_unfinished.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) -> Result<(), LinkError> {
        let held = self.0.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let max = self.0.own_max_frame.saturating_mul(UNFINISHED_FRAMES);
        if held > max {
            let cause = format!("unfinished frames hold {held} bytes; at most {max} are allowed");
            return Err(LinkError::Malformed { cause });
        }
        Ok(())
    }

    fn remove(&self, bytes: usize) {
        self.0.held.fetch_sub(bytes, Ordering::Relaxed);
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
    /// When these bytes began to arrive.
    since: Option<Instant>,
    finished: bool,
    /// Whether the end of the stream is expected: after the end mark, or because the connection is lost.
    end_expected: bool,
    unfinished: Unfinished,
}

impl IncomingLane {
    pub(super) fn new(stream: RecvStream, unfinished: Unfinished) -> Self {
        let control = stream.id().index() == 0;
        Self {
            stream,
            control,
            greeted: !control,
            input: BytesMut::new(),
            held: 0,
            since: None,
            finished: false,
            end_expected: !control,
            unfinished,
        }
    }

    /// When the unfinished frame of this stream began to arrive.
    pub(super) const fn unfinished_since(&self) -> Option<Instant> {
        self.since
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
        let max_frame = self.unfinished.max_frame();
        match decode(&mut self.input, max_frame)? {
            Decoded::Frame(frame) => Ok(Some(Arrival::Frame(frame))),
            Decoded::More(_) => Ok(None),
            // Only the control stream has an end mark: on other streams it is an invalid length.
            Decoded::End => checked(END, max_frame).map(|_| None),
        }
    }

    /// Counts the bytes of an unfinished frame.
    fn hold(&mut self, bytes: usize) -> Result<(), LinkError> {
        if bytes == 0 {
            self.since = None;
        } else if self.since.is_none() {
            self.since = Some(now());
        }
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
                Ok(None) if self.unfinished.is_full() => {
                    // The receiver polls no stream while the link is full.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
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
