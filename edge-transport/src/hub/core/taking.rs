//! What waits for a peer goes onto its link, with the time that is left by then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Core, SessionKey};
use crate::frame::{Frame, Kind, Lane, Part, Reason, WireFrame, decode};
use crate::hub::outbox::Waiting;
use crate::session::CloseReason;

impl Core {
    /// Moves frames that wait for a peer into `frames`, about `max_bytes` of them. With 0 only asks whether to close.
    ///
    /// A request whose caller does not wait for ever goes on with what is left of its time: what it spent here is taken off. One
    /// of which nothing is left is not sent, and its call ends with [`Reason::Deadline`]. What lies with the link itself, at most
    /// `max_bytes`, is not counted. After it, wakes are to be polled.
    ///
    /// # Errors
    /// The link is to be closed, for this reason.
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
            && let Some(Waiting { frame, limit, .. }) = session.outbox.pop()
        {
            taken += frame.len();
            match limit.and_then(|limit| limit.shrunk(now)) {
                None => frames.push_back(frame),
                Some(Duration::ZERO) => expired.push(frame),
                Some(left) => frames.push_back(match with_left(&frame, left) {
                    Some(shrunk) => self.encoder.encode(shrunk, frame.lane),
                    None => frame,
                }),
            }
        }
        self.queued_bytes -= taken;
        for frame in expired {
            self.expire(key, frame);
        }
        Ok(())
    }

    /// A request waited for its target's link until its caller's time was over.
    fn expire(&mut self, target: SessionKey, frame: WireFrame) {
        let Ok(Frame { source: Some(requester), kind: Kind::Call(id, _), .. }) =
            decode(frame.head, usize::MAX)
        else {
            return;
        };
        let Some(requester) = self.by_name.get(&requester).copied() else { return };
        // The requester may have left, and have come back by a later link.
        if self.call_of(requester, id).is_some_and(|call| call.target == target)
            && let Some(call) = self.forget(requester, id.number)
        {
            let detail = "the caller's time was over while the request waited at the hub; it was not sent";
            let lane = Lane::Call(call.lane);
            self.fail_to(requester, id, lane, Reason::Deadline, detail.to_owned());
        }
    }
}

/// The request with so much time left.
fn with_left(frame: &WireFrame, left: Duration) -> Option<Frame> {
    let mut shrunk = decode(frame.head.clone(), usize::MAX).ok()?;
    if let Kind::Call(_, Part::Request(request)) = &mut shrunk.kind {
        request.remaining = Some(left);
        request.body = frame.body.clone();
    }
    Some(shrunk)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::frame::{CallId, End, FEATURE_RESUME, PROTOCOL_VERSION, Reply, Request};
    use crate::hub::{AllowAll, HubSettings};
    use crate::name::{Epoch, PeerId, ServiceName};
    use crate::session::Remote;

    const CALL: u64 = 7;

    struct Hub {
        core: Core,
        now: Instant,
        near: SessionKey,
        far: SessionKey,
    }

    fn id() -> CallId {
        CallId::new(Epoch::new(1), CALL)
    }

    impl Hub {
        fn new() -> Self {
            let (mut core, now) = (Core::new(HubSettings::default(), Arc::new(AllowAll)), Instant::now());
            let mut admit = |name: &str| {
                let remote = Remote {
                    peer: PeerId::new(name).unwrap(),
                    epoch: Epoch::new(1),
                    version: PROTOCOL_VERSION,
                    max_frame: 1 << 20,
                    services: Arc::from([ServiceName::new("csi").unwrap()]),
                    features: vec![FEATURE_RESUME.to_owned()],
                };
                core.admit(&remote, now).unwrap()
            };
            let (near, far) = (admit("near"), admit("far"));
            Self { core, now, near, far }
        }

        fn call(&mut self, remaining: impl Into<Option<Duration>>) {
            let body = Bytes::from_static(b"request");
            let mut request = Request::new(ServiceName::new("csi").unwrap(), body);
            (request.remaining, request.metadata) = (remaining.into(), Bytes::from_static(b"metadata"));
            (request.credit, request.resumable) = (1000, true);
            self.sent(Part::Request(request));
        }

        /// A frame from near.
        fn sent(&mut self, part: Part) {
            let target = PeerId::new("far").ok();
            self.core.route(self.near, Frame::call(None, target, id(), part), self.now);
        }

        fn take(&mut self, key: SessionKey) -> Vec<Part> {
            let mut frames = VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.now).unwrap();
            let whole = |frame: WireFrame| Bytes::from([frame.head, frame.body].concat());
            let parts =
                frames.into_iter().map(|frame| match decode(whole(frame), usize::MAX).unwrap().kind {
                    Kind::Call(found, part) if found == id() => part,
                    other => unreachable!("{other:?}"),
                });
            parts.collect()
        }

        /// The request that far gets after so long.
        fn passed_on(&mut self, after: Duration) -> Request {
            self.now += after;
            match &self.take(self.far)[..] {
                [Part::Request(request)] => request.clone(),
                other => unreachable!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_request_goes_on_with_what_is_left_of_its_time_and_is_otherwise_the_same() {
        for (waited, left) in [(0, 1000), (1, 999), (400, 600), (999, 1)] {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            let request = hub.passed_on(Duration::from_millis(waited));
            assert_eq!(request.remaining, Some(Duration::from_millis(left)), "after {waited} ms");
            assert_eq!((&request.body[..], &request.metadata[..]), (&b"request"[..], &b"metadata"[..]));
            assert_eq!((request.credit, request.resumable), (1000, true));
            assert_eq!(hub.core.stats().queued_bytes, 0);
        }
    }

    #[test]
    fn a_request_without_a_limit_keeps_none_however_long_it_waits() {
        let mut hub = Hub::new();
        hub.call(None);
        assert_eq!(hub.passed_on(Duration::from_secs(3600)).remaining, None);
        let mut hub = Hub::new();
        hub.call(Duration::from_millis(u64::MAX));
        let left = Duration::from_millis(u64::MAX) - Duration::from_secs(3600);
        assert_eq!(hub.passed_on(Duration::from_secs(3600)).remaining, Some(left));
    }

    #[test]
    fn a_request_whose_time_is_over_is_not_sent_and_its_caller_is_told_that_the_deadline_ended_it() {
        let mut hub = Hub::new();
        hub.call(Duration::from_secs(1));
        while hub.core.poll_wake().is_some() {}
        hub.now += Duration::from_secs(1);
        assert_eq!(hub.take(hub.far), []);
        assert_eq!(hub.core.poll_wake(), Some(hub.near), "or nobody would take what it is told");
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

    #[test]
    fn a_caller_that_has_left_is_told_nothing_of_a_request_that_was_not_sent() {
        let mut hub = Hub::new();
        hub.call(Duration::from_secs(1));
        hub.now += Duration::from_secs(2);
        hub.sent(Part::StopWaiting);
        // The word that it has left stays, since what is before it may have gone by another hub.
        assert_eq!(hub.take(hub.far), [Part::StopWaiting]);
        assert_eq!(hub.take(hub.near), []);
        assert_eq!(hub.core.stats().expired, 0);
    }

    #[test]
    fn a_request_whose_time_is_over_ends_nothing_once_its_callers_link_is_gone() {
        let mut hub = Hub::new();
        hub.call(Duration::from_secs(1));
        hub.core.lost(hub.near, hub.now);
        hub.now += Duration::from_secs(1);
        assert_eq!(hub.take(hub.far), [Part::Away]);
        assert_eq!(hub.core.stats().expired, 0);
    }
}
