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

    /// A requester has ends of calls. Their target forgets them in the end without this frame: it never waits for others.
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
        let has_room = |found: &Session| found.resumes && found.outbox.len() < self.settings.queue_frames;
        if self.sessions.get(&target_key).is_some_and(has_room) {
            self.stats.frames += 1;
            let part = Part::Ack { service, further };
            self.control(target_key, Frame::call(Some(source), None, id, part), Lane::Control);
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
