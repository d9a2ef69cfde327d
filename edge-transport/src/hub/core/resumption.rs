//! Calls that outlive a link: what a hub passes on so that both ends find each other again.

use super::open::Call;
use super::{Core, Session, SessionKey};
use crate::frame::{CallId, Frame, Kind, Lane, Part, Reason, Resume};
use crate::hub::Requester;
use crate::name::{PeerId, ServiceName};

impl Core {
    /// What is said to the target of a call whose requester is not connected.
    pub(super) fn parting(&self, target: SessionKey) -> Part {
        match self.sessions.get(&target) {
            Some(session) if session.resumes => Part::Away,
            _ => Part::StopWaiting,
        }
    }

    /// A peer is connected: who waits for it is told.
    pub(super) fn tell_returned(&mut self, peer: &PeerId) {
        for requester in self.returning.returned(peer) {
            self.control(requester, Frame::hop(Kind::Returned { peer: peer.clone() }), Lane::Control);
        }
    }

    /// A requester wants the rest of an answer.
    pub(super) fn resume(&mut self, key: SessionKey, target: Option<PeerId>, id: CallId, resume: Resume) {
        let Some(session) = self.sessions.get(&key) else { return };
        let (source, is_open) = (session.peer.clone(), session.calls.call(id.number).is_some());
        let refused = match &target {
            _ if id.epoch != session.epoch => Some((
                Reason::Protocol,
                format!("the call has epoch {}, its session {}", id.epoch, session.epoch),
            )),
            None => Some((Reason::Protocol, "the resumption names no target".to_owned())),
            Some(target) if !self.may_call(session, target, &resume.service) => {
                Some((Reason::Forbidden, format!("{source} may not call {} of {target}", resume.service)))
            }
            Some(_) if is_open => None,
            Some(target) => self.no_room(session, target).map(|detail| (Reason::Overloaded, detail)),
        };
        if let Some((reason, detail)) = refused {
            return self.fail_to(key, id, Lane::Control, reason, detail);
        }
        let Some(target) = target else { return };
        let Some(target_key) = self.by_name.get(&target).copied() else {
            self.returning.wait(key, &target);
            return self.fail_to(
                key,
                id,
                Lane::Control,
                Reason::PeerOffline,
                format!("{target} is not connected"),
            );
        };
        match self.sessions.get(&target_key) {
            Some(found) if !found.resumes => {
                let detail = format!("{target} does not resume calls");
                return self.fail_to(key, id, Lane::Control, Reason::AnswerLost, detail);
            }
            Some(found) if found.outbox.len() >= self.settings.queue_frames => {
                let detail = format!("{} frames wait for {target}", found.outbox.len());
                return self.fail_to(key, id, Lane::Control, Reason::Overloaded, detail);
            }
            _ => {}
        }
        if !is_open {
            self.attach(key, id.number, target_key);
        }
        self.stats.resumed += 1;
        self.stats.frames += 1;
        self.control(target_key, Frame::call(Some(source), None, id, Part::Resume(resume)), Lane::Control);
    }

    /// A requester has ends of calls. Their target forgets them in the end without this frame: where there is no room it is left out.
    pub(super) fn ack(
        &mut self,
        key: SessionKey,
        target: Option<PeerId>,
        id: CallId,
        service: ServiceName,
        further: Vec<u64>,
    ) {
        let Some(session) = self.sessions.get(&key) else { return };
        let Some(target) = target.filter(|target| self.may_call(session, target, &service)) else {
            return self.stats.stray += 1;
        };
        let source = session.peer.clone();
        let Some(target_key) = self.by_name.get(&target).copied() else { return };
        if self.sessions.get(&target_key).is_some_and(|found| found.resumes) {
            let part = Part::Ack { service, further };
            let frame = Frame::call(Some(source), None, id, part);
            self.stats.frames += u64::from(self.push(target_key, frame, Lane::Control, None).is_ok());
        }
    }

    /// Whether the policy lets this peer call that one.
    pub(super) fn may_call(&self, session: &Session, target: &PeerId, service: &ServiceName) -> bool {
        let requester = Requester { peer: &session.peer, services: &session.services };
        self.permits(&requester, target, service)
    }

    /// From now on a call goes this way.
    pub(super) fn attach(&mut self, requester: SessionKey, number: u64, target: SessionKey) {
        let own = self.sessions.get(&target).is_some_and(|target| self.is_own(&target.peer));
        if let Some(target) = self.sessions.get_mut(&target) {
            target.serving.insert((requester, number));
        }
        if let Some(session) = self.sessions.get_mut(&requester) {
            let lane = session.fresh_lane();
            session.calls.insert(number, Call { target, lane, lane_open: false, own });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Instant;

    use bytes::Bytes;

    use super::*;
    use crate::frame::{FEATURE_RESUME, MAX_ACKED, PROTOCOL_VERSION, Reply, Request, decode};
    use crate::hub::{AllowAll, HubSettings, NodesCallNobody, Policy};
    use crate::name::Epoch;
    use crate::session::{CloseReason, Remote};

    const CALLS: usize = 4;

    struct Hub {
        core: Core,
        now: Instant,
    }

    fn name(name: &str) -> PeerId {
        PeerId::new(name).unwrap()
    }

    fn csi() -> ServiceName {
        ServiceName::new("csi").unwrap()
    }

    fn id(number: u64) -> CallId {
        CallId::new(Epoch::new(1), number)
    }

    impl Hub {
        fn new(policy: impl Policy + 'static) -> Self {
            let settings = HubSettings {
                max_calls: CALLS,
                queue_frames: 16,
                queue_bytes: 64 * 1024,
                total_queue_bytes: 256 * 1024,
                ..HubSettings::default()
            };
            Self { core: Core::new(settings, Arc::new(policy)), now: Instant::now() }
        }

        fn admit(&mut self, peer: &str) -> SessionKey {
            let remote = Remote {
                peer: name(peer),
                epoch: Epoch::new(1),
                version: PROTOCOL_VERSION,
                max_frame: 1 << 20,
                services: Arc::from([csi()]),
                features: vec![FEATURE_RESUME.to_owned()],
            };
            self.core.admit(&remote, self.now).unwrap()
        }

        fn says(&mut self, key: SessionKey, target: &str, number: u64, part: Part) {
            self.core.route(key, Frame::call(None, Some(name(target)), id(number), part), self.now);
        }

        fn calls(&mut self, key: SessionKey, target: &str, number: u64) {
            self.says(key, target, number, Part::Request(Request::new(csi(), Bytes::new())));
        }

        fn hears(&mut self, key: SessionKey) -> Result<Vec<Part>, CloseReason> {
            let mut frames = VecDeque::new();
            self.core.take(key, &mut frames, usize::MAX, self.now)?;
            let decoded = frames
                .into_iter()
                .map(|frame| decode([frame.head, frame.body].concat().into(), usize::MAX).unwrap());
            Ok(decoded
                .filter_map(|frame| match frame.kind {
                    Kind::Call(_, part) => Some(part),
                    _ => None,
                })
                .collect())
        }

        fn queued(&self) -> usize {
            self.core.stats().queued_bytes
        }
    }

    #[test]
    fn acknowledgements_that_nobody_reads_stay_within_the_bounds_and_leave_the_others_their_room() {
        let mut hub = Hub::new(AllowAll);
        let slow = ["slow-1", "slow-2", "slow-3"];
        let [near, other, ..] = ["near", "other", slow[0], slow[1], slow[2]].map(|peer| hub.admit(peer));
        for number in 1..=1000 {
            let further = (1 << 63..).take(MAX_ACKED - 1).collect();
            hub.says(near, slow[number as usize % 3], number, Part::Ack { service: csi(), further });
            assert!(hub.queued() <= 256 * 1024, "{} bytes wait", hub.queued());
        }
        assert!(hub.queued() > 64 * 1024, "as many as there is room for are passed on");
        hub.calls(other, "near", 1);
        assert!(matches!(hub.hears(near).unwrap()[..], [Part::Request(_)]), "it was refused");
    }

    #[test]
    fn a_peer_that_reads_no_refusals_is_closed_before_they_take_more_than_they_may() {
        let mut hub = Hub::new(NodesCallNobody);
        let long = "a".repeat(253);
        let near = hub.admit(&long);
        let mut most = 0;
        for number in 1..=1000 {
            hub.calls(near, &"b".repeat(253), number);
            most = most.max(hub.queued());
        }
        // One of them may go beyond it.
        assert!(most <= (16 + 4 * CALLS) * 256 + 1024, "{most} bytes waited");
        assert!(matches!(hub.hears(near), Err(CloseReason::Overloaded { .. })));
    }

    #[test]
    fn what_must_not_be_lost_comes_behind_an_answer_that_fills_the_queue() {
        let mut hub = Hub::new(AllowAll);
        let [near, far] = ["near", "far"].map(|peer| hub.admit(peer));
        (1..=CALLS as u64).for_each(|number| hub.calls(near, "far", number));
        let mut reply = Reply::new(1);
        reply.message = Some(vec![0; 200 * 1024].into());
        hub.says(far, "near", 1, Part::Reply(reply));
        hub.core.lost(far, hub.now);
        let heard = hub.hears(near).unwrap();
        let ends = heard.iter().filter(|part| matches!(part, Part::Reply(Reply { end: Some(_), .. })));
        assert_eq!((heard.len(), ends.count()), (1 + CALLS, CALLS));
    }
}
