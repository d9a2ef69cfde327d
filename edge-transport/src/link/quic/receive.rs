//! Merges all incoming streams of a link fairly.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, unfold};
use quinn::{Connection, ConnectionError, RecvStream};

use super::lane::{Arrival, IncomingLane, Unfinished};
use super::{code, lost};
use crate::link::LinkError;

/// Marks without a frame that are read before the task yields: their number is not limited.
const MARK_BATCH: usize = 32;

/// The progress of the control stream, which is always the first.
enum ReadPhase {
    /// The control stream is not open yet.
    NoStream,
    /// The first frame of the control stream has not arrived. Other streams are not read, because their frames may
    /// depend on it, as a request depends on the hello. The connection's windows limit the unread bytes.
    ControlOnly(IncomingLane),
    /// All streams are read.
    AllStreams,
}

/// The incoming half of a link.
pub(super) struct Receiver {
    accepting: BoxStream<'static, Result<RecvStream, ConnectionError>>,
    lanes: SelectAll<IncomingLane>,
    phase: ReadPhase,
    /// Streams that the other end has opened.
    accepted: u64,
    /// The total number of opened streams, which the other end announces at its end.
    announced: Option<u64>,
    lost: Option<ConnectionError>,
    /// Whether new streams are polled before open ones. Alternates, so that neither starves.
    new_first: bool,
    ended: bool,
    unfinished: Unfinished,
}

impl Receiver {
    pub(super) fn new(connection: Connection, max_frame: usize) -> Self {
        let accepting = unfold(connection, |connection| async move {
            let stream = connection.accept_uni().await;
            Some((stream, connection))
        });
        Self {
            accepting: accepting.boxed(),
            lanes: SelectAll::new(),
            phase: ReadPhase::NoStream,
            accepted: 0,
            announced: None,
            lost: None,
            new_first: true,
            ended: false,
            unfinished: Unfinished::new(max_frame),
        }
    }

    pub(super) const fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    /// When the oldest unfinished frame began to arrive.
    pub(super) fn oldest_unfinished(&self) -> Option<Instant> {
        let control = match &self.phase {
            ReadPhase::ControlOnly(lane) => Some(lane),
            ReadPhase::NoStream | ReadPhase::AllStreams => None,
        };
        self.lanes.iter().chain(control).filter_map(IncomingLane::unfinished_since).min()
    }

    /// Waits for the greeting of the other end, before any frame.
    pub(super) fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match self.poll_arrival(cx) {
            Poll::Ready(Some(Ok(Arrival::Greeting))) => Poll::Ready(Ok(())),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
            Poll::Ready(_) => Poll::Ready(Err(LinkError::Lost)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Polls only the control stream, up to its first frame. Returns `None` if it has ended.
    fn poll_start(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arrival, LinkError>>> {
        if matches!(self.phase, ReadPhase::NoStream) {
            match ready!(self.accepting.poll_next_unpin(cx)) {
                Some(Ok(stream)) => {
                    self.accepted += 1;
                    let lane = IncomingLane::new(stream, self.unfinished.clone());
                    self.phase = ReadPhase::ControlOnly(lane);
                }
                Some(Err(error)) => self.lost = Some(error),
                None => {}
            }
        }
        let ReadPhase::ControlOnly(lane) = &mut self.phase else {
            self.phase = ReadPhase::AllStreams;
            return Poll::Ready(None);
        };
        let arrival = ready!(lane.poll_next_unpin(cx));
        if matches!(arrival, Some(Ok(Arrival::Greeting))) {
            return Poll::Ready(arrival);
        }
        if let ReadPhase::ControlOnly(lane) = std::mem::replace(&mut self.phase, ReadPhase::AllStreams)
            && matches!(arrival, Some(Ok(_)))
        {
            self.lanes.push(lane);
        }
        Poll::Ready(arrival)
    }

    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arrival, LinkError>>> {
        if !matches!(self.phase, ReadPhase::AllStreams)
            && let Some(arrival) = ready!(self.poll_start(cx))
        {
            return Poll::Ready(Some(arrival));
        }
        self.new_first = !self.new_first;
        let first = if self.new_first { self.poll_new(cx) } else { self.poll_open(cx) };
        if first.is_ready() {
            return first;
        }
        let second = if self.new_first { self.poll_open(cx) } else { self.poll_new(cx) };
        if second.is_ready() {
            return second;
        }
        let all_accepted = self.announced.is_some_and(|announced| self.accepted >= announced);
        match &self.lost {
            _ if !self.lanes.is_empty() => Poll::Pending,
            _ if all_accepted => Poll::Ready(None),
            Some(ConnectionError::ApplicationClosed(close)) if close.error_code == code::CLOSED.into() => {
                Poll::Ready(None)
            }
            Some(error) => Poll::Ready(Some(Err(lost(error)))),
            None => Poll::Pending,
        }
    }

    /// Accepts streams until one yields an arrival.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arrival, LinkError>>> {
        while self.lost.is_none() {
            let stream = match self.accepting.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(stream))) => stream,
                Poll::Ready(Some(Err(error))) => {
                    self.lost = Some(error);
                    // The open streams are drained first; they must be polled again with this waker.
                    cx.waker().wake_by_ref();
                    break;
                }
                Poll::Ready(None) | Poll::Pending => break,
            };
            self.accepted += 1;
            let mut lane = IncomingLane::new(stream, self.unfinished.clone());
            // Most streams carry one frame and end: they are never added to the open ones.
            match lane.poll_next_unpin(cx) {
                Poll::Ready(Some(arrival)) => {
                    if arrival.is_ok() && !lane.is_over(cx) {
                        self.lanes.push(lane);
                    }
                    return Poll::Ready(Some(arrival));
                }
                Poll::Ready(None) => {}
                Poll::Pending => self.lanes.push(lane),
            }
        }
        Poll::Pending
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Arrival, LinkError>>> {
        match self.lanes.poll_next_unpin(cx) {
            // No stream is open.
            Poll::Ready(None) => Poll::Pending,
            other => other,
        }
    }
}

impl Stream for Receiver {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for _ in 0..MARK_BATCH {
            if self.ended {
                return Poll::Ready(None);
            }
            if self.unfinished.is_full() {
                // The link is polled again when its limits are raised.
                return Poll::Pending;
            }
            match self.poll_arrival(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Arrival::Frame(frame)))) => return Poll::Ready(Some(Ok(frame))),
                Poll::Ready(Some(Ok(Arrival::Greeting | Arrival::NoFrame))) => {}
                Poll::Ready(Some(Ok(Arrival::End(announced)))) => self.announced = Some(announced),
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => self.ended = true,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
