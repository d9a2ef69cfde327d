//! The suite for pairs of links rejects each link with one fault, and names the promise that it breaks.
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use edge_transport::link::{
    Credentials, FrameLink, Lane, Link, LinkError, LinkKind, Protection, WireFrame, conformance, memory,
};
use futures_core::Stream;
use futures_sink::Sink;

const MAX_FRAME: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The ends report different kinds.
    OtherKind,
    /// The first byte of a large frame is missing.
    Cuts,
    /// A frame overtakes an earlier one of its lane when both wait.
    Reorders,
    /// Only the first lanes are carried.
    DropsManyLanes,
    /// A frame above the limit is accepted.
    AcceptsTooLarge,
    /// Frames are accepted without bound.
    NoBackPressure,
    /// What waits at the close is not sent.
    CloseLoses,
    /// The end of the other side is not noticed.
    HidesTheCut,
}

/// A link with a fault around one that conforms.
struct Faulty {
    inner: Link,
    fault: Fault,
    waiting: VecDeque<WireFrame>,
    is_cut: bool,
}

impl Faulty {
    fn wrap(inner: Link, fault: Fault, kind: LinkKind) -> Link {
        let io = Self { inner, fault, waiting: VecDeque::new(), is_cut: false };
        Link::new(io, kind, "faulty", Credentials::None).with_protection(Protection::Private)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        while !self.waiting.is_empty() {
            ready!(Pin::new(&mut self.inner).poll_ready(cx))?;
            if let Some(frame) = self.waiting.pop_front() {
                Pin::new(&mut self.inner).start_send(frame)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for Faulty {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.inner).poll_next(cx));
        match (self.fault, next) {
            (Fault::Cuts, Some(Ok(frame))) if frame.len() > 4096 => Poll::Ready(Some(Ok(frame.slice(1..)))),
            (Fault::HidesTheCut, next) if self.is_cut || matches!(next, Some(Err(_))) => {
                self.is_cut = true;
                Poll::Pending
            }
            (_, next) => Poll::Ready(next),
        }
    }
}

impl FrameLink for Faulty {}

impl Sink<WireFrame> for Faulty {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match self.fault {
            Fault::NoBackPressure => Poll::Ready(Ok(())),
            Fault::Reorders if self.waiting.len() < 100 => Poll::Ready(Ok(())),
            Fault::CloseLoses if self.waiting.len() < 2 => Poll::Ready(Ok(())),
            _ => self.poll_drain(cx),
        }
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        match (self.fault, frame.lane) {
            (Fault::DropsManyLanes, Lane::Call(lane)) if lane >= 400 => return Ok(()),
            (Fault::AcceptsTooLarge, _) => {}
            (_, _) if frame.len() > MAX_FRAME => {
                return Err(LinkError::TooLarge { found: frame.len(), max: MAX_FRAME });
            }
            _ => {}
        }
        let earlier = self.waiting.iter().position(|earlier| earlier.lane == frame.lane);
        match (self.fault, earlier) {
            (Fault::Reorders, Some(earlier)) => self.waiting.insert(earlier, frame),
            _ => self.waiting.push_back(frame),
        }
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.fault == Fault::CloseLoses {
            self.waiting.clear();
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn bad_links_are_rejected() {
    for (fault, promise) in [
        (Fault::OtherKind, "the kind of the link"),
        (Fault::Cuts, "arrive whole"),
        (Fault::Reorders, "keep their order"),
        (Fault::DropsManyLanes, "more lanes than streams"),
        (Fault::AcceptsTooLarge, "too large is refused"),
        (Fault::NoBackPressure, "stops the sender"),
        (Fault::CloseLoses, "an orderly end"),
        (Fault::HidesTheCut, "a dropped end"),
    ] {
        let make = || async {
            let (left, right) = memory::pair(MAX_FRAME);
            let other = if fault == Fault::OtherKind { LinkKind::custom("other") } else { LinkKind::MEMORY };
            Ok((Faulty::wrap(left, fault, other), Faulty::wrap(right, fault, LinkKind::MEMORY)))
        };
        let violation = conformance::run(MAX_FRAME, make).await.unwrap_err();
        assert!(violation.case.contains(promise), "{fault:?}: {violation}");
    }
}
