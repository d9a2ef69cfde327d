//! Calls of other peers.

use bytes::Bytes;

use super::Session;
use crate::frame::{End, Failure, Frame, Lane, MAX_CLOSING, Part, Reason, Reply, Request};
use crate::name::PeerId;
use crate::session::inbound::Admission;
use crate::session::{Action, InboundCallId, Incoming, LinkCore, LinkState};

impl Session {
    pub(super) fn request(&mut self, source: Option<PeerId>, number: u64, request: Request) {
        let Some(source) = source else {
            self.stats.wrong_source += 1;
            return;
        };
        let refusal = match self.inbound.admission(number) {
            Admission::New => self.refusal_for(&request),
            Admission::Running => {
                self.stats.duplicates += 1;
                return;
            }
            Admission::Used => {
                self.stats.duplicates += 1;
                Some((Reason::Protocol, format!("call number {number} was used before on this link")))
            }
        };
        let lane = self.next_free_lane();
        let owner = source.top();
        let opened = match refusal {
            None => (self.inbound.open(&self.hello.peer, &owner, number, lane, &request))
                .map_err(|full| (Reason::Overloaded, full)),
            Some(refusal) => Err(refusal),
        };
        match opened {
            Ok(inbound) => {
                self.actions.push_back(Action::Serve(Incoming { inbound, source, owner, request }));
            }
            Err((reason, detail)) => {
                let reply = Reply::failed(Failure::new(reason, detail));
                self.send_part(owner, None, number, Part::Reply(reply), Lane::Call(lane));
            }
        }
    }

    fn refusal_for(&self, request: &Request) -> Option<(Reason, String)> {
        let (peer, own) = (&self.hello.peer, self.hello.session);
        if let Some(to) = request.to_session.filter(|to| *to != own) {
            Some((Reason::WrongSession, format!("{peer} has session {own}; the request is for {to}")))
        } else if !matches!(self.link.as_ref().map(LinkCore::state), Some(LinkState::Open(_))) {
            Some((Reason::Draining, "the peer accepts no new calls".to_owned()))
        } else if !self.hello.services.iter().any(|service| service.covers(&request.service)) {
            Some((Reason::NoSuchService, format!("{peer} does not serve {}", request.service)))
        } else {
            None
        }
    }

    pub(super) fn answer(&mut self, inbound: InboundCallId, message: Option<Bytes>, end: Option<End>) {
        let ends = end.is_some();
        let max = self.max_payload();
        let Some(call) = self.inbound.running(inbound) else { return };
        if call.has_caller() {
            let closing = if let Some(End::Finished(closing)) = &end { closing.len() } else { 0 };
            let size = message.as_ref().map_or(0, Bytes::len) + closing;
            let failure = if size > max || closing > MAX_CLOSING {
                let detail = format!(
                    "reply of {size} bytes; at most {max} can be sent: raise max_frame at every end or send less"
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
            let (owner, number, lane) = (call.owner.clone(), call.number, call.lane);
            let reply = Reply { sequence: self.inbound.next_sequence(inbound), message, end };
            self.send_part(owner, None, number, Part::Reply(reply), Lane::Call(lane));
            if failed && !ends && self.inbound.abandon(inbound) {
                self.actions.push_back(Action::Cancelled { inbound });
            }
        }
        if ends {
            self.inbound.end(inbound);
        }
    }

    pub(super) fn on_credit(&mut self, number: u64, bytes: u64) {
        if let Some(inbound) = self.inbound.credit(number, bytes) {
            self.actions.push_back(Action::Credit { inbound, bytes });
        }
    }

    pub(super) fn on_cancel(&mut self, number: u64) {
        let Some(inbound) = self.inbound.cancel(number) else { return };
        self.actions.push_back(Action::Cancelled { inbound });
        if let Some(call) = self.inbound.running(inbound)
            && std::mem::take(&mut call.lane_open)
        {
            let (owner, lane) = (Some(call.owner.clone()), call.lane);
            let frame = self.encoder.encode(Frame::end_of_stream(), Lane::Call(lane));
            self.actions.push_back(Action::Send { frame, owner });
        }
    }
}
