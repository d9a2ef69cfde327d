//! What waits for a peer goes onto its link, with the time that is left by then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::open::Served;
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
        let Ok(Frame { kind: Kind::Call(number, _), .. }) = decode(frame.head, usize::MAX) else { return };
        let served = self.sessions.get(&target).and_then(|session| session.serving.get(&number));
        if let Some(Served { requester, number, .. }) = served.copied()
            && let Some((call, _)) = self.forget(requester, number)
        {
            let detail = "the caller's time was over while the request waited at the hub; it was not sent";
            self.fail_to(requester, number, Lane::Call(call.lane), Reason::Deadline, detail.to_owned());
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
    use crate::frame::{End, PROTOCOL_VERSION, Reply, Request};
    use crate::hub::{AllowAll, HubSettings};
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
            let (mut core, now) = (Core::new(HubSettings::default(), Arc::new(AllowAll)), Instant::now());
            let mut admit = |name: &str| {
                let remote = Remote {
                    peer: PeerId::new(name).unwrap(),
                    session: SessionId { instance: 1, number: 1 },
                    version: PROTOCOL_VERSION,
                    max_frame: 1 << 20,
                    services: Arc::from([ServiceName::new("csi").unwrap()]),
                    features: Vec::new(),
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

        /// A frame from near.
        fn sent(&mut self, part: Part) {
            let target = PeerId::new("far").ok();
            self.core.route(self.near, Frame::call(None, target, CALL, part), self.now);
        }

        fn take(&mut self, key: SessionKey) -> Vec<Part> {
            let mut frames = VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.now).unwrap();
            let whole = |frame: WireFrame| Bytes::from([frame.head, frame.body].concat());
            let parts =
                frames.into_iter().map(|frame| match decode(whole(frame), usize::MAX).unwrap().kind {
                    Kind::Call(_, part) => part,
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
            assert_eq!(request.credit, 1000);
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

    /// Asks for what `far` and `near` get.
    fn failures(parts: &[Part]) -> Vec<Reason> {
        let failure = |part: &Part| match part {
            Part::Reply(Reply { sequence: 0, end: Some(End::Failed(failure)), .. }) => failure.reason(),
            other => unreachable!("{other:?}"),
        };
        parts.iter().map(failure).collect()
    }

    #[test]
    fn a_queued_request_whose_caller_has_left_is_not_passed_on() {
        let ways: [fn(&mut Hub); 2] = [|hub| hub.sent(Part::StopWaiting), |hub| hub.core.lost(hub.near)];
        for leave in ways {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            leave(&mut hub);
            let stats = hub.core.stats();
            assert_eq!((stats.withdrawn, stats.queued_bytes, stats.open_calls), (1, 0, 0));
            assert_eq!(hub.take(hub.far), [], "nor a cancel of it");
            assert!(hub.core.is_idle(hub.far));
        }
    }

    #[test]
    fn a_request_that_was_passed_on_is_cancelled_when_its_caller_leaves() {
        let ways: [fn(&mut Hub); 2] = [|hub| hub.sent(Part::StopWaiting), |hub| hub.core.lost(hub.near)];
        for leave in ways {
            let mut hub = Hub::new();
            hub.call(Duration::from_secs(1));
            hub.passed_on(Duration::ZERO);
            leave(&mut hub);
            assert_eq!(hub.take(hub.far), [Part::StopWaiting]);
            assert_eq!(hub.core.stats().withdrawn, 0);
        }
    }

    #[test]
    fn a_lost_target_is_offline_only_for_what_was_not_passed_on() {
        for (passed_on, expected) in [(false, Reason::PeerOffline), (true, Reason::LinkLost)] {
            let mut hub = Hub::new();
            hub.call(None);
            if passed_on {
                hub.passed_on(Duration::ZERO);
            }
            hub.core.lost(hub.far);
            let heard = hub.take(hub.near);
            assert_eq!(failures(&heard), [expected]);
            let stats = hub.core.stats();
            assert_eq!((stats.offline, stats.link_lost), (u64::from(!passed_on), u64::from(passed_on)));
            assert_eq!((stats.queued_bytes, stats.open_calls), (0, 0));
        }
    }

    #[test]
    fn a_cancel_that_overtakes_its_request_keeps_it_from_the_target() {
        let mut hub = Hub::new();
        hub.sent(Part::StopWaiting);
        hub.call(None);
        assert_eq!(hub.take(hub.far), []);
        let heard = hub.take(hub.near);
        assert_eq!(failures(&heard), [Reason::Protocol]);
    }

    #[test]
    fn a_number_opens_once() {
        let mut hub = Hub::new();
        hub.call(None);
        hub.call(None);
        hub.passed_on(Duration::ZERO);
        assert_eq!((hub.take(hub.near), hub.core.stats().duplicates), (vec![], 1), "it is open");
        hub.sent(Part::StopWaiting);
        hub.call(None);
        let heard = hub.take(hub.near);
        assert_eq!(failures(&heard), [Reason::Protocol]);
        assert_eq!(hub.take(hub.far), [Part::StopWaiting]);
    }

    #[test]
    fn a_request_for_another_session_is_refused() {
        for (instance, number) in [(1, 2), (2, 1), (1, 0)] {
            let mut hub = Hub::new();
            let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
            request.to_session = Some(SessionId { instance, number });
            hub.sent(Part::Request(request));
            assert_eq!(hub.take(hub.far), []);
            let heard = hub.take(hub.near);
            assert_eq!(failures(&heard), [Reason::WrongSession], "{instance} {number}");
            assert_eq!(hub.core.stats().wrong_session, 1);
        }
        let mut hub = Hub::new();
        let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
        request.to_session = Some(SessionId { instance: 1, number: 1 });
        hub.sent(Part::Request(request.clone()));
        assert_eq!(hub.take(hub.far), [Part::Request(request)]);
    }
}
