//! The calls of others that this peer answers.

use std::time::Instant;

use bytes::Bytes;

use super::Session;
use crate::frame::{CallId, End, Failure, Frame, Lane, MAX_CLOSING, Part, Reason, Reply, Request, Resume};
use crate::name::PeerId;
use crate::session::serving::{Admission, Parting, Resumption};
use crate::session::{Action, Delivery, Hop, Incoming, ServingId};

/// Why an earlier life gets no answer.
const STALE: &str = "a later life of this peer has called; epochs must grow from start to start";

impl Session {
    pub(super) fn request(&mut self, source: Option<PeerId>, id: CallId, request: Request, now: Instant) {
        let Some(source) = source else {
            return self.stats.wrong_source += 1;
        };
        self.fence(&source, id, now);
        self.serving.acked(&source, id.epoch, request.ended.iter().copied());
        self.tell_deliveries();
        let refusal = match self.serving.admission(&source, id) {
            Admission::Running => return self.stats.duplicates += 1,
            // The hub may have taken it for a new call, and must see its end.
            Admission::Ended => {
                self.stats.duplicates += 1;
                return self.requester_back(Some(source), id, &Resume::new(request.service, 1, 0), now);
            }
            Admission::Stale => {
                self.stats.stale += 1;
                Some((Reason::Protocol, STALE.to_owned()))
            }
            Admission::Forgotten => {
                Some((Reason::AnswerLost, "too many calls came after this one to tell it is new".to_owned()))
            }
            Admission::New => self.overload(&request),
        };
        let lane = self.fresh_lane();
        if let Some((reason, detail)) = refusal {
            return self.refuse(source, id, lane, reason, detail);
        }
        let resumable = request.resumable && self.resumes;
        let serving = self.serving.open(source.clone(), id, lane, &request, resumable);
        self.actions.push_back(Action::Serve(Incoming { serving, source, id, request }));
    }

    fn overload(&self, request: &Request) -> Option<(Reason, String)> {
        let peer = &self.hello.peer;
        if !self.hop.as_ref().is_some_and(Hop::takes_calls) {
            Some((Reason::Draining, "the peer takes no new calls".to_owned()))
        } else if !self.hello.services.contains(&request.service) {
            Some((Reason::NoSuchService, format!("{peer} does not serve {}", request.service)))
        } else if self.serving.len() >= self.settings.max_serving {
            Some((Reason::Overloaded, format!("{peer} works on {} calls", self.serving.len())))
        } else if self.serving.bytes() > 0
            && self.serving.bytes() + request.body.len() > self.settings.max_serving_bytes
        {
            let detail = format!("{peer} works on {} bytes of requests", self.serving.bytes());
            Some((Reason::Overloaded, detail))
        } else {
            None
        }
    }

    fn refuse(&mut self, source: PeerId, id: CallId, lane: u64, reason: Reason, detail: impl Into<String>) {
        let end = Some(End::Failed(Failure::new(reason, detail)));
        let reply = Reply { sequence: 0, message: None, end };
        self.send_part(source, id, Part::Reply(reply), Lane::Call(lane));
    }

    /// A requester with a later life has no use for the answers to its earlier one.
    fn fence(&mut self, source: &PeerId, id: CallId, now: Instant) {
        for serving in self.serving.fence(source, id.epoch, now) {
            self.abandoned(serving);
        }
    }

    pub(super) fn answer(
        &mut self,
        serving: ServingId,
        message: Option<Bytes>,
        mut end: Option<End>,
        receipt: bool,
        now: Instant,
    ) {
        let max = self.max_payload();
        let is_open = self.is_open();
        let ends = end.is_some();
        let mut delivery = Delivery::Undelivered;
        let mut replaced = false;
        let Some(call) = self.serving.running(serving) else {
            return self.tell_delivery(receipt && ends, serving, delivery);
        };
        if call.is_wanted() {
            let closing = if let Some(End::Finished(closing)) = &end { closing.len() } else { 0 };
            let size = message.as_ref().map_or(0, Bytes::len) + closing;
            let mut message = message;
            let failure = if size > max || closing > MAX_CLOSING {
                let detail = format!(
                    "answer of {size} bytes; at most {max} can be sent: raise max_frame at every end or send less"
                );
                Some(Failure::new(Reason::TooLarge, detail))
            } else if message.is_some() && !call.has_credit() {
                Some(Failure::new(Reason::Overloaded, "the service sent without credit"))
            } else {
                None
            };
            if let Some(failure) = failure {
                replaced = true;
                message = None;
                end = Some(End::Failed(failure));
            }
            if let Some(message) = &message {
                call.spend(message);
            }
            let reply = Reply { sequence: call.next_sequence(), message, end };
            let to = (call.is_attached() && is_open).then(|| (call.source.clone(), call.id, call.lane));
            call.lane_open = to.is_some() && reply.end.is_none();
            self.serving.keep(serving, &reply, self.settings.max_kept);
            if let Some((source, id, lane)) = to {
                self.send_part(source, id, Part::Reply(reply), Lane::Call(lane));
                if !replaced {
                    delivery = Delivery::Delivered;
                }
            }
            if replaced && !ends && self.serving.abandon(serving) {
                self.actions.push_back(Action::Abandoned { serving });
            }
        }
        if ends {
            // A failure in place of the answer may be delivered, but the answer is not.
            let awaits = receipt && !replaced;
            let kept = self.serving.end(serving, now, self.settings.keep_answers(), awaits);
            self.tell_delivery(receipt && !(awaits && kept), serving, delivery);
        }
    }

    fn tell_delivery(&mut self, receipt: bool, serving: ServingId, delivery: Delivery) {
        if receipt {
            self.actions.push_back(Action::Delivery { serving, delivery });
        }
    }

    /// Tells what has become of answers, before anything that follows from it.
    pub(super) fn tell_deliveries(&mut self) {
        while let Some((serving, delivery)) = self.serving.poll_delivery() {
            self.tell_delivery(true, serving, delivery);
        }
    }

    pub(super) fn credited(&mut self, source: Option<PeerId>, id: CallId, bytes: u64) {
        if let Some(serving) = source.and_then(|source| self.serving.credit(&source, id, bytes)) {
            self.actions.push_back(Action::Credit { serving, bytes });
        }
    }

    pub(super) fn requester_left(&mut self, source: Option<PeerId>, id: CallId) {
        let Some(source) = source else { return };
        if let Some(serving) = self.serving.stop_waiting(&source, id) {
            self.abandoned(serving);
        }
    }

    pub(super) fn requester_away(&mut self, source: Option<PeerId>, id: CallId, now: Instant) {
        let until = now + self.settings.resume_window;
        match source.and_then(|source| self.serving.away(&source, id, until)) {
            Some(Parting::Waits(serving)) => self.close_lane(serving),
            Some(Parting::Left(serving)) => self.abandoned(serving),
            None => {}
        }
    }

    pub(super) fn requester_has(&mut self, source: Option<PeerId>, id: CallId, further: &[u64]) {
        if let Some(source) = source {
            self.serving.acked(&source, id.epoch, further.iter().copied().chain([id.number]));
        }
    }

    pub(super) fn requester_back(
        &mut self,
        source: Option<PeerId>,
        id: CallId,
        resume: &Resume,
        now: Instant,
    ) {
        let Some(source) = source else {
            return self.stats.wrong_source += 1;
        };
        self.fence(&source, id, now);
        let lane = self.fresh_lane();
        match self.serving.resume(&source, id, resume, lane) {
            Resumption::Running { serving, replies, credit, left } => {
                if let Some(left) = left {
                    self.end_lane(left);
                }
                if credit > 0 {
                    self.actions.push_back(Action::Credit { serving, bytes: credit });
                }
                self.send_replies(source, id, lane, replies);
            }
            Resumption::Ended { replies } => self.send_replies(source, id, lane, replies),
            Resumption::Unknown => {
                self.refuse(source, id, lane, Reason::UnknownCall, "the request has not come");
            }
            Resumption::Lost => {
                let detail = "what was answered is no longer kept; the work may have been done";
                self.refuse(source, id, lane, Reason::AnswerLost, detail);
            }
            Resumption::Stale => {
                self.stats.stale += 1;
                self.refuse(source, id, lane, Reason::Protocol, STALE);
            }
        }
    }

    fn send_replies(&mut self, source: PeerId, id: CallId, lane: u64, replies: Vec<Reply>) {
        let max = self.max_payload();
        for reply in replies {
            self.stats.replayed += 1;
            if reply.message.as_ref().is_some_and(|message| message.len() > max) {
                let detail = format!("the new link takes at most {max} bytes");
                self.serving.undeliverable(&source, id);
                return self.refuse(source, id, lane, Reason::TooLarge, detail);
            }
            self.send_part(source.clone(), id, Part::Reply(reply), Lane::Call(lane));
        }
    }

    pub(super) fn tick_incoming(&mut self, now: Instant) {
        while let Some(serving) = self.serving.given_up(now) {
            self.abandoned(serving);
        }
        self.serving.age(now);
    }

    /// Nobody waits for a call any more, whose last reply was not sent.
    pub(super) fn abandoned(&mut self, serving: ServingId) {
        self.actions.push_back(Action::Abandoned { serving });
        self.close_lane(serving);
    }

    fn close_lane(&mut self, serving: ServingId) {
        if let Some(call) = self.serving.running(serving)
            && std::mem::take(&mut call.lane_open)
        {
            let lane = call.lane;
            self.end_lane(lane);
        }
    }

    fn end_lane(&mut self, lane: u64) {
        let frame = self.encoder.encode(Frame::silence(), Lane::Call(lane));
        self.actions.push_back(Action::Send(frame));
    }
}
