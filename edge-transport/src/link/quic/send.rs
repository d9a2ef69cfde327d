//! Sends frames: assigns them to streams and queues them.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use quinn::{Connection, SendStream, WriteError};

use super::keep_alive::KeepAlive;
use super::{FORMAT, lost};
use crate::link::framing::{END, NO_FRAME, encode};
use crate::link::{Lane, LinkError, SEND_BUFFER, WireFrame};

/// Maximum number of open lanes, with or without a dedicated stream.
const MAX_LANES: usize = 1 << 16;

/// Maximum number of bytes of a large frame that are written before all other streams.
const LARGE_TURN: usize = 16 << 10;

/// An outgoing stream and its queue.
struct Outgoing {
    stream: SendStream,
    waiting: VecDeque<Bytes>,
    /// Whether the stream ends after the queued bytes.
    last: bool,
    /// Whether the other end has stopped the stream; queued and later frames are then discarded.
    refused: bool,
}

impl Outgoing {
    const fn new(stream: SendStream) -> Self {
        Self { stream, waiting: VecDeque::new(), last: false, refused: false }
    }

    /// Appends a frame and returns the number of queued bytes.
    fn push(&mut self, frame: WireFrame, max_frame: usize) -> Result<usize, LinkError> {
        let mut small = BytesMut::new();
        let large = encode(frame, max_frame, &mut small)?;
        if self.refused {
            return Ok(0);
        }
        let added = small.len() + large.as_ref().map_or(0, Bytes::len);
        self.waiting.push_back(small.freeze());
        self.waiting.extend(large);
        Ok(added)
    }

    /// Writes queued bytes and returns how many were written or discarded.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<usize, LinkError> {
        let mut written_bytes = 0;
        while !self.waiting.is_empty() {
            let outcome = pin!(self.stream.write_chunks(self.waiting.make_contiguous())).poll(cx);
            match outcome {
                Poll::Pending => return Ok(written_bytes),
                Poll::Ready(Ok(written)) => {
                    written_bytes += written.bytes;
                    // Fully written buffers remain as empty ones.
                    while self.waiting.front().is_some_and(Bytes::is_empty) {
                        self.waiting.pop_front();
                    }
                }
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Err(lost(&error)),
                Poll::Ready(Err(_)) => {
                    written_bytes += self.waiting.drain(..).map(|piece| piece.len()).sum::<usize>();
                    self.refused = true;
                }
            }
        }
        if self.last {
            // Fails only if the other end has stopped the stream, which has then ended already.
            let _ = self.stream.finish();
        }
        Ok(written_bytes)
    }

    /// Writes at most [`LARGE_TURN`] queued bytes, and returns how many. The next [`write`](Self::write) reports an error.
    fn write_turn(&mut self, cx: &mut Context<'_>) -> usize {
        let Some(first) = self.waiting.front_mut() else { return 0 };
        let mut turn = [first.slice(..first.len().min(LARGE_TURN))];
        let Poll::Ready(Ok(written)) = pin!(self.stream.write_chunks(&mut turn)).poll(cx) else { return 0 };
        first.advance(written.bytes);
        if first.is_empty() {
            self.waiting.pop_front();
        }
        written.bytes
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }
}

/// The stream of an open lane.
enum LaneStream {
    Dedicated(Outgoing),
    Shared,
}

/// The outgoing half of a link.
pub(super) struct Sender {
    connection: Connection,
    control: Outgoing,
    shared: Outgoing,
    open: HashMap<u64, LaneStream>,
    /// Open lanes with queued bytes.
    busy: Vec<u64>,
    /// Streams whose last frame is queued but not yet written.
    closing: Vec<Outgoing>,
    /// Such a stream whose last frame is larger than [`SEND_BUFFER`]: frames on other streams overtake it. Only at a dialing end:
    /// an accepting end closes a link if any frame waits for too long.
    large: Option<Outgoing>,
    /// Whether `large` is written before the other streams. Alternates, since the first one takes what the windows allow.
    large_first: bool,
    /// Bytes queued in all streams.
    waiting: usize,
    /// Streams opened so far.
    opened: u64,
    max_frame: usize,
    /// Set at a dialing end until [`Sender::end`].
    keep_alive: Option<KeepAlive>,
    /// Whether the first item of the control stream is queued, after which the other end reads other streams.
    begun: bool,
    ended: bool,
}

impl Sender {
    /// Opens the two streams that every link has.
    pub(super) async fn start(connection: Connection, max_frame: usize) -> Result<Self, LinkError> {
        let control = connection.open_uni().await.map_err(|error| lost(&error))?;
        let shared = connection.open_uni().await.map_err(|error| lost(&error))?;
        // Fails only if the stream is already closed.
        let _ = control.set_priority(1);
        let keep_alive = connection.side().is_client().then(KeepAlive::new);
        let mut control = Outgoing::new(control);
        control.waiting.push_back(Bytes::from_static(&[FORMAT]));
        Ok(Self {
            connection,
            control,
            shared: Outgoing::new(shared),
            open: HashMap::new(),
            busy: Vec::new(),
            closing: Vec::new(),
            large: None,
            large_first: false,
            waiting: 1,
            opened: 2,
            max_frame,
            keep_alive,
            begun: false,
            ended: false,
        })
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting < SEND_BUFFER
            || self.waiting - self.large.as_ref().map_or(0, Outgoing::waiting_bytes) < SEND_BUFFER
    }

    /// Bytes queued in all streams.
    pub(super) const fn unwritten(&self) -> usize {
        self.waiting
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn push(&mut self, frame: WireFrame) -> Result<(), LinkError> {
        if self.ended {
            return Err(LinkError::Lost);
        }
        if frame.len() > self.max_frame {
            return Err(LinkError::TooLarge { found: frame.len(), max: self.max_frame });
        }
        if !std::mem::replace(&mut self.begun, true) && frame.lane != Lane::Control {
            self.push_no_frame();
        }
        if let (Some(keep_alive), Lane::Call(_)) = (&mut self.keep_alive, frame.lane) {
            keep_alive.on_call_frame();
        }
        let (max_frame, last) = (self.max_frame, frame.last);
        self.waiting += match frame.lane {
            Lane::Control => self.control.push(frame, max_frame)?,
            Lane::Call(lane) => match self.open.get_mut(&lane) {
                Some(LaneStream::Shared) => {
                    if last {
                        self.open.remove(&lane);
                    }
                    self.shared.push(frame, max_frame)?
                }
                Some(LaneStream::Dedicated(outgoing)) => {
                    let was_idle = outgoing.waiting.is_empty();
                    let added = outgoing.push(frame, max_frame)?;
                    outgoing.last = last;
                    if !last {
                        if was_idle && added > 0 {
                            self.busy.push(lane);
                        }
                    } else if let Some(LaneStream::Dedicated(outgoing)) = self.open.remove(&lane) {
                        self.close(outgoing, added);
                    }
                    added
                }
                None => self.push_first(lane, frame)?,
            },
        };
        Ok(())
    }

    /// Ready when a keep-alive must be flushed.
    pub(super) fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
        ready!(keep_alive.poll_due(cx));
        self.push_no_frame();
        Poll::Ready(())
    }

    fn push_no_frame(&mut self) {
        let mark = Bytes::copy_from_slice(&NO_FRAME.to_be_bytes());
        self.waiting += mark.len();
        self.control.waiting.push_back(mark);
    }

    /// Queues the first frame of a lane, on a new stream if the other end allows one more.
    fn push_first(&mut self, lane: u64, frame: WireFrame) -> Result<usize, LinkError> {
        let last = frame.last;
        if !last && self.open.len() >= MAX_LANES {
            let doing = format!("open a lane: {MAX_LANES} are open; end some with a last frame");
            return Err(LinkError::Io { doing, source: std::io::ErrorKind::QuotaExceeded.into() });
        }
        let stream = match self.connection.open_uni().now_or_never() {
            Some(opened) => opened.map_err(|error| lost(&error))?,
            None => {
                if !last {
                    self.open.insert(lane, LaneStream::Shared);
                }
                return self.shared.push(frame, self.max_frame);
            }
        };
        self.opened += 1;
        let mut outgoing = Outgoing::new(stream);
        let added = outgoing.push(frame, self.max_frame)?;
        outgoing.last = last;
        if last {
            self.close(outgoing, added);
        } else {
            self.busy.push(lane);
            self.open.insert(lane, LaneStream::Dedicated(outgoing));
        }
        Ok(added)
    }

    /// Ends a stream after its queued bytes. Its last frame has `size` bytes.
    fn close(&mut self, outgoing: Outgoing, size: usize) {
        if size > SEND_BUFFER && self.large.is_none() && self.connection.side().is_client() {
            self.large = Some(outgoing);
        } else {
            self.closing.push(outgoing);
        }
    }

    /// Writes as much as the connection accepts. Ready once nothing is queued.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let _ = self.poll_keep_alive(cx);
        let mut written_bytes = self.control.write(cx)?;
        self.large_first = !self.large_first;
        if let (Some(large), true) = (&mut self.large, self.large_first) {
            written_bytes += large.write_turn(cx);
        }
        written_bytes += self.shared.write(cx)?;
        let mut at = 0;
        while let Some(outgoing) = self.closing.get_mut(at) {
            written_bytes += outgoing.write(cx)?;
            if outgoing.waiting.is_empty() {
                self.closing.swap_remove(at);
            } else {
                at += 1;
            }
        }
        let mut failed = None;
        let open = &mut self.open;
        self.busy.retain(|lane| match open.get_mut(lane) {
            Some(LaneStream::Dedicated(outgoing)) => match outgoing.write(cx) {
                Ok(written) => {
                    written_bytes += written;
                    !outgoing.waiting.is_empty()
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
            _ => false,
        });
        if let Some(error) = failed {
            return Poll::Ready(Err(error));
        }
        if let Some(large) = &mut self.large {
            written_bytes += large.write(cx)?;
            self.large.take_if(|large| large.waiting.is_empty());
        }
        self.waiting -= written_bytes;
        if self.waiting > 0 {
            return Poll::Pending;
        }
        // Frees memory of earlier load while idle.
        self.closing.shrink_to(128);
        self.busy.shrink_to(128);
        self.open.shrink_to(256);
        Poll::Ready(Ok(()))
    }

    /// Queues the end mark, and ends every stream after its queued bytes.
    pub(super) fn end(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        self.keep_alive = None;
        let mut mark = BytesMut::with_capacity(12);
        mark.put_u32(END);
        mark.put_u64(self.opened);
        self.waiting += mark.len();
        self.control.waiting.push_back(mark.freeze());
        self.control.last = true;
        self.shared.last = true;
        self.busy.clear();
        self.closing.extend(self.open.drain().filter_map(|(_, stream)| match stream {
            LaneStream::Dedicated(mut outgoing) => {
                outgoing.last = true;
                Some(outgoing)
            }
            LaneStream::Shared => None,
        }));
    }
}
