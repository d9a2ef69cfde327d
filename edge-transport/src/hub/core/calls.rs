//! Calls through the hub: which frame goes where, and how a call ends at both sides.
//!
//! A call has one number on the link of its requester and another on that of its target, so that no session can mistake a frame of
//! an earlier one for its own.

use std::time::Instant;

use bytes::Bytes;

use super::open::{Call, Served};
use super::{Core, Session, SessionKey};
use crate::frame::{DecodeError, Failure, Frame, Kind, Lane, Part, Reason, Reply, Request, decode};
use crate::hub::Requester;
use crate::hub::outbox::Limit;
use crate::name::{PeerId, ServiceName};

/// What to do with a request.
enum Check {
    /// It goes to this session.
    Pass(SessionKey),
    /// Its requester gets a failure.
    Refuse(Reason, String),
    /// Its call is open: it came twice.
    Duplicate,
}

impl Core {
    /// Passes on a frame that came from a peer now.
    pub fn route(&mut self, key: SessionKey, frame: Frame, now: Instant) {
        let Some(session) = self.sessions.get(&key).filter(|session| session.closed.is_none()) else {
            return;
        };
        let Kind::Call(number, part) = frame.kind else {
            self.stats.unknown_kinds += 1;
            return;
        };
        if frame.source.as_ref().is_some_and(|source| *source != session.peer) {
            self.stats.spoofed += 1;
            if matches!(part, Part::Request(_)) {
                let detail = format!("the frame claims another source than {}", session.peer);
                self.fail_to(key, number, Lane::Control, Reason::Forbidden, detail);
            }
            return;
        }
        match part {
            Part::Request(request) => self.request(key, frame.target, number, request, now),
            Part::Reply(reply) => self.reply(key, number, reply),
            Part::Credit { bytes } => self.credit(key, number, bytes),
            Part::StopWaiting => self.stop_waiting(key, number),
        }
    }

    /// A frame came from a peer that could not be decoded: at most its call ends.
    pub fn malformed(&mut self, key: SessionKey, error: &DecodeError) {
        self.stats.malformed += 1;
        let DecodeError::InCall { number, request, .. } = error else { return };
        match *request {
            true => self.fail_to(key, *number, Lane::Control, Reason::Protocol, error.to_string()),
            false => self.end_served(key, *number, Reason::Protocol, error.to_string()),
        }
    }

    /// The link to a peer refused a frame as too large; this was its head. Its call ends.
    pub fn refused(&mut self, key: SessionKey, head: Bytes) {
        let detail = "a link refused the frame as too large: make its bound as high as max_frame".to_owned();
        match decode(head, usize::MAX) {
            Ok(Frame { kind: Kind::Call(number, Part::Request(_)), .. }) => {
                self.end_served(key, number, Reason::TooLarge, detail);
            }
            Ok(Frame { kind: Kind::Call(number, Part::Reply(_)), .. }) => {
                if self.call_of(key, number).is_some() {
                    self.end_call(key, number, Reason::TooLarge, detail);
                } else {
                    // The frame was the call's end.
                    self.fail_to(key, number, Lane::Control, Reason::TooLarge, detail);
                }
            }
            _ => {}
        }
    }

    fn call_of(&self, requester: SessionKey, number: u64) -> Option<&Call> {
        self.sessions.get(&requester)?.calls.get(&number)
    }

    /// Tells a requester that its call has ended.
    pub(super) fn fail_to(
        &mut self,
        key: SessionKey,
        number: u64,
        lane: Lane,
        reason: Reason,
        detail: String,
    ) {
        let counter = match reason {
            Reason::PeerOffline => &mut self.stats.offline,
            Reason::LinkLost => &mut self.stats.link_lost,
            Reason::WrongSession => &mut self.stats.wrong_session,
            Reason::Overloaded => &mut self.stats.overloaded,
            Reason::TooLarge => &mut self.stats.too_large,
            Reason::Forbidden => &mut self.stats.forbidden,
            Reason::Draining => &mut self.stats.draining,
            Reason::Deadline => &mut self.stats.expired,
            _ => &mut self.stats.malformed,
        };
        *counter += 1;
        let reply = Reply::failed(Failure::new(reason, detail));
        self.control(key, Frame::call(None, None, number, Part::Reply(reply)), lane);
    }

    fn request(
        &mut self,
        key: SessionKey,
        target: Option<PeerId>,
        number: u64,
        request: Request,
        now: Instant,
    ) {
        let target_key = match self.check_request(key, target, number, &request) {
            Check::Pass(target_key) => target_key,
            Check::Refuse(reason, detail) => {
                return self.fail_to(key, number, Lane::Control, reason, detail);
            }
            Check::Duplicate => {
                self.stats.duplicates += 1;
                return;
            }
        };
        let body = request.body.len() as u64;
        let limit = request.remaining.map(|remaining| Limit::new(remaining, now));
        let Some(source) = self.sessions.get(&key).map(|session| session.peer.clone()) else { return };
        let Some(target) = self.sessions.get_mut(&target_key) else { return };
        let there = target.last_number + 1;
        let frame = Frame::call(Some(source), None, there, Part::Request(request));
        let lane = Lane::Call(target.fresh_lane());
        let place = match self.push(target_key, frame, lane, limit) {
            Ok(place) => place,
            Err((reason, detail)) => return self.fail_to(key, number, Lane::Control, reason, detail),
        };
        if let Some(target) = self.sessions.get_mut(&target_key) {
            target.last_number = there;
            target.serving.insert(there, Served { requester: key, number, place });
        }
        if let Some(session) = self.sessions.get_mut(&key) {
            let lane = session.fresh_lane();
            session.calls.insert(number, Call { target: target_key, there, lane, lane_open: false });
        }
        self.stats.calls += 1;
        self.stats.frames += 1;
        self.stats.body_bytes += body;
    }

    fn check_request(
        &mut self,
        key: SessionKey,
        target: Option<PeerId>,
        number: u64,
        request: &Request,
    ) -> Check {
        let Some(session) = self.sessions.get_mut(&key) else { return Check::Duplicate };
        let is_new = session.used.take(number);
        let Some(session) = self.sessions.get(&key) else { return Check::Duplicate };
        if !is_new {
            if session.calls.contains_key(&number) {
                return Check::Duplicate;
            }
            let detail = format!("call number {number} was used before on this link");
            return Check::Refuse(Reason::Protocol, detail);
        }
        if let Some(reason) = &self.draining {
            return Check::Refuse(Reason::Draining, format!("the hub takes no new calls: {reason}"));
        }
        if session.draining {
            return Check::Refuse(Reason::Draining, format!("{} is draining", session.peer));
        }
        let Some(target) = target else {
            return Check::Refuse(Reason::Protocol, "the request names no target".to_owned());
        };
        if let Some(detail) = self.no_room(session, &target) {
            return Check::Refuse(Reason::Overloaded, detail);
        }
        if !self.may_call(session, &target, &request.service) {
            let detail = format!("{} may not call {} of {target}", session.peer, request.service);
            return Check::Refuse(Reason::Forbidden, detail);
        }
        let found = self.by_name.get(&target).and_then(|key| Some((*key, self.sessions.get(key)?)));
        let Some((target_key, found)) = found else {
            return Check::Refuse(Reason::PeerOffline, format!("{target} is not connected"));
        };
        if let Some(to) = request.to_session.filter(|to| *to != found.id) {
            let detail = format!("{target} has session {}; the request is for {to}", found.id);
            return Check::Refuse(Reason::WrongSession, detail);
        }
        if found.draining {
            return Check::Refuse(Reason::Draining, format!("{target} takes no new calls"));
        }
        Check::Pass(target_key)
    }

    /// Why a peer may have no further call open to this target, if so.
    fn no_room(&self, session: &Session, target: &PeerId) -> Option<String> {
        let (peer, open) = (&session.peer, session.calls.len());
        if open >= self.settings.max_calls {
            return Some(format!("{peer} has {open} open calls"));
        }
        let (own_key, _) = self.own_session().filter(|(_, own)| own.peer == *target)?;
        let own = session.calls.values().filter(|call| call.target == own_key).count();
        (own >= self.settings.max_own_calls).then(|| format!("{peer} has {own} open calls to the hub itself"))
    }

    /// Whether the policy lets this peer call that one.
    fn may_call(&self, session: &Session, target: &PeerId, service: &ServiceName) -> bool {
        let requester = Requester { peer: &session.peer, services: &session.services };
        self.permits(&requester, target, service)
    }

    fn reply(&mut self, key: SessionKey, there: u64, reply: Reply) {
        let session = self.sessions.get(&key);
        let served = session.and_then(|session| Some((session.peer.clone(), *session.serving.get(&there)?)));
        let Some((source, Served { requester, number, .. })) = served else {
            self.stats.stray += 1;
            return;
        };
        let Some(call) = self.call_of(requester, number) else { return };
        let lane = Lane::Call(call.lane);
        let ends = reply.end.is_some();
        let body = reply.message.as_ref().map_or(0, |message| message.len() as u64);
        let frame = Frame::call(Some(source), None, number, Part::Reply(reply));
        match self.push(requester, frame, lane, None) {
            Ok(_) => {
                self.stats.frames += 1;
                self.stats.body_bytes += body;
                if ends {
                    self.forget(requester, number);
                } else if let Some(call) =
                    self.sessions.get_mut(&requester).and_then(|session| session.calls.get_mut(&number))
                {
                    call.lane_open = true;
                }
            }
            Err((reason, detail)) => self.end_call(requester, number, reason, detail),
        }
    }

    /// Credit goes where the request went.
    fn credit(&mut self, key: SessionKey, number: u64, bytes: u64) {
        let Some((target, there)) = self.call_of(key, number).map(|call| (call.target, call.there)) else {
            self.stats.stray += 1;
            return;
        };
        if bytes == 0 {
            return;
        }
        let waiting = self.sessions.get(&target).map_or(0, |session| session.outbox.places());
        if waiting >= self.settings.queue_frames {
            // Credit costs the requester nothing: without this bound it could fill a slow target's queue until that is cut.
            let detail = format!("{waiting} frames wait for the target");
            return self.end_call(key, number, Reason::Overloaded, detail);
        }
        self.stats.frames += 1;
        self.control(target, Frame::call(None, None, there, Part::Credit { bytes }), Lane::Control);
    }

    /// The requester no longer waits. Where this has overtaken its request, that is not passed on when it comes.
    fn stop_waiting(&mut self, key: SessionKey, number: u64) {
        let Some((call, served)) = self.forget(key, number) else {
            self.stats.stray += 1;
            if let Some(session) = self.sessions.get_mut(&key) {
                session.used.take(number);
            }
            return;
        };
        if call.lane_open {
            self.control(key, Frame::silence(), Lane::Call(call.lane));
        }
        self.withdraw(&call, served);
    }

    /// Ends a call at both sides.
    fn end_call(&mut self, requester: SessionKey, number: u64, reason: Reason, detail: String) {
        let Some((call, served)) = self.forget(requester, number) else { return };
        self.withdraw(&call, served);
        self.fail_to(requester, number, Lane::Call(call.lane), reason, detail);
    }

    /// The same, by the number that it has on its target's link.
    fn end_served(&mut self, target: SessionKey, there: u64, reason: Reason, detail: String) {
        let served = self.sessions.get(&target).and_then(|session| session.serving.get(&there));
        if let Some(Served { requester, number, .. }) = served.copied() {
            self.end_call(requester, number, reason, detail);
        }
    }

    /// Nobody waits for a call that is no longer open: its request is taken out of the queue, or a cancel goes after it.
    fn withdraw(&mut self, call: &Call, served: Option<Served>) {
        let Some(target) = self.sessions.get_mut(&call.target) else { return };
        match served.and_then(|served| target.outbox.remove(served.place)) {
            Some(bytes) => {
                self.queued_bytes -= bytes;
                self.stats.withdrawn += 1;
                // A drain may have waited for it.
                self.wakes.push(call.target);
            }
            None => {
                self.stats.frames += 1;
                let frame = Frame::call(None, None, call.there, Part::StopWaiting);
                self.control(call.target, frame, Lane::Control);
            }
        }
    }

    /// Takes a call off at both sides, without a word to either.
    pub(super) fn forget(&mut self, requester: SessionKey, number: u64) -> Option<(Call, Option<Served>)> {
        let call = self.sessions.get_mut(&requester)?.calls.remove(&number)?;
        let target = self.sessions.get_mut(&call.target);
        let served = target.and_then(|target| target.serving.remove(&call.there));
        Some((call, served))
    }

    /// A session is gone: its calls end at their other sides.
    pub(super) fn end_calls(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let peer = session.peer.clone();
        // Both in order, so that the same events give the same frames.
        let (calls, serving) = (std::mem::take(&mut session.calls), std::mem::take(&mut session.serving));
        for call in calls.into_values() {
            let target = self.sessions.get_mut(&call.target);
            let served = target.and_then(|target| target.serving.remove(&call.there));
            self.withdraw(&call, served);
        }
        for Served { requester, number, place } in serving.into_values() {
            // A call of a peer to itself is gone already.
            let Some((call, _)) = self.forget(requester, number) else { continue };
            let is_queued = self.sessions.get(&key).is_some_and(|session| session.outbox.holds(place));
            let (reason, detail) = match is_queued {
                true => (Reason::PeerOffline, format!("{peer} has left; the request was not passed on")),
                false => (Reason::LinkLost, format!("the link to {peer} was lost; the work may go on")),
            };
            self.fail_to(requester, number, Lane::Call(call.lane), reason, detail);
        }
    }
}
