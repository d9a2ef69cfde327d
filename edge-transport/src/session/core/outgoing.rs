//! The calls that this peer makes.

use std::time::{Duration, Instant};

use super::Session;
use crate::frame::{Lane, Part, Reason, Reply, Request};
use crate::name::PeerId;
use crate::session::outbound::ReplyCheck;
use crate::session::{Action, LinkCore, LinkState};

impl Session {
    pub(super) fn call(
        &mut self,
        number: u64,
        target: PeerId,
        mut request: Request,
        deadline: Option<Instant>,
        now: Instant,
    ) {
        if self.outbound.contains(number) {
            self.stats.duplicates += 1;
            return;
        }
        // The remaining time is recomputed, because the call may have waited in a queue.
        request.remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        if let Some((reason, detail)) = self.refusal(&request) {
            return self.fail(number, reason, detail);
        }
        self.outbound.open(number, target.clone(), request.credit, deadline);
        let lane = self.next_free_lane();
        self.send_own(Some(target), number, Part::Request(request), Lane::Call(lane));
    }

    fn refusal(&self, request: &Request) -> Option<(Reason, String)> {
        let size = request.body.len() + request.metadata.len();
        let max = self.max_payload();
        match self.link.as_ref().map(LinkCore::state) {
            Some(LinkState::Open(_)) if request.remaining == Some(Duration::ZERO) => {
                Some((Reason::Deadline, "the deadline passed before the request was sent".to_owned()))
            }
            Some(LinkState::Open(_)) if size > max => Some((
                Reason::TooLarge,
                format!(
                    "request of {size} bytes; at most {max} can be sent: raise max_frame at both ends or send less"
                ),
            )),
            Some(LinkState::Open(_)) if self.outbound.len() >= self.settings.max_outbound_calls => Some((
                Reason::Overloaded,
                format!(
                    "this peer has {} open calls; at most {} are allowed",
                    self.outbound.len(),
                    self.settings.max_outbound_calls
                ),
            )),
            Some(LinkState::Open(_)) => None,
            Some(LinkState::Draining { reason, .. }) => {
                Some((Reason::Draining, format!("the link accepts no new calls: {reason}")))
            }
            _ => Some((Reason::PeerOffline, "this peer is not connected to a hub".to_owned())),
        }
    }

    pub(super) fn credit(&mut self, number: u64, bytes: u64) {
        if self.outbound.credit(number, bytes) {
            self.send_own(None, number, Part::Credit { bytes }, Lane::Control);
        }
    }

    pub(super) fn cancel(&mut self, number: u64) {
        if self.outbound.close(number) {
            self.send_own(None, number, Part::Cancel, Lane::Control);
        }
    }

    pub(super) fn protocol_violation(&mut self, number: u64, detail: String) {
        self.stats.protocol_ends += 1;
        self.cancel(number);
        self.fail(number, Reason::Protocol, detail);
    }

    pub(super) fn expire_requests(&mut self, now: Instant) {
        while let Some(number) = self.outbound.expired(now) {
            self.cancel(number);
            self.fail(number, Reason::Deadline, "the deadline has passed; the work may continue");
        }
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, number: u64, reply: Reply) {
        match self.outbound.reply(source, number, &reply) {
            ReplyCheck::Deliver => {
                if reply.end.is_some() {
                    self.outbound.close(number);
                }
                self.actions.push_back(Action::Reply { number, message: reply.message, end: reply.end });
            }
            ReplyCheck::Duplicate => self.stats.duplicates += 1,
            ReplyCheck::Violation(detail) => self.protocol_violation(number, detail),
            ReplyCheck::WrongSource => self.stats.wrong_source += 1,
            ReplyCheck::UnknownCall => self.stats.unknown_call_replies += 1,
        }
    }
}
