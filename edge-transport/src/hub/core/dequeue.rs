//! Moves queued frames to a peer's link and updates the remaining time of requests.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::open::ServedCall;
use super::{Core, SessionKey};
use crate::fair_share::FairShare;
use crate::frame::{Frame, Kind, Part, Reason, WireFrame, decode};
use crate::hub::identity::Sender;
use crate::session::CloseReason;

/// The remaining time of a request at the moment when the hub received it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimit {
    received: Instant,
    remaining: Duration,
}

impl TimeLimit {
    /// Creates the limit of a request received now.
    pub(super) const fn new(remaining: Duration, now: Instant) -> Self {
        Self { received: now, remaining }
    }

    /// Returns the remaining time, or `None` if the request has waited for less than a millisecond, the resolution of
    /// frames.
    fn reduced(self, now: Instant) -> Option<Duration> {
        let waited = now.saturating_duration_since(self.received);
        (waited >= Duration::from_millis(1)).then(|| self.remaining.saturating_sub(waited))
    }
}

/// A queued frame.
#[derive(Debug)]
pub(super) struct QueuedFrame {
    /// The frame, with the remaining time at the moment of queueing.
    pub(super) frame: WireFrame,
    /// The sender, who takes turns with others in the queue.
    pub(super) sender: Sender,
    /// The peer that caused the frame, in whose share of all waiting bytes it is.
    pub(super) cause: Sender,
    /// Set for a request with a deadline.
    pub(super) limit: Option<TimeLimit>,
    /// Whether the frame is a control frame, which is queued even if the queue is full.
    pub(super) is_control: bool,
}

/// Frames that a link has taken and not written yet, in the order in which it took them. A slow link may hold a large frame for
/// minutes.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    frames: VecDeque<(Sender, usize)>,
    bytes: usize,
}

impl Unwritten {
    /// Frames for which an idle link keeps memory.
    const KEEP_FRAMES: usize = 64;

    fn push(&mut self, cause: Sender, bytes: usize) {
        self.frames.push_back((cause, bytes));
        self.bytes += bytes;
    }

    /// Gives back the bytes of the oldest frames, so that at least `left` bytes remain taken.
    pub(super) fn release(&mut self, left: usize, waiting: &mut FairShare<Sender>) {
        while let Some((cause, bytes)) = self.frames.front().copied()
            && self.bytes - bytes >= left
        {
            self.frames.pop_front();
            self.bytes -= bytes;
            waiting.give_back(&cause, bytes);
        }
        if self.frames.is_empty() && self.frames.capacity() > Self::KEEP_FRAMES {
            self.frames = VecDeque::new();
        }
    }
}

impl Core {
    /// Moves queued frames of a peer, about `max_bytes`, into `frames`. If `max_bytes` is 0, only checks whether to
    /// close.
    ///
    /// The time that a request with a deadline spent in the queue is subtracted from its remaining time. A request without
    /// remaining time is not sent, and its call ends with [`Reason::Deadline`]. Time in the link's own buffer, which holds at
    /// most `max_bytes`, is not counted. Call [`Core::poll_wake`] afterwards, and [`Core::written`] as the link writes the
    /// frames: until then they count as queued.
    ///
    /// # Errors
    /// The reason for which the link must be closed.
    pub fn take(
        &mut self,
        key: SessionKey,
        frames: &mut VecDeque<WireFrame>,
        max_bytes: usize,
        now: Instant,
    ) -> Result<(), CloseReason> {
        let Some(session) = self.sessions.get_mut(&key) else { return Err(CloseReason::Closed) };
        if let Some(reason) = &session.closed {
            return Err(reason.clone());
        }
        let (mut taken, mut expired) = (0, Vec::new());
        while taken < max_bytes
            && let Some(QueuedFrame { frame, cause, limit, is_control, .. }) = session.outbox.pop()
        {
            let bytes = frame.len();
            taken += bytes;
            if is_control {
                session.control_bytes -= bytes;
            }
            let left = limit.and_then(|limit| limit.reduced(now));
            if left == Some(Duration::ZERO) {
                self.waiting.give_back(&cause, bytes);
                expired.push(frame);
                continue;
            }
            session.unwritten.push(cause, bytes);
            frames.push_back(match left.and_then(|left| with_remaining(&frame, left)) {
                Some(reduced) => self.encoder.encode(reduced, frame.lane),
                None => frame,
            });
        }
        for frame in expired {
            self.expire(key, frame);
        }
        Ok(())
    }

    /// Records that a link has written what it took, but for the last `left` bytes.
    pub fn written(&mut self, key: SessionKey, left: usize) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.unwritten.release(left, &mut self.waiting);
        }
    }

    /// Ends the call of a request whose deadline passed in the queue.
    fn expire(&mut self, target: SessionKey, frame: WireFrame) {
        let Ok(Frame { kind: Kind::Call(number, _), .. }) = decode(frame.head, usize::MAX) else { return };
        let served = self.sessions.get(&target).and_then(|session| session.inbound.get(&number));
        if let Some(ServedCall { requester, number, .. }) = served.copied()
            && let Some((call, _)) = self.remove_call(requester, number)
        {
            let detail = "the deadline passed while the request was queued at the hub; it was not sent";
            self.fail(requester, number, &call, Reason::Deadline, detail.to_owned());
        }
    }
}

/// Returns the request with a new remaining time.
fn with_remaining(frame: &WireFrame, left: Duration) -> Option<Frame> {
    let mut reduced = decode(frame.head.clone(), usize::MAX).ok()?;
    if let Kind::Call(_, Part::Request(request)) = &mut reduced.kind {
        request.remaining = Some(left);
        request.body = frame.body.clone();
    }
    Some(reduced)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::frame::{End, PROTOCOL_VERSION, Reply, Request};
    use crate::hub::{HubSettings, Rules};
    use crate::name::{PeerId, ServiceName, SessionId};
    use crate::session::Remote;

    const CALL: u64 = 7;

    struct Hub {
        core: Core,
        now: Instant,
        near: SessionKey,
        far: SessionKey,
    }

    impl Hub {
        fn new() -> Self {
            let (mut core, now) =
                (Core::new(HubSettings::default(), Arc::new(Rules::allow_all())), Instant::now());
            let mut admit = |name: &str| {
                let remote = Remote {
                    peer: PeerId::new(name).unwrap(),
                    session: SessionId { instance: 1, number: 1 },
                    version: PROTOCOL_VERSION,
                    max_frame: 1 << 20,
                    services: Arc::from([ServiceName::new("csi").unwrap()]),
                    features: Vec::new(),
                    idle_ping: None,
                };
                core.admit(&remote).unwrap()
            };
            let (near, far) = (admit("near"), admit("far"));
            Self { core, now, near, far }
        }

        fn call(&mut self, remaining: impl Into<Option<Duration>>) {
            let body = Bytes::from_static(b"request");
            let mut request = Request::new(ServiceName::new("csi").unwrap(), body);
            (request.remaining, request.metadata) = (remaining.into(), Bytes::from_static(b"metadata"));
            request.credit = 1000;
            self.sent(Part::Request(request));
        }

        /// Routes a frame from `near` to `far`.
        fn sent(&mut self, part: Part) {
            let target = PeerId::new("far").ok();
            self.core.route(self.near, Frame::call(None, target, CALL, part), self.now);
        }

        fn take(&mut self, key: SessionKey) -> Vec<Part> {
            let mut frames = VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.now).unwrap();
            self.core.written(key, 0);
            let whole = |frame: WireFrame| Bytes::from([frame.head, frame.body].concat());
            let parts =
                frames.into_iter().map(|frame| match decode(whole(frame), usize::MAX).unwrap().kind {
                    Kind::Call(_, part) => part,
                    other => unreachable!("{other:?}"),
                });
            parts.collect()
        }

        /// Waits for this time and returns the request that `far` then receives.
        fn forwarded(&mut self, after: Duration) -> Request {
            self.now += after;
            match &self.take(self.far)[..] {
                [Part::Request(request)] => request.clone(),
                other => unreachable!("{other:?}"),
            }
        }
    }

    #[test]
    fn forwards_requests_with_their_remaining_time() {
        for (waited, left) in [(0, 1000), (1, 999), (400, 600), (999, 1)] {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            let request = hub.forwarded(Duration::from_millis(waited));
            assert_eq!(request.remaining, Some(Duration::from_millis(left)), "after {waited} ms");
            assert_eq!((&request.body[..], &request.metadata[..]), (&b"request"[..], &b"metadata"[..]));
            assert_eq!(request.credit, 1000);
            assert_eq!(hub.core.stats().queued_bytes, 0);
        }
    }

    #[test]
    fn requests_without_deadline_never_expire() {
        let mut hub = Hub::new();
        hub.call(None);
        assert_eq!(hub.forwarded(Duration::from_secs(3600)).remaining, None);
        let mut hub = Hub::new();
        hub.call(Duration::from_millis(u64::MAX));
        let left = Duration::from_millis(u64::MAX) - Duration::from_secs(3600);
        assert_eq!(hub.forwarded(Duration::from_secs(3600)).remaining, Some(left));
    }

    #[test]
    fn fails_expired_requests_with_deadline() {
        let mut hub = Hub::new();
        hub.call(Duration::from_secs(1));
        while hub.core.poll_wake().is_some() {}
        hub.now += Duration::from_secs(1);
        assert_eq!(hub.take(hub.far), []);
        assert_eq!(hub.core.poll_wake(), Some(hub.near), "the caller must read its failure");
        match &hub.take(hub.near)[..] {
            [Part::Reply(Reply { sequence: 0, message: None, end: Some(End::Failed(failure)) })] => {
                assert_eq!(failure.reason(), Reason::Deadline);
            }
            other => unreachable!("{other:?}"),
        }
        let stats = hub.core.stats();
        assert_eq!((stats.open_calls, stats.queued_bytes, stats.expired), (0, 0, 1));
        assert!(hub.core.is_idle(hub.far) && hub.core.is_idle(hub.near));
    }

    /// The reasons of received failures.
    fn failures(parts: &[Part]) -> Vec<Reason> {
        let failure = |part: &Part| match part {
            Part::Reply(Reply { sequence: 0, end: Some(End::Failed(failure)), .. }) => failure.reason(),
            other => unreachable!("{other:?}"),
        };
        parts.iter().map(failure).collect()
    }

    #[test]
    fn withdraws_queued_requests_of_lost_callers() {
        let causes: [fn(&mut Hub); 2] = [|hub| hub.sent(Part::Cancel), |hub| hub.core.lost(hub.near)];
        for leave in causes {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            leave(&mut hub);
            let stats = hub.core.stats();
            assert_eq!((stats.withdrawn, stats.queued_bytes, stats.open_calls), (1, 0, 0));
            assert_eq!(hub.take(hub.far), [], "neither the request nor its cancel is sent");
            assert!(hub.core.is_idle(hub.far));
        }
    }

    #[test]
    fn cancels_forwarded_requests_of_lost_callers() {
        let causes: [fn(&mut Hub); 2] = [|hub| hub.sent(Part::Cancel), |hub| hub.core.lost(hub.near)];
        for leave in causes {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            hub.forwarded(Duration::ZERO);
            leave(&mut hub);
            assert_eq!(hub.take(hub.far), [Part::Cancel]);
            assert_eq!(hub.core.stats().withdrawn, 0);
        }
    }

    #[test]
    fn lost_target_is_offline_only_for_queued_requests() {
        for (forwarded, expected) in [(false, Reason::PeerOffline), (true, Reason::LinkLost)] {
            let mut hub = Hub::new();
            hub.call(None);
            if forwarded {
                hub.forwarded(Duration::ZERO);
            }
            hub.core.lost(hub.far);
            let received = hub.take(hub.near);
            assert_eq!(failures(&received), [expected]);
            let stats = hub.core.stats();
            assert_eq!((stats.offline, stats.link_lost), (u64::from(!forwarded), u64::from(forwarded)));
            assert_eq!((stats.queued_bytes, stats.open_calls), (0, 0));
        }
    }

    #[test]
    fn cancel_that_overtakes_its_request_withdraws_it() {
        let mut hub = Hub::new();
        hub.sent(Part::Cancel);
        hub.call(None);
        assert_eq!(hub.take(hub.far), []);
        let received = hub.take(hub.near);
        assert_eq!(failures(&received), [Reason::Protocol]);
    }

    #[test]
    fn call_number_opens_once() {
        let mut hub = Hub::new();
        hub.call(None);
        hub.call(None);
        hub.forwarded(Duration::ZERO);
        assert_eq!((hub.take(hub.near), hub.core.stats().duplicates), (vec![], 1), "it is open");
        hub.sent(Part::Cancel);
        hub.call(None);
        let received = hub.take(hub.near);
        assert_eq!(failures(&received), [Reason::Protocol]);
        assert_eq!(hub.take(hub.far), [Part::Cancel]);
    }

    #[test]
    fn refuses_requests_for_another_session() {
        for (instance, number) in [(1, 2), (2, 1), (1, 0)] {
            let mut hub = Hub::new();
            let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
            request.to_session = Some(SessionId { instance, number });
            hub.sent(Part::Request(request));
            assert_eq!(hub.take(hub.far), []);
            let received = hub.take(hub.near);
            assert_eq!(failures(&received), [Reason::WrongSession], "{instance} {number}");
            assert_eq!(hub.core.stats().wrong_session, 1);
        }
        let mut hub = Hub::new();
        let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
        request.to_session = Some(SessionId { instance: 1, number: 1 });
        hub.sent(Part::Request(request.clone()));
        assert_eq!(hub.take(hub.far), [Part::Request(request)]);
    }
}
