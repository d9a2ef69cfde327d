//! The calls that this peer makes.

use std::time::{Duration, Instant};

use super::Session;
use crate::frame::{CallId, End, Failure, Lane, MAX_ACKED, Part, Reason, Reply, Request};
use crate::name::{PeerId, ServiceName};
use crate::session::requests::{Closed, Verdict};
use crate::session::{Action, Hop, HopState};

impl Session {
    pub(super) fn call(
        &mut self,
        number: u64,
        target: PeerId,
        mut request: Request,
        deadline: Option<Instant>,
        repeatable: bool,
        now: Instant,
    ) {
        if self.requests.contains(number) {
            return self.stats.duplicates += 1;
        }
        // What is left now: some of it may have gone while the call waited for its turn.
        request.remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        request.resumable = self.resumes;
        if let Some((reason, detail)) = self.refusal(&request) {
            return self.fail(number, reason, detail);
        }
        let mut behind = None;
        if self.resumes {
            let along = self.acks.with_request(&target, &request.service);
            request.ended = along.in_it;
            behind = along.behind_it.map(|ends| (target.clone(), request.service.clone(), ends));
        }
        let max_kept = self.settings.max_kept;
        self.requests.open(number, target.clone(), &request, repeatable, max_kept, deadline);
        let lane = self.fresh_lane();
        let id = CallId::new(self.hello.epoch, number);
        self.send_part(target, id, Part::Request(request), Lane::Call(lane));
        if let Some((target, service, ends)) = behind {
            self.acknowledge(target, service, ends, now);
        }
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
        if let Some(target) = self.requests.credit(number, bytes).cloned() {
            let id = CallId::new(self.hello.epoch, number);
            self.send_part(target, id, Part::Credit { bytes }, Lane::Control);
        }
    }

    pub(super) fn stop_waiting(&mut self, number: u64) {
        if let Some(Closed { target, .. }) = self.requests.close(number) {
            let id = CallId::new(self.hello.epoch, number);
            self.requests.leave(id);
            self.send_part(target, id, Part::StopWaiting, Lane::Control);
        }
    }

    pub(super) fn broken(&mut self, number: u64, detail: String) {
        self.stats.protocol_ends += 1;
        self.stop_waiting(number);
        self.fail(number, Reason::Protocol, detail);
    }

    pub(super) fn tick_outgoing(&mut self, now: Instant) {
        while let Some(number) = self.requests.expired(now) {
            self.stop_waiting(number);
            self.fail(number, Reason::Deadline, "the caller's time is over; the work may go on");
        }
        while let Some(number) = self.requests.given_up(now) {
            let window = self.settings.resume_window;
            let detail =
                format!("the way to the peer was lost and not back within {window:?}; the work may go on");
            self.end_here(number, Reason::LinkLost, detail);
        }
        if self.is_open() {
            for (target, service, numbers) in self.acks.due(now) {
                self.acknowledge(target, service, numbers, now);
            }
        }
    }

    /// The link is gone: calls that cannot outlive it end, the others wait until the time given.
    pub(super) fn detach_outgoing(&mut self, detail: &str, until: Instant, now: Instant) {
        self.acks.untold(self.settings.dead_after, now);
        for number in self.requests.not_resumable() {
            self.end_here(number, Reason::LinkLost, detail);
        }
        for number in self.requests.all() {
            self.stats.detached += u64::from(self.requests.detach(number, until));
        }
    }

    /// Ends a call whose target cannot be told.
    fn end_here(&mut self, number: u64, reason: Reason, detail: impl Into<String>) {
        self.requests.close(number);
        self.requests.leave(CallId::new(self.hello.epoch, number));
        self.fail(number, reason, detail);
    }

    /// There is a way again, to one target or to all: calls that wait for it go on.
    pub(super) fn resume(&mut self, target: Option<&PeerId>) {
        for number in self.requests.detached(target) {
            if self.resumes {
                self.ask_again(number);
            } else {
                self.end_here(number, Reason::LinkLost, "the hub of the new link does not resume calls");
            }
        }
    }

    /// Asks for all replies that have not come.
    fn ask_again(&mut self, number: u64) {
        if let Some((target, resume)) = self.requests.resume(number) {
            self.stats.resumed += 1;
            // Control frames keep their order up to the target: a hub's word that this peer is away comes before it.
            let id = CallId::new(self.hello.epoch, number);
            self.send_part(target, id, Part::Resume(resume), Lane::Control);
        }
    }

    /// The target has never seen the request.
    fn send_again(&mut self, number: u64, now: Instant) {
        let Some((target, mut request, deadline)) = self.requests.again(number) else {
            let detail =
                "the peer does not know the call, and it may not be repeated; the work may have been done";
            return self.end_here(number, Reason::LinkLost, detail);
        };
        self.stats.resent += 1;
        request.remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let size = request.body.len() + request.metadata.len();
        if size > self.max_payload() {
            let detail =
                format!("request of {size} bytes; the new link takes at most {}", self.max_payload());
            return self.end_here(number, Reason::TooLarge, detail);
        }
        let lane = self.fresh_lane();
        let id = CallId::new(self.hello.epoch, number);
        self.send_part(target, id, Part::Request(request), Lane::Call(lane));
    }

    pub(super) fn reply(&mut self, source: Option<PeerId>, id: CallId, reply: Reply, now: Instant) {
        let number = id.number;
        let verdict = if id.epoch == self.hello.epoch {
            self.requests.reply(source.as_ref(), id, &reply)
        } else {
            Verdict::Stray
        };
        match verdict {
            Verdict::Deliver => {
                if reply.end.is_some() {
                    self.ended(number, source.is_some(), now);
                }
                let end = reply.end.map(said_to_caller);
                self.actions.push_back(Action::Reply { number, message: reply.message, end });
            }
            Verdict::Duplicate => self.stats.duplicates += 1,
            Verdict::Gap => self.ask_again(number),
            Verdict::Cut => {
                let until = now + self.settings.resume_window;
                self.stats.detached += u64::from(self.requests.detach(number, until));
            }
            Verdict::StillCut(until) => drop(self.requests.detach(number, until)),
            Verdict::Unknown => self.send_again(number, now),
            Verdict::Broken(detail) => self.broken(number, detail),
            Verdict::WrongSource => self.stats.wrong_source += 1,
            Verdict::Left | Verdict::Stray => {
                self.stats.stray_replies += 1;
                if verdict == Verdict::Stray {
                    self.requests.leave(id);
                }
                // Lanes may overtake each other: where the first reply comes after this end has left, the word of that may
                // have come before the request, to nobody.
                if let Some(source) = source
                    && reply.end.is_none()
                    && (verdict == Verdict::Stray || reply.sequence == 1)
                {
                    self.send_part(source, id, Part::StopWaiting, Lane::Control);
                }
            }
        }
    }

    /// The target keeps what it answered until it is told.
    fn ended(&mut self, number: u64, by_target: bool, now: Instant) {
        let Some(Closed { target, service, resumable, resumed }) = self.requests.close(number) else {
            return;
        };
        let id = CallId::new(self.hello.epoch, number);
        self.requests.leave(id);
        if resumed {
            // The answer to a second resumption may still be on its way, or lost: nobody on the way is to wait for it.
            self.send_part(target.clone(), id, Part::StopWaiting, Lane::Control);
        }
        if resumable
            && by_target
            && let Some(numbers) = self.acks.note(target.clone(), service.clone(), number, now)
        {
            self.acknowledge(target, service, numbers, now);
        }
    }

    /// Tells all ends that wait for others: there will be no later time for it.
    pub(super) fn acknowledge_all(&mut self, now: Instant) {
        if self.is_open() {
            for (target, service, numbers) in self.acks.all() {
                self.acknowledge(target, service, numbers, now);
            }
        }
    }

    fn acknowledge(&mut self, target: PeerId, service: ServiceName, numbers: Vec<u64>, now: Instant) {
        for numbers in numbers.chunks(MAX_ACKED) {
            if let [first, further @ ..] = numbers {
                let id = CallId::new(self.hello.epoch, *first);
                let part = Part::Ack { service: service.clone(), further: further.to_vec() };
                self.send_part(target.clone(), id, part, Lane::Control);
            }
        }
        self.acks.told(target, service, numbers, now);
    }
}

/// That an answer is no longer kept is, to a caller, a link that was lost: the work may have been done.
fn said_to_caller(end: End) -> End {
    match end {
        End::Failed(failure) if failure.reason() == Reason::AnswerLost => {
            End::Failed(Failure::new(Reason::LinkLost, failure.detail()))
        }
        end => end,
    }
}
