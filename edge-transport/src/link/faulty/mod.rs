//! A link with injected faults: by script, at random with a seed, or on command.
//!
//! Wrapping one end injects faults into both of its directions.
//!
//! ```
//! use edge_transport::link::{faulty, memory};
//!
//! let (left, right) = memory::pair(1024);
//! let faults = faulty::Faults::default().with_drop(100).with_reorder(3);
//! let (left, handle) = faulty::wrap(left, faulty::Plan::new(42).with_sending(faults));
//! handle.cut(faulty::Direction::Both);
//! # drop((left, right));
//! ```

mod handle;

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use futures_core::Stream;
use futures_sink::Sink;

pub use self::handle::{Direction, Handle};
use self::handle::{Mode, Shared};
use super::{FrameLink, Link, LinkError, WireFrame};

/// The faults of one direction. Probabilities are in thousandths per frame; 1000 is always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Probability that a frame is dropped.
    pub drop: u16,
    /// Probability that a frame is duplicated.
    pub duplicate: u16,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: u16,
    /// Number of frames that are collected and passed on in random order; 0 and 1 keep the order. A flush, or a pause of the
    /// incoming frames, passes on fewer.
    pub reorder: usize,
    /// Number of frames after which the direction is cut.
    pub cut_after: Option<u64>,
}

impl Faults {
    /// Sets the probability of a drop in thousandths.
    #[must_use]
    pub const fn with_drop(mut self, thousandths: u16) -> Self {
        self.drop = thousandths;
        self
    }

    /// Sets the probability of a duplicate in thousandths.
    #[must_use]
    pub const fn with_duplicate(mut self, thousandths: u16) -> Self {
        self.duplicate = thousandths;
        self
    }

    /// Sets the probability of a flipped bit in thousandths.
    #[must_use]
    pub const fn with_corrupt(mut self, thousandths: u16) -> Self {
        self.corrupt = thousandths;
        self
    }

    /// Sets how many frames are collected and shuffled.
    #[must_use]
    pub const fn with_reorder(mut self, window: usize) -> Self {
        self.reorder = window;
        self
    }

    /// Sets after how many frames the direction is cut.
    #[must_use]
    pub const fn with_cut_after(mut self, frames: u64) -> Self {
        self.cut_after = Some(frames);
        self
    }
}

/// The faults of a link. The same seed and the same frames give the same faults; print the plan (`Debug`) to
/// reproduce them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Seed of the random faults.
    pub seed: u64,
    /// Faults of the frames that the wrapped end sends.
    pub sending: Faults,
    /// Faults of the frames that the wrapped end receives.
    pub receiving: Faults,
}

impl Plan {
    /// Creates a plan without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Sets the faults of sent frames.
    #[must_use]
    pub const fn with_sending(mut self, faults: Faults) -> Self {
        self.sending = faults;
        self
    }

    /// Sets the faults of received frames.
    #[must_use]
    pub const fn with_receiving(mut self, faults: Faults) -> Self {
        self.receiving = faults;
        self
    }
}

/// Wraps a link. Kind, address and credentials do not change.
#[must_use]
pub fn wrap(link: Link, plan: Plan) -> (Link, Handle) {
    let shared = Shared::new();
    let handle = Handle::new(plan.seed, shared.clone());
    let (kind, remote, credentials) = (link.kind(), link.remote().to_owned(), link.credentials().clone());
    let protection = link.protection();
    let mut rng = Rng::with_seed(plan.seed);
    let io = FaultyLink {
        inner: Some(link),
        shared,
        outgoing: FaultInjector::new(plan.sending, rng.fork()),
        incoming: FaultInjector::new(plan.receiving, rng.fork()),
        reported: false,
    };
    (Link::new(io, kind, remote, credentials).with_protection(protection), handle)
}

/// A sent or received frame, which can be corrupted.
trait Corruptible: Clone {
    fn flip_bit(&mut self, rng: &mut Rng);
}

impl Corruptible for Bytes {
    fn flip_bit(&mut self, rng: &mut Rng) {
        if self.is_empty() {
            return;
        }
        let mut bytes = BytesMut::from(&self[..]);
        let at = rng.usize(..bytes.len());
        bytes[at] ^= 1 << rng.u8(..8);
        *self = bytes.freeze();
    }
}

impl Corruptible for WireFrame {
    fn flip_bit(&mut self, rng: &mut Rng) {
        let in_head = self.body.is_empty() || rng.usize(..self.len()) < self.head.len();
        if in_head { &mut self.head } else { &mut self.body }.flip_bit(rng);
    }
}

/// Applies the faults of one direction.
struct FaultInjector<F> {
    faults: Faults,
    rng: Rng,
    window: Vec<F>,
    ready: VecDeque<F>,
    seen: u64,
}

impl<F: Corruptible> FaultInjector<F> {
    const fn new(faults: Faults, rng: Rng) -> Self {
        Self { faults, rng, window: Vec::new(), ready: VecDeque::new(), seen: 0 }
    }

    fn push(&mut self, mut frame: F) {
        if self.is_cut() {
            return;
        }
        self.seen += 1;
        if self.roll(self.faults.drop) {
            return;
        }
        if self.roll(self.faults.corrupt) {
            frame.flip_bit(&mut self.rng);
        }
        if self.roll(self.faults.duplicate) {
            self.window.push(frame.clone());
        }
        self.window.push(frame);
        if self.window.len() >= self.faults.reorder {
            self.release();
        }
    }

    /// Returns `true` with a probability in thousandths.
    fn roll(&mut self, thousandths: u16) -> bool {
        self.rng.u16(..1000) < thousandths
    }

    /// Releases the collected frames in random order.
    fn release(&mut self) {
        if self.faults.reorder > 1 {
            for last in (1..self.window.len()).rev() {
                self.window.swap(last, self.rng.usize(..=last));
            }
        }
        self.ready.extend(self.window.drain(..));
    }

    fn is_cut(&self) -> bool {
        self.faults.cut_after.is_some_and(|frames| self.seen >= frames)
    }
}

struct FaultyLink {
    /// `None` once both directions are cut.
    inner: Option<Link>,
    shared: Shared,
    outgoing: FaultInjector<WireFrame>,
    incoming: FaultInjector<Bytes>,
    /// Whether the receiver has returned the error of the cut.
    reported: bool,
}

impl FaultyLink {
    /// Returns the current mode of the sending direction; drops the inner link once both directions are cut.
    fn sending(&mut self, cx: Option<&mut Context<'_>>) -> Mode {
        let cut = self.outgoing.is_cut() && self.outgoing.ready.is_empty() && self.outgoing.window.is_empty();
        let mode = self.shared.sending(cx);
        self.drop_if_cut();
        if cut { Mode::Cut } else { mode }
    }

    fn drop_if_cut(&mut self) {
        if self.shared.is_cut_both_ways() {
            self.inner = None;
        }
    }

    /// Sends the released frames.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(Err(LinkError::Lost)) };
        while !self.outgoing.ready.is_empty() {
            ready!(Pin::new(&mut *inner).poll_ready(cx))?;
            if let Some(frame) = self.outgoing.ready.pop_front() {
                Pin::new(&mut *inner).start_send(frame)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for FaultyLink {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let mode = self.shared.receiving(cx);
            self.drop_if_cut();
            match mode {
                Mode::Stalled => return Poll::Pending,
                Mode::Cut if self.reported => return Poll::Ready(None),
                Mode::Cut => {
                    self.reported = true;
                    return Poll::Ready(Some(Err(LinkError::Lost)));
                }
                Mode::Passing | Mode::Blackhole => {}
            }
            if let Some(frame) = self.incoming.ready.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.incoming.is_cut() && !self.incoming.window.is_empty() {
                self.incoming.release();
                continue;
            }
            if self.incoming.is_cut() {
                self.shared.set(Direction::Receiving, Mode::Cut);
                continue;
            }
            let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
            match Pin::new(inner).poll_next(cx) {
                Poll::Ready(Some(Ok(_))) if mode == Mode::Blackhole => {}
                Poll::Ready(Some(Ok(frame))) => self.incoming.push(frame),
                // On a half-open link the end of the other side is not noticed either.
                Poll::Ready(_) if mode == Mode::Blackhole => return Poll::Pending,
                Poll::Ready(end) if self.incoming.window.is_empty() => return Poll::Ready(end),
                Poll::Ready(_) => self.incoming.release(),
                Poll::Pending if self.incoming.window.is_empty() => return Poll::Pending,
                Poll::Pending => self.incoming.release(),
            }
        }
    }
}

impl FrameLink for FaultyLink {
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        if let Some(inner) = &mut self.inner {
            inner.limit_receiving(max_frame, max_unfinished);
        }
    }

    fn unfinished(&self) -> usize {
        self.inner.as_ref().map_or(0, FrameLink::unfinished)
    }

    fn oldest_unfinished(&self) -> Option<Instant> {
        self.inner.as_ref().and_then(FrameLink::oldest_unfinished)
    }

    fn unwritten(&self) -> usize {
        self.inner.as_ref().map_or(0, FrameLink::unwritten)
    }

    #[cfg(feature = "tls")]
    fn peer_chain(&self) -> Vec<rustls_pki_types::CertificateDer<'static>> {
        self.inner.as_ref().map(FrameLink::peer_chain).unwrap_or_default()
    }
}

impl Sink<WireFrame> for FaultyLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match self.sending(Some(cx)) {
            Mode::Stalled => Poll::Pending,
            Mode::Cut => Poll::Ready(Err(LinkError::Lost)),
            Mode::Blackhole => Poll::Ready(Ok(())),
            Mode::Passing => {
                ready!(self.poll_outgoing(cx))?;
                match &mut self.inner {
                    Some(inner) => Pin::new(inner).poll_ready(cx),
                    None => Poll::Ready(Err(LinkError::Lost)),
                }
            }
        }
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        match self.sending(None) {
            Mode::Cut => return Err(LinkError::Lost),
            Mode::Blackhole => return Ok(()),
            Mode::Stalled | Mode::Passing => {}
        }
        let no_faults = self.outgoing.faults == Faults::default() && self.outgoing.ready.is_empty();
        match &mut self.inner {
            None => Err(LinkError::Lost),
            // Sent directly, so that the sender receives the errors of the inner link.
            Some(inner) if no_faults => Pin::new(inner).start_send(frame),
            Some(_) => {
                self.outgoing.push(frame);
                Ok(())
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.outgoing.release();
        self.drop_if_cut();
        match self.shared.sending(Some(cx)) {
            Mode::Stalled => return Poll::Pending,
            Mode::Cut => return Poll::Ready(Err(LinkError::Lost)),
            Mode::Blackhole => return Poll::Ready(Ok(())),
            Mode::Passing => ready!(self.poll_outgoing(cx))?,
        }
        let flushed = match &mut self.inner {
            Some(inner) => ready!(Pin::new(inner).poll_flush(cx)),
            None => Err(LinkError::Lost),
        };
        if self.outgoing.is_cut() {
            self.shared.set(Direction::Sending, Mode::Cut);
        }
        Poll::Ready(flushed)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        ready!(self.as_mut().poll_flush(cx))?;
        if self.shared.sending(None) == Mode::Blackhole {
            return Poll::Ready(Ok(()));
        }
        match &mut self.inner {
            Some(inner) => Pin::new(inner).poll_close(cx),
            None => Poll::Ready(Err(LinkError::Lost)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt, poll};

    use super::*;
    use crate::link::{Lane, memory};

    fn frame(number: u8) -> WireFrame {
        WireFrame::new(Lane::Control, false, Bytes::from_static(b"head"), Bytes::copy_from_slice(&[number]))
    }

    /// Sends 40 frames through `plan` and returns those that arrive.
    async fn passed(plan: Plan) -> Vec<u8> {
        let (left, mut right) = memory::pair(100);
        let (mut left, _handle) = wrap(left, plan);
        for number in 0..40 {
            if left.feed(frame(number)).await.is_err() {
                break;
            }
        }
        let _ = left.flush().await;
        drop(left);
        let mut seen = Vec::new();
        while let Some(Ok(frame)) = right.next().await {
            seen.extend(frame.last());
        }
        seen
    }

    #[tokio::test]
    async fn random_faults_are_reproducible_by_seed() {
        let all: Vec<u8> = (0..40).collect();
        assert_eq!(passed(Plan::new(1)).await, all);
        let plan = |faults| Plan::new(7).with_sending(faults);
        let dropped = passed(plan(Faults::default().with_drop(300))).await;
        assert!(dropped.len() < 40 && dropped.is_sorted(), "{dropped:?}");
        let doubled = passed(plan(Faults::default().with_duplicate(300))).await;
        assert!(doubled.len() > 40 && doubled.is_sorted(), "{doubled:?}");
        let mut mixed = passed(plan(Faults::default().with_reorder(4))).await;
        assert_ne!(mixed, all);
        assert_eq!(mixed, passed(plan(Faults::default().with_reorder(4))).await);
        assert!(mixed.iter().enumerate().all(|(at, number)| at / 4 == usize::from(*number) / 4), "{mixed:?}");
        mixed.sort_unstable();
        assert_eq!(mixed, all);
        assert_eq!(passed(plan(Faults::default().with_cut_after(3))).await, [0, 1, 2]);
    }

    #[tokio::test]
    async fn corrupted_frame_differs_in_one_bit() {
        let (left, mut right) = memory::pair(100);
        let (mut left, _handle) = wrap(left, Plan::new(3).with_sending(Faults::default().with_corrupt(1000)));
        left.send(frame(0)).await.unwrap();
        let got = right.next().await.unwrap().unwrap();
        let wrong: u32 = got.iter().zip(b"head\0").map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((got.len(), wrong), (5, 1));
    }

    #[tokio::test]
    async fn receiving_faults_reorder_and_cut() {
        let (left, mut right) = memory::pair(100);
        let faults = Faults::default().with_reorder(4).with_cut_after(6);
        let (mut left, _handle) = wrap(left, Plan::new(5).with_receiving(faults));
        for number in 0..8 {
            right.send(frame(number)).await.unwrap();
        }
        let mut seen = Vec::new();
        let end = loop {
            match left.next().await {
                Some(Ok(frame)) => seen.extend(frame.last().copied()),
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(LinkError::Lost))));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    }

    #[tokio::test]
    async fn commands_stall_heal_and_cut_both_ends() {
        let (left, mut right) = memory::pair(100);
        let (mut left, handle) = wrap(left, Plan::new(0));
        handle.stall(Direction::Both);
        assert!(poll!(left.send(frame(1))).is_pending());
        right.send(frame(2)).await.unwrap();
        assert!(poll!(left.next()).is_pending());
        handle.heal();
        assert_eq!(left.next().await.unwrap().unwrap(), "head\u{2}");

        handle.half_open();
        left.send(frame(3)).await.unwrap();
        right.send(frame(4)).await.unwrap();
        assert!(poll!(left.next()).is_pending() && poll!(right.next()).is_pending());
        handle.heal();
        left.send(frame(5)).await.unwrap();
        assert_eq!(right.next().await.unwrap().unwrap(), "head\u{5}");

        handle.cut(Direction::Both);
        handle.heal();
        assert!(matches!(left.next().await, Some(Err(LinkError::Lost))));
        assert!(matches!(left.send(frame(6)).await, Err(LinkError::Lost)));
        assert!(matches!(right.next().await, Some(Err(LinkError::Lost))));
        assert!(format!("{handle:?}").contains("seed: 0"));
    }
}
