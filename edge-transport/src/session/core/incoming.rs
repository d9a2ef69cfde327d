//! The calls of others that this peer answers.

use bytes::Bytes;

use super::Session;
use crate::frame::{End, Failure, Frame, Lane, MAX_CLOSING, Part, Reason, Reply, Request};
use crate::name::PeerId;
use crate::session::serving::Admission;
use crate::session::{Action, Hop, HopState, Incoming, ServingId};

impl Session {
    pub(super) fn request(&mut self, source: Option<PeerId>, number: u64, request: Request) {
        let Some(source) = source else {
            self.stats.wrong_source += 1;
            return;
        };
        let refusal = match self.serving.admission(number) {
            Admission::New => self.refusal_of(&request),
            Admission::Running => {
                self.stats.duplicates += 1;
                return;
            }
            Admission::Used => {
                self.stats.duplicates += 1;
                Some((Reason::Protocol, format!("call number {number} was used before on this link")))
            }
        };
        let lane = self.fresh_lane();
        if let Some((reason, detail)) = refusal {
            let reply = Reply::failed(Failure::new(reason, detail));
            return self.send_part(None, number, Part::Reply(reply), Lane::Call(lane));
        }
        let serving = self.serving.open(number, lane, &request);
        self.actions.push_back(Action::Serve(Incoming { serving, source, request }));
    }

    fn refusal_of(&self, request: &Request) -> Option<(Reason, String)> {
        let (peer, own) = (&self.hello.peer, self.hello.session);
        if let Some(to) = request.to_session.filter(|to| *to != own) {
            Some((Reason::WrongSession, format!("{peer} has session {own}; the request is for {to}")))
        } else if !matches!(self.hop.as_ref().map(Hop::state), Some(HopState::Open(_))) {
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

    pub(super) fn answer(&mut self, serving: ServingId, message: Option<Bytes>, end: Option<End>) {
        let ends = end.is_some();
        let max = self.max_payload();
        let Some(call) = self.serving.running(serving) else { return };
        if call.is_wanted() {
            let closing = if let Some(End::Finished(closing)) = &end { closing.len() } else { 0 };
            let size = message.as_ref().map_or(0, Bytes::len) + closing;
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
            let failed = failure.is_some();
            let (message, end) = match failure {
                Some(failure) => (None, Some(End::Failed(failure))),
                None => (message, end),
            };
            if let Some(message) = &message {
                call.spend(message);
            }
            call.lane_open = end.is_none();
            let (number, lane) = (call.number, call.lane);
            let reply = Reply { sequence: call.next_sequence(), message, end };
            self.send_part(None, number, Part::Reply(reply), Lane::Call(lane));
            if failed && !ends && self.serving.abandon(serving) {
                self.actions.push_back(Action::Abandoned { serving });
            }
        }
        if ends {
            self.serving.end(serving);
        }
    }

    pub(super) fn credited(&mut self, number: u64, bytes: u64) {
        if let Some(serving) = self.serving.credit(number, bytes) {
            self.actions.push_back(Action::Credit { serving, bytes });
        }
    }

    pub(super) fn requester_left(&mut self, number: u64) {
        let Some(serving) = self.serving.stop_waiting(number) else { return };
        self.actions.push_back(Action::Abandoned { serving });
        if let Some(call) = self.serving.running(serving)
            && std::mem::take(&mut call.lane_open)
        {
            let lane = call.lane;
            let frame = self.encoder.encode(Frame::silence(), Lane::Call(lane));
            self.actions.push_back(Action::Send(frame));
        }
    }
}
