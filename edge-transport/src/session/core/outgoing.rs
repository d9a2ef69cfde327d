//! The calls that this peer makes.

use std::time::{Duration, Instant};

use super::Session;
use crate::frame::{Lane, Part, Reason, Reply, Request};
use crate::name::PeerId;
use crate::session::requests::Verdict;
use crate::session::{Action, Hop, HopState};

impl Session {
    pub(super) fn call(
        &mut self,
        number: u64,
        target: PeerId,
        mut request: Request,
        deadline: Option<Instant>,
        now: Instant,
    ) {
        if self.requests.contains(number) {
            self.stats.duplicates += 1;
            return;
        }
        // What is left now: some of it may have gone while the call waited for its turn.
        request.remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        if let Some((reason, detail)) = self.refusal(&request) {
            return self.fail(number, reason, detail);
        }
        self.requests.open(number, target.clone(), request.credit, deadline);
        let lane = self.fresh_lane();
        self.send_part(Some(target), number, Part::Request(request), Lane::Call(lane));
    }

    fn refusal(&self, request: &Request) -> Option<(Reason, String)> {
        let size = request.body.len() + request.metadata.len();
        let max = self.max_payload();
        match self.hop.as_ref().map(Hop::state) {
            Some(HopState::Open(_)) if request.remaining == Some(Duration::ZERO) => {
                Some((Reason::Deadline, "the caller's time was over before the request was sent".to_owned()))
            }
            Some(HopState::Open(_)) if size > max => Some((
                Reason::TooLarge,
                format!(
                    "request of {size} bytes; at most {max} can be sent: raise max_frame at both ends or send less"
                ),
            )),
            Some(HopState::Open(_)) if self.requests.len() >= self.settings.max_requests => {
                Some((Reason::Overloaded, format!("{} calls are open at this peer", self.requests.len())))
            }
            Some(HopState::Open(_)) => None,
            Some(HopState::Draining { reason, .. }) => {
                Some((Reason::Draining, format!("the link takes no new calls: {reason}")))
            }
            _ => Some((Reason::PeerOffline, "this peer is not connected to a hub".to_owned())),
        }
    }

    pub(super) fn credit(&mut self, number: u64, bytes: u64) {
        if self.requests.credit(number, bytes) {
            self.send_part(None, number, Part::Credit { bytes }, Lane::Control);
        }
    }

    pub(super) fn stop_waiting(&mut self, number: u64) {
        if self.requests.close(number) {
            self.send_part(None, number, Part::StopWaiting, Lane::Control);
        }
    }

    pub(super) fn broken(&mut self, number: u64, detail: String) {
        self.stats.protocol_ends += 1;
        self.stop_waiting(number);
        self.fail(number, Reason::Protocol, detail);
    }

    pub(super) fn expire_requests(&mut self, now: Instant) {
        while let Some(number) = self.requests.expired(now) {
            self.stop_waiting(number);
            self.fail(number, Reason::Deadline, "the caller's time is over; the work may go on");
        }
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, number: u64, reply: Reply) {
        match self.requests.reply(source, number, &reply) {
            Verdict::Deliver => {
                if reply.end.is_some() {
                    self.requests.close(number);
                }
                self.actions.push_back(Action::Reply { number, message: reply.message, end: reply.end });
            }
            Verdict::Duplicate => self.stats.duplicates += 1,
            Verdict::Broken(detail) => self.broken(number, detail),
            Verdict::WrongSource => self.stats.wrong_source += 1,
            Verdict::Stray => self.stats.stray_replies += 1,
        }
    }
}
