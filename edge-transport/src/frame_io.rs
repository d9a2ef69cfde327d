//! Buffered frame I/O on a link: many frames are fed, then flushed with one write.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;

use crate::frame::{Lane, WireFrame};
use crate::link::{FrameLink, Link, LinkError, ReceiveLimits};

/// A link and the frames queued for it.
#[derive(Debug)]
pub(crate) struct FrameIo {
    link: Link,
    waiting: VecDeque<WireFrame>,
    unflushed: bool,
    /// Whether the link has accepted data since the last [`FrameIo::take_progress`].
    progressed: bool,
    /// Size in bytes of the last frame that the link accepted.
    last_taken: usize,
    refused: Vec<(Lane, Bytes)>,
    /// Bytes of unfinished frames at the last check, and when a check first found any.
    last_unfinished: usize,
    unfinished_since: Option<Instant>,
}

/// How long closing a link may take to write the last frames.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes of frames after which the driver of a link may choose the next ones: few, so that the choice is fair, and enough for a
/// fast link.
pub(crate) const WRITE_BATCH: usize = 256 * 1024;

/// Size in bytes up to which every link accepts frames. The link's own limit is not known here.
const ALWAYS_SENDABLE: usize = 16 * 1024;

impl FrameIo {
    pub(crate) const fn new(link: Link) -> Self {
        Self {
            link,
            waiting: VecDeque::new(),
            unflushed: false,
            progressed: false,
            last_taken: 0,
            refused: Vec::new(),
            last_unfinished: 0,
            unfinished_since: None,
        }
    }

    pub(crate) const fn link(&self) -> &Link {
        &self.link
    }

    /// Changes what the link may receive.
    pub(crate) fn limit_receiving(&mut self, limits: ReceiveLimits) {
        self.link.limit_receiving(limits.max_frame, limits.max_unfinished);
    }

    /// Bytes of unfinished frames that the link holds.
    pub(crate) fn unfinished(&self) -> usize {
        self.link.unfinished()
    }

    /// Bytes that the link has accepted and not yet written.
    pub(crate) fn unwritten(&self) -> usize {
        self.link.unwritten()
    }

    /// When the oldest unfinished frame began to arrive, on links that receive several at once.
    pub(crate) fn oldest_unfinished(&self) -> Option<Instant> {
        self.link.oldest_unfinished()
    }

    pub(crate) fn push(&mut self, frame: WireFrame) {
        self.waiting.push_back(frame);
    }

    /// Returns the queue, for a caller that fills the queue from another one.
    pub(crate) const fn queue(&mut self) -> &mut VecDeque<WireFrame> {
        &mut self.waiting
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether frames are queued, or the link has accepted some that are not written.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.unflushed || !self.waiting.is_empty()
    }

    pub(crate) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, LinkError>>> {
        let received = Pin::new(&mut self.link).poll_next(cx);
        if received.is_ready() {
            (self.last_unfinished, self.unfinished_since) = (0, None);
        }
        received
    }

    /// Whether a frame is arriving: bytes of it have come since the last check, and it takes less than `max`.
    pub(crate) fn is_receiving(&mut self, max: Duration) -> bool {
        let unfinished = self.link.unfinished();
        let has_grown = unfinished > std::mem::replace(&mut self.last_unfinished, unfinished);
        has_grown && now().duration_since(*self.unfinished_since.get_or_insert_with(now)) < max
    }

    /// Feeds frames until the link is full, then flushes. Ready when nothing is left to write.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let mut link = Pin::new(&mut self.link);
        while !self.waiting.is_empty() {
            if link.as_mut().poll_ready(cx)?.is_pending() {
                return Poll::Pending;
            }
            let Some(frame) = self.waiting.pop_front() else { break };
            let lane = frame.lane;
            self.progressed = true;
            self.last_taken = frame.len();
            let head = (frame.len() > ALWAYS_SENDABLE).then(|| frame.head.clone());
            match (link.as_mut().start_send(frame), head) {
                (Ok(()), _) => self.unflushed = true,
                (Err(LinkError::TooLarge { .. }), Some(head)) => {
                    // A lane must not have a gap: its later frames are dropped with the refused one.
                    self.waiting.retain(|later| later.lane != lane);
                    self.refused.push((lane, head));
                }
                (Err(error), _) => return Poll::Ready(Err(error)),
            }
        }
        if self.waiting.capacity() > 256 {
            self.waiting = VecDeque::new();
        }
        if self.unflushed {
            if link.poll_flush(cx)?.is_pending() {
                return Poll::Pending;
            }
            self.unflushed = false;
            self.progressed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the link has accepted data since the last call.
    pub(crate) const fn take_progress(&mut self) -> bool {
        std::mem::replace(&mut self.progressed, false)
    }

    /// Size in bytes of the last frame that the link accepted, which it may still be writing.
    pub(crate) const fn last_taken(&self) -> usize {
        self.last_taken
    }

    /// Returns the lanes and heads of the frames that the link refused as too large. Other lanes are not affected.
    pub(crate) fn take_refused(&mut self) -> Vec<(Lane, Bytes)> {
        std::mem::take(&mut self.refused)
    }

    /// Writes the queued frames and closes the link. The timeout is the rest of the drain's time, but at least
    /// [`LINGER`]. Errors are ignored: the link ends in any case.
    pub(crate) async fn flush_and_close(mut self, drain_by: Option<Instant>) {
        let rest = drain_by.map_or(LINGER, |by| by.saturating_duration_since(now()).max(LINGER));
        let close = poll_fn(|cx| {
            ready!(self.poll_send(cx))?;
            Pin::new(&mut self.link).poll_close(cx)
        });
        let _ = tokio::time::timeout(rest, close).await;
    }
}

/// Returns the time of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::link::{Credentials, LinkKind};

    /// A link that holds a number of unfinished bytes.
    struct Unfinished(Arc<AtomicUsize>);

    impl Stream for Unfinished {
        type Item = Result<Bytes, LinkError>;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            if self.0.load(Relaxed) == 0 { Poll::Ready(Some(Ok(Bytes::new()))) } else { Poll::Pending }
        }
    }

    impl Sink<WireFrame> for Unfinished {
        type Error = LinkError;

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            Poll::Pending
        }

        fn start_send(self: Pin<&mut Self>, _: WireFrame) -> Result<(), LinkError> {
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
            Poll::Pending
        }
    }

    impl FrameLink for Unfinished {
        fn unfinished(&self) -> usize {
            self.0.load(Relaxed)
        }
    }

    /// A frame is an excuse while it grows, and not for ever; the next frame has its own time.
    #[tokio::test(start_paused = true)]
    async fn frame_is_arriving_while_it_grows_in_time() {
        let bytes = Arc::new(AtomicUsize::new(1));
        let link = Link::new(Unfinished(Arc::clone(&bytes)), LinkKind::MEMORY, "test", Credentials::None);
        let mut io = FrameIo::new(link);
        let max = Duration::from_secs(10);
        assert!(io.is_receiving(max));
        assert!(!io.is_receiving(max), "nothing has arrived since");
        let grow = async |seconds| {
            bytes.fetch_add(1, Relaxed);
            tokio::time::advance(Duration::from_secs(seconds)).await;
        };
        grow(9).await;
        assert!(io.is_receiving(max));
        grow(1).await;
        assert!(!io.is_receiving(max), "it takes too long");
        bytes.store(0, Relaxed);
        assert!(io.poll_receive(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
        grow(9).await;
        assert!(io.is_receiving(max));
    }
}
