//! Calls through the hub: which frame goes where, and how a call ends at both sides.

use std::time::Instant;

use bytes::Bytes;

use super::open::Call;
use super::{Core, Session, SessionKey};
use crate::frame::{CallId, DecodeError, Failure, Frame, Kind, Lane, Part, Reason, Reply, Request, decode};
use crate::hub::outbox::Limit;
use crate::name::PeerId;

impl Core {
    /// Passes on a frame that came from a peer now.
    pub fn route(&mut self, key: SessionKey, frame: Frame, now: Instant) {
        let Some(session) = self.sessions.get(&key).filter(|session| session.closed.is_none()) else {
            return;
        };
        let Kind::Call(id, part) = frame.kind else {
            self.stats.unknown_kinds += 1;
            return;
        };
        if frame.source.as_ref().is_some_and(|source| *source != session.peer) {
            self.stats.spoofed += 1;
            let detail = format!("the frame claims another source than {}", session.peer);
            return self.refuse(key, id, &part, Reason::Forbidden, detail);
        }
        match part {
            Part::Request(request) => self.request(key, frame.target, id, request, now),
            Part::Reply(reply) => self.reply(key, frame.target, id, reply),
            Part::Credit { .. } | Part::StopWaiting => self.along_request(key, id, part),
            Part::Resume(resume) => self.resume(key, frame.target, id, resume),
            Part::Ack { service, further } => self.ack(key, frame.target, id, service, further),
            // Only hubs say it.
            Part::Away => self.stats.stray += 1,
        }
    }

    /// A frame came from a peer that could not be decoded: at most its call ends.
    pub fn malformed(&mut self, key: SessionKey, error: &DecodeError) {
        self.stats.malformed += 1;
        let DecodeError::InCall { id, request, receiver, .. } = error else { return };
        if *request {
            return self.fail_to(key, *id, Lane::Control, Reason::Protocol, error.to_string());
        }
        let requester = receiver.as_ref().and_then(|name| self.by_name.get(name)).copied();
        if let Some(requester) = requester
            && self.call_of(requester, *id).is_some_and(|call| call.target == key)
        {
            self.end_call(requester, *id, Reason::Protocol, error.to_string());
        }
    }

    /// The link to a peer refused a frame as too large; this was its head. Its call ends.
    pub fn refused(&mut self, key: SessionKey, head: Bytes) {
        let detail =
            || "a link refused the frame as too large: make its bound as high as max_frame".to_owned();
        match decode(head, usize::MAX) {
            Ok(Frame { source: Some(requester), kind: Kind::Call(id, Part::Request(_)), .. }) => {
                if let Some(requester) = self.by_name.get(&requester).copied() {
                    self.end_call(requester, id, Reason::TooLarge, detail());
                }
            }
            Ok(Frame { kind: Kind::Call(id, Part::Reply(_)), .. }) => {
                if self.call_of(key, id).is_some() {
                    self.end_call(key, id, Reason::TooLarge, detail());
                } else {
                    // The frame was the call's end.
                    self.fail_to(key, id, Lane::Control, Reason::TooLarge, detail());
                }
            }
            _ => {}
        }
    }

    pub(super) fn call_of(&self, requester: SessionKey, id: CallId) -> Option<&Call> {
        let session = self.sessions.get(&requester).filter(|session| session.epoch == id.epoch)?;
        session.calls.call(id.number)
    }

    fn refuse(&mut self, key: SessionKey, id: CallId, part: &Part, reason: Reason, detail: String) {
        if matches!(part, Part::Request(_)) {
            self.fail_to(key, id, Lane::Control, reason, detail);
        }
    }

    /// Tells a requester that its call has ended.
    pub(super) fn fail_to(
        &mut self,
        key: SessionKey,
        id: CallId,
        lane: Lane,
        reason: Reason,
        detail: String,
    ) {
        let counter = match reason {
            Reason::PeerOffline => &mut self.stats.offline,
            Reason::LinkLost | Reason::AnswerLost => &mut self.stats.link_lost,
            Reason::Overloaded => &mut self.stats.overloaded,
            Reason::TooLarge => &mut self.stats.too_large,
            Reason::Forbidden => &mut self.stats.forbidden,
            Reason::Draining => &mut self.stats.draining,
            Reason::Deadline => &mut self.stats.expired,
            _ => &mut self.stats.malformed,
        };
        *counter += 1;
        self.control(
            key,
            Frame::call(None, None, id, Part::Reply(Reply::failed(Failure::new(reason, detail)))),
            lane,
        );
    }

    fn request(
        &mut self,
        key: SessionKey,
        target: Option<PeerId>,
        id: CallId,
        request: Request,
        now: Instant,
    ) {
        match self.check_request(key, target, id, &request) {
            Ok(target_key) => {
                let body = request.body.len() as u64;
                let limit = request.remaining.map(|remaining| Limit::new(remaining, now));
                let Some(source) = self.sessions.get(&key).map(|session| session.peer.clone()) else {
                    return;
                };
                let frame = Frame::call(Some(source), None, id, Part::Request(request));
                let Some(target) = self.sessions.get_mut(&target_key) else { return };
                let lane = Lane::Call(target.fresh_lane());
                if let Err((reason, detail)) = self.push(target_key, frame, lane, limit) {
                    return self.fail_to(key, id, Lane::Control, reason, detail);
                }
                self.attach(key, id.number, target_key);
                self.stats.calls += 1;
                self.stats.frames += 1;
                self.stats.body_bytes += body;
            }
            Err(Some((reason, detail))) => self.fail_to(key, id, Lane::Control, reason, detail),
            Err(None) => self.stats.duplicates += 1,
        }
    }

    fn check_request(
        &self,
        key: SessionKey,
        target: Option<PeerId>,
        id: CallId,
        request: &Request,
    ) -> Result<SessionKey, Option<(Reason, String)>> {
        let refuse = |reason, detail: String| Err(Some((reason, detail)));
        let Some(session) = self.sessions.get(&key) else { return Err(None) };
        if id.epoch != session.epoch {
            let detail = format!(
                "the call has epoch {}, but the session of {} has {}",
                id.epoch, session.peer, session.epoch
            );
            return refuse(Reason::Protocol, detail);
        }
        if session.calls.call(id.number).is_some() {
            return Err(None);
        }
        if let Some(reason) = &self.draining {
            return refuse(Reason::Draining, format!("the hub takes no new calls: {reason}"));
        }
        if session.draining {
            return refuse(Reason::Draining, format!("{} is draining", session.peer));
        }
        let Some(target) = target else {
            return refuse(Reason::Protocol, "the request names no target".to_owned());
        };
        if let Some(detail) = self.no_room(session, &target) {
            return refuse(Reason::Overloaded, detail);
        }
        if !self.may_call(session, &target, &request.service) {
            let detail = format!("{} may not call {} of {target}", session.peer, request.service);
            return refuse(Reason::Forbidden, detail);
        }
        let Some((target_key, found)) =
            self.by_name.get(&target).and_then(|key| self.sessions.get(key).map(|found| (*key, found)))
        else {
            return refuse(Reason::PeerOffline, format!("{target} is not connected"));
        };
        if found.draining {
            return refuse(Reason::Draining, format!("{target} takes no new calls"));
        }
        Ok(target_key)
    }

    /// Why a peer may have no further call open to this target, if so.
    pub(super) fn no_room(&self, session: &Session, target: &PeerId) -> Option<String> {
        let (peer, open, own) = (&session.peer, session.calls.len(), session.calls.own());
        if open >= self.settings.max_calls {
            return Some(format!("{peer} has {open} open calls"));
        }
        (own >= self.settings.max_own_calls && self.is_own(target))
            .then(|| format!("{peer} has {own} open calls to the hub itself"))
    }

    fn reply(&mut self, key: SessionKey, target: Option<PeerId>, id: CallId, reply: Reply) {
        let requester = target.as_ref().and_then(|name| self.by_name.get(name)).copied();
        let Some((requester, call)) =
            requester.and_then(|requester| Some((requester, self.call_of(requester, id)?)))
        else {
            self.stats.stray += 1;
            if reply.end.is_none()
                && let Some(target) = target
            {
                let part = self.parting(key);
                self.control(key, Frame::call(Some(target), None, id, part), Lane::Control);
            }
            return;
        };
        if call.target != key {
            self.stats.wrong_replier += 1;
            return;
        }
        let lane = Lane::Call(call.lane);
        let ends = reply.end.is_some();
        let body = reply.message.as_ref().map_or(0, |message| message.len() as u64);
        let Some(source) = self.sessions.get(&key).map(|session| session.peer.clone()) else { return };
        let frame = Frame::call(Some(source), None, id, Part::Reply(reply));
        match self.push(requester, frame, lane, None) {
            Ok(()) => {
                self.stats.frames += 1;
                self.stats.body_bytes += body;
                if ends {
                    self.forget(requester, id.number);
                } else if let Some(call) =
                    self.sessions.get_mut(&requester).and_then(|session| session.calls.call_mut(id.number))
                {
                    call.lane_open = true;
                }
            }
            Err((reason, detail)) => self.end_call(requester, id, reason, detail),
        }
    }

    /// Credit and stop-waiting go where the request went.
    fn along_request(&mut self, key: SessionKey, id: CallId, part: Part) {
        let Some(target) = self.call_of(key, id).map(|call| call.target) else {
            self.stats.stray += 1;
            return;
        };
        if let Part::Credit { bytes } = part {
            if bytes == 0 {
                return;
            }
            let waiting = self.sessions.get(&target).map_or(0, |session| session.outbox.len());
            if waiting >= self.settings.queue_frames {
                // Credit costs the requester nothing: without this bound it could fill a slow target's queue until that is cut.
                return self.end_call(
                    key,
                    id,
                    Reason::Overloaded,
                    format!("{waiting} frames wait for the target"),
                );
            }
        }
        if part == Part::StopWaiting
            && let Some(Call { lane, lane_open: true, .. }) = self.forget(key, id.number)
        {
            self.control(key, Frame::silence(), Lane::Call(lane));
        }
        let Some(source) = self.sessions.get(&key).map(|session| session.peer.clone()) else { return };
        self.stats.frames += 1;
        self.control(target, Frame::call(Some(source), None, id, part), Lane::Control);
    }

    /// Ends a call at both sides.
    fn end_call(&mut self, requester: SessionKey, id: CallId, reason: Reason, detail: String) {
        let Some(call) = self.forget(requester, id.number) else { return };
        let source = self.sessions.get(&requester).map(|session| session.peer.clone());
        self.control(call.target, Frame::call(source, None, id, Part::StopWaiting), Lane::Control);
        self.fail_to(requester, id, Lane::Call(call.lane), reason, detail);
    }

    pub(super) fn forget(&mut self, requester: SessionKey, number: u64) -> Option<Call> {
        let session = self.sessions.get_mut(&requester)?;
        let call = session.calls.remove(number)?;
        if let Some(target) = self.sessions.get_mut(&call.target) {
            target.serving.remove(&(requester, number));
        }
        Some(call)
    }

    /// A session is gone: its calls end at their other sides.
    pub(super) fn end_calls(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let (peer, epoch, resumes) = (session.peer.clone(), session.epoch, session.resumes);
        // Both in order, so that the same events give the same frames.
        let (calls, serving) = (std::mem::take(&mut session.calls), std::mem::take(&mut session.serving));
        for (number, call) in calls {
            if let Some(target) = self.sessions.get_mut(&call.target) {
                target.serving.remove(&(key, number));
            }
            let part = self.parting(call.target);
            let frame = Frame::call(Some(peer.clone()), None, CallId::new(epoch, number), part);
            self.control(call.target, frame, Lane::Control);
        }
        for (requester, number) in serving {
            // A call of a peer to itself is gone already.
            let Some(call) = self.forget(requester, number) else { continue };
            let Some(session) = self.sessions.get(&requester) else { continue };
            let id = CallId::new(session.epoch, number);
            let detail = format!("the link to {peer} was lost; the work may go on");
            if session.resumes && resumes {
                self.returning.wait(requester, &peer);
                // In order with the word that the peer is back.
                self.fail_to(requester, id, Lane::Control, Reason::LinkLost, detail);
                if call.lane_open {
                    self.control(requester, Frame::silence(), Lane::Call(call.lane));
                }
            } else {
                let reason = if session.resumes { Reason::AnswerLost } else { Reason::LinkLost };
                self.fail_to(requester, id, Lane::Call(call.lane), reason, detail);
            }
        }
    }
}
