//! Calls through the hub: routing of frames, and the end of a call at both sides.
//!
//! A call has one number on the link of its requester and another on the link of its target, so that a session never mistakes a
//! frame of an earlier session for its own.

use std::time::Instant;

use bytes::Bytes;

use super::dequeue::{QueuedFrame, TimeLimit};
use super::open::{Call, ServedCall};
use super::{Core, Session, SessionKey};
use crate::frame::{DecodeError, Failure, Frame, Kind, Lane, Part, Reason, Reply, Request, decode};
use crate::hub::Requester;
use crate::hub::identity::Sender;
use crate::name::{PeerId, ServiceName};

/// The result of checking a request.
enum Check {
    /// Forward the request to this session.
    Forward(SessionKey),
    /// Return a failure to the requester.
    Refuse(Reason, String),
    /// Ignore the request: its call is already open.
    Duplicate,
}

impl Core {
    /// Forwards a frame received from a peer at `now`.
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
                let detail = format!("the source of the frame is not {}", session.peer);
                self.refuse(key, number, Reason::Forbidden, detail);
            }
            return;
        }
        match part {
            Part::Request(request) => self.request(key, frame.target, number, request, now),
            Part::Reply(reply) => self.reply(key, number, reply),
            Part::Credit { bytes } => self.credit(key, number, bytes),
            Part::Cancel => self.cancel(key, number),
        }
    }

    /// Handles a frame of a peer that could not be decoded. Ends its call, if there is one.
    pub fn malformed(&mut self, key: SessionKey, error: &DecodeError) {
        self.stats.malformed += 1;
        let DecodeError::InCall { number, request, .. } = error else { return };
        match *request {
            true => self.refuse(key, *number, Reason::Protocol, error.to_string()),
            false => self.end_served(key, *number, Reason::Protocol, error.to_string()),
        }
    }

    /// Handles a frame that the link to a peer refused as too large, given its head. Ends its call.
    pub fn refused(&mut self, key: SessionKey, head: Bytes) {
        let detail = "a link refused the frame as too large: raise its frame limit to max_frame".to_owned();
        match decode(head, usize::MAX) {
            Ok(Frame { kind: Kind::Call(number, Part::Request(_)), .. }) => {
                self.end_served(key, number, Reason::TooLarge, detail);
            }
            Ok(Frame { kind: Kind::Call(number, Part::Reply(_)), .. }) => {
                if self.call_of(key, number).is_some() {
                    self.end_call(key, number, Reason::TooLarge, detail);
                } else {
                    // The frame was the last of the call, which is no longer open.
                    self.refuse(key, number, Reason::TooLarge, detail);
                }
            }
            _ => {}
        }
    }

    fn call_of(&self, requester: SessionKey, number: u64) -> Option<&Call> {
        self.sessions.get(&requester)?.calls.get(&number)
    }

    /// Reports to a requester that its request is refused, or that a call which is not open has failed.
    fn refuse(&mut self, key: SessionKey, number: u64, reason: Reason, detail: String) {
        if let Some(refused) = self.sessions.get(&key).map(|session| session.refused) {
            self.send_failure(key, refused, number, Lane::Control, reason, detail);
        }
    }

    /// Reports to a requester that its call, which was removed, has failed: after all replies that are queued.
    pub(super) fn fail(&mut self, key: SessionKey, number: u64, call: &Call, reason: Reason, detail: String) {
        if let Some(sender) = self.sender(call.target).or_else(|| self.sender(key)) {
            self.send_failure(key, sender, number, Lane::Call(call.lane), reason, detail);
        }
    }

    fn send_failure(
        &mut self,
        key: SessionKey,
        sender: Sender,
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
        self.control(key, sender, Frame::call(None, None, number, Part::Reply(reply)), lane);
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
            Check::Forward(target_key) => target_key,
            Check::Refuse(reason, detail) => {
                return self.refuse(key, number, reason, detail);
            }
            Check::Duplicate => {
                self.stats.duplicates += 1;
                return;
            }
        };
        let (body, credit, has_deadline) =
            (request.body.len() as u64, request.credit, request.remaining.is_some());
        let limit = request.remaining.map(|remaining| TimeLimit::new(remaining, now));
        let Some(session) = self.sessions.get(&key) else { return };
        let (source, sender) = (session.peer.clone(), session.sender);
        let Some(target) = self.sessions.get_mut(&target_key) else { return };
        let dest_id = target.last_number + 1;
        let lane = Lane::Call(target.next_free_lane());
        let frame = Frame::call(Some(source), None, dest_id, Part::Request(request));
        let frame = self.encoder.encode(frame, lane);
        let queued = QueuedFrame { frame, sender, cause: sender, limit, is_control: false };
        let slot = match self.push(target_key, queued, 1) {
            Ok(slot) => slot,
            Err((reason, detail)) => return self.refuse(key, number, reason, detail),
        };
        if let Some(target) = self.sessions.get_mut(&target_key) {
            target.last_number = dest_id;
            target.inbound.insert(dest_id, ServedCall { requester: key, number, slot });
            target.waiting_calls += 1;
            target.outbox.reserve(&sender);
        }
        if let Some(session) = self.sessions.get_mut(&key) {
            let lane = session.next_free_lane();
            session.calls.insert(number, Call::new(target_key, dest_id, lane, credit, has_deadline));
            session.waiting_calls += 1;
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
        let is_new = session.used.insert(number);
        let Some(session) = self.sessions.get(&key) else { return Check::Duplicate };
        if !is_new {
            if session.calls.contains_key(&number) {
                return Check::Duplicate;
            }
            let detail = format!("call number {number} was used before on this link");
            return Check::Refuse(Reason::Protocol, detail);
        }
        if let Some(reason) = &self.draining {
            return Check::Refuse(Reason::Draining, format!("the hub accepts no new calls: {reason}"));
        }
        if session.is_draining() {
            return Check::Refuse(Reason::Draining, format!("{} is draining", session.peer));
        }
        let Some(target) = target else {
            return Check::Refuse(Reason::Protocol, "the request names no target".to_owned());
        };
        if let Some(detail) = self.exceeded_limit(session, &target) {
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
        if found.is_draining() {
            return Check::Refuse(Reason::Draining, format!("{target} accepts no new calls"));
        }
        Check::Forward(target_key)
    }

    /// Returns why a peer may not open another call to this target, if so.
    fn exceeded_limit(&self, session: &Session, target: &PeerId) -> Option<String> {
        let (peer, open) = (&session.peer, session.calls.len());
        if open >= self.settings.max_calls {
            return Some(format!(
                "{peer} has {open} open calls; at most {} are allowed",
                self.settings.max_calls
            ));
        }
        let (local_key, _) = self.local_session().filter(|(_, local)| local.peer == *target)?;
        let open = session.calls.values().filter(|call| call.target == local_key).count();
        let max = self.settings.max_local_calls;
        (open >= max).then(|| format!("{peer} has {open} open calls to the hub; at most {max} are allowed"))
    }

    /// Whether the policy allows the call.
    fn may_call(&self, session: &Session, target: &PeerId, service: &ServiceName) -> bool {
        let requester = Requester { peer: &session.peer, services: &session.services };
        self.permits(&requester, target, service)
    }

    fn reply(&mut self, key: SessionKey, dest_id: u64, reply: Reply) {
        let session = self.sessions.get(&key);
        let served = session.and_then(|found| Some((found, *found.inbound.get(&dest_id)?)));
        let Some((session, ServedCall { requester, number, .. })) = served else {
            self.stats.unknown_calls += 1;
            return;
        };
        let (source, sender) = (session.peer.clone(), session.sender);
        let Some(caller) = self.sessions.get_mut(&requester) else { return };
        let cause = caller.answered;
        let Some(call) = caller.calls.get_mut(&number) else { return };
        let lane = Lane::Call(call.lane);
        if let Err(detail) = call.spend(&reply) {
            return self.end_call(requester, number, Reason::Protocol, detail.to_owned());
        }
        let ends = reply.end.is_some();
        let body = reply.message.as_ref().map_or(0, |message| message.len() as u64);
        let frame = Frame::call(Some(source), None, number, Part::Reply(reply));
        let frame = self.encoder.encode(frame, lane);
        match self.push(requester, QueuedFrame { frame, sender, cause, limit: None, is_control: false }, 0) {
            Ok(_) => {
                self.stats.frames += 1;
                self.stats.body_bytes += body;
                if ends {
                    self.remove_call(requester, number);
                } else if let Some(session) = self.sessions.get_mut(&requester)
                    && session.calls.get_mut(&number).is_some_and(Call::answered)
                {
                    session.waiting_calls -= 1;
                    if let Some(target) = self.sessions.get_mut(&key) {
                        target.waiting_calls -= 1;
                    }
                }
            }
            Err((reason, detail)) => self.end_call(requester, number, reason, detail),
        }
    }

    /// Forwards credit to the target of the call.
    fn credit(&mut self, key: SessionKey, number: u64, bytes: u64) {
        let Some((target, dest_id)) = self.call_of(key, number).map(|it| (it.target, it.dest_id)) else {
            self.stats.unknown_calls += 1;
            return;
        };
        if bytes == 0 {
            return;
        }
        let Some(sender) = self.sender(key) else { return };
        let (found, max) = (self.sessions.get(&target), self.settings.queue_frames);
        if let Some(outbox) = found.map(|session| &session.outbox)
            && !outbox.has_item_room(&sender, 1, max)
        {
            // Credit costs the requester nothing: without this limit, a requester could fill a slow target's queue
            // until the target is disconnected.
            let detail = format!(
                "{} frames of this caller are queued for the target or reserved, of at most {max} for all callers",
                outbox.items_of(&sender)
            );
            return self.end_call(key, number, Reason::Overloaded, detail);
        }
        if let Some(call) = self.sessions.get_mut(&key).and_then(|session| session.calls.get_mut(&number)) {
            call.add_credit(bytes);
        }
        self.stats.frames += 1;
        let frame = Frame::call(None, None, dest_id, Part::Credit { bytes });
        self.control(target, sender, frame, Lane::Control);
    }

    /// Handles a cancel of the requester. If the cancel has overtaken its request, the request is not forwarded when it
    /// arrives.
    fn cancel(&mut self, key: SessionKey, number: u64) {
        let Some((call, served)) = self.remove_call(key, number) else {
            self.stats.unknown_calls += 1;
            if let Some(session) = self.sessions.get_mut(&key) {
                session.used.insert(number);
            }
            return;
        };
        if call.lane_open
            && let Some(sender) = self.sender(call.target)
        {
            self.control(key, sender, Frame::end_of_stream(), Lane::Call(call.lane));
        }
        self.withdraw(key, &call, served);
    }

    /// Ends a call at both sides.
    fn end_call(&mut self, requester: SessionKey, number: u64, reason: Reason, detail: String) {
        let Some((call, served)) = self.remove_call(requester, number) else { return };
        self.withdraw(requester, &call, served);
        self.fail(requester, number, &call, reason, detail);
    }

    /// Ends a call at both sides, given its number on the target's link.
    fn end_served(&mut self, target: SessionKey, dest_id: u64, reason: Reason, detail: String) {
        let served = self.sessions.get(&target).and_then(|session| session.inbound.get(&dest_id));
        if let Some(ServedCall { requester, number, .. }) = served.copied() {
            self.end_call(requester, number, reason, detail);
        }
    }

    /// Withdraws a closed call from its target: removes its request from the queue, or sends a cancel after it.
    fn withdraw(&mut self, requester: SessionKey, call: &Call, served: Option<ServedCall>) {
        let Some(sender) = self.sender(requester) else { return };
        let Some(target) = self.sessions.get_mut(&call.target) else { return };
        match served.and_then(|served| target.outbox.remove(&sender, served.slot)) {
            Some(bytes) => {
                self.waiting.give_back(&sender, bytes);
                self.stats.withdrawn += 1;
                // A drain of the target may be waiting for the end of this call.
                self.wakes.push(call.target);
            }
            None => {
                self.stats.frames += 1;
                let frame = Frame::call(None, None, call.dest_id, Part::Cancel);
                self.control(call.target, sender, frame, Lane::Control);
            }
        }
    }

    /// Removes a call at both sides without notifying either.
    pub(super) fn remove_call(
        &mut self,
        requester: SessionKey,
        number: u64,
    ) -> Option<(Call, Option<ServedCall>)> {
        let session = self.sessions.get_mut(&requester)?;
        let call = session.calls.remove(&number)?;
        session.waiting_calls -= usize::from(call.waits());
        let served = self.remove_served(requester, &call);
        Some((call, served))
    }

    /// Removes a call at its target.
    fn remove_served(&mut self, requester: SessionKey, call: &Call) -> Option<ServedCall> {
        let sender = self.sender(requester)?;
        let target = self.sessions.get_mut(&call.target)?;
        target.outbox.release(&sender);
        target.waiting_calls -= usize::from(call.waits());
        target.inbound.remove(&call.dest_id)
    }

    /// Handles the end of a session: ends its calls at their other sides.
    pub(super) fn end_calls(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let peer = session.peer.clone();
        // Both maps are ordered, so that the same events give the same frames.
        let (calls, inbound) = (std::mem::take(&mut session.calls), std::mem::take(&mut session.inbound));
        session.waiting_calls -= calls.values().filter(|call| call.waits()).count();
        for call in calls.into_values() {
            let served = self.remove_served(key, &call);
            self.withdraw(key, &call, served);
        }
        for ServedCall { requester, number, slot } in inbound.into_values() {
            // A call of a peer to itself was removed by the loop above.
            let Some((call, _)) = self.remove_call(requester, number) else { continue };
            let sender = self.sender(requester);
            let outbox = self.sessions.get(&key).map(|session| &session.outbox);
            let is_queued =
                sender.is_some_and(|sender| outbox.is_some_and(|outbox| outbox.contains(&sender, slot)));
            let (reason, detail) = match is_queued {
                true => (Reason::PeerOffline, format!("{peer} disconnected; the request was not forwarded")),
                false => (Reason::LinkLost, format!("the link to {peer} was lost; the work may continue")),
            };
            self.fail(requester, number, &call, reason, detail);
        }
    }
}
