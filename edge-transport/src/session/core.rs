//! A peer's session: the link's state, and the calls in both directions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::requests::{Requests, Verdict};
use super::serving::ServingTable;
use super::{
    Action, CloseReason, Event, Hop, HopAction, HopEvent, HopState, Incoming, Role, ServingId, Settings,
    Stats,
};
use crate::frame::{
    CallId, DecodeError, Encoder, End, Failure, Frame, HEADROOM, Hello, Kind, Lane, Part, Reason, Reply,
    Request, decode,
};
use crate::name::PeerId;

/// The session of a peer. It outlives its links.
#[derive(Debug)]
pub struct Session {
    hello: Hello,
    settings: Settings,
    hop: Option<Hop>,
    hop_actions: Vec<HopAction>,
    encoder: Encoder,
    requests: Requests,
    serving: ServingTable,
    next_lane: u64,
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Session {
    /// A session of a peer that introduces itself with `hello`, without a link.
    #[must_use]
    pub fn new(hello: Hello, settings: Settings) -> Self {
        Self {
            hello,
            settings,
            hop: None,
            hop_actions: Vec::new(),
            encoder: Encoder::default(),
            requests: Requests::default(),
            serving: ServingTable::default(),
            next_lane: 0,
            actions: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Counts of what should be rare.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Calls that this peer has open.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// Calls of others that services of this peer work on.
    #[must_use]
    pub fn open_serving(&self) -> usize {
        self.serving.len()
    }

    /// Whether a link is in use.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.hop.as_ref().is_some_and(|hop| hop.remote().is_some())
    }

    /// Whether the link takes no new calls: [`Event::Flushed`] is of use.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.hop.as_ref().is_some_and(|hop| matches!(hop.state(), HopState::Draining { .. }))
    }

    /// Takes out the next thing to do. Call until `None` after every event.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let hop = self.hop.as_ref().and_then(Hop::next_wakeup);
        match (hop, self.requests.next_deadline()) {
            (Some(hop), Some(call)) => Some(hop.min(call)),
            (hop, call) => hop.or(call),
        }
    }

    /// The transition function.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::LinkUp => {
                let hello = self.hello.clone();
                self.hop =
                    Some(Hop::new(Role::Dialer, hello, self.settings.clone(), now, &mut self.hop_actions));
            }
            Event::LinkLost => self.link_lost("the link to the hub was lost"),
            Event::Received(bytes) => self.received(bytes, now),
            Event::Refused(head) => self.refused(head),
            Event::Call { number, target, request, deadline } => {
                self.call(number, target, request, deadline, now);
            }
            Event::Credit { number, bytes } => {
                if let Some(target) = self.requests.credit(number, bytes) {
                    let target = target.clone();
                    self.send_part(
                        target,
                        CallId::new(self.hello.epoch, number),
                        Part::Credit { bytes },
                        Lane::Control,
                    );
                }
            }
            Event::StopWaiting { number } => self.stop_waiting(number),
            Event::Answer { serving, message, end } => self.answer(serving, message, end),
            Event::Drain { reason } => self.hop(HopEvent::Drain { reason }, now),
            Event::Flushed => {
                if self.requests.len() == 0 && self.serving.wanted() == 0 {
                    self.hop(HopEvent::Idle, now);
                }
            }
            Event::Close => self.hop(HopEvent::Refuse(CloseReason::Closed), now),
            Event::Tick => {
                while let Some(number) = self.requests.expired(now) {
                    self.stop_waiting(number);
                    self.fail(number, Reason::Deadline, "the caller's time is over; the work may go on");
                }
                self.hop(HopEvent::Tick, now);
            }
        }
        self.carry_out_hop_actions();
    }

    fn hop(&mut self, event: HopEvent, now: Instant) {
        if let Some(hop) = &mut self.hop {
            hop.handle(event, now, &mut self.hop_actions);
        }
    }

    fn carry_out_hop_actions(&mut self) {
        if self.hop_actions.is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.hop_actions);
        for action in actions.drain(..) {
            match action {
                HopAction::Send(kind) => {
                    let frame = self.encoder.encode(Frame::hop(kind), Lane::Control);
                    self.actions.push_back(Action::Send(frame));
                }
                HopAction::Introduced(_) => {}
                HopAction::Opened(remote) => self.actions.push_back(Action::Opened(remote)),
                HopAction::Draining { reason } => self.actions.push_back(Action::Draining { reason }),
                HopAction::Close(reason) => {
                    self.link_lost(&format!("the link to the hub was closed: {reason}"));
                    self.actions.push_back(Action::Close(reason));
                }
            }
        }
        self.hop_actions = actions;
    }

    fn link_lost(&mut self, detail: &str) {
        self.hop = None;
        for number in self.requests.drain() {
            self.requests.leave(CallId::new(self.hello.epoch, number));
            self.fail(number, Reason::LinkLost, detail);
        }
        for serving in self.serving.abandon_all() {
            self.actions.push_back(Action::Abandoned { serving });
        }
    }

    fn fail(&mut self, number: u64, reason: Reason, detail: impl Into<String>) {
        let end = Some(End::Failed(Failure::new(reason, detail)));
        self.actions.push_back(Action::Reply { number, message: None, end });
    }

    fn send_part(&mut self, target: PeerId, id: CallId, part: Part, lane: Lane) {
        if self.is_open() {
            let frame = self.encoder.encode(Frame::call(None, Some(target), id, part), lane);
            self.actions.push_back(Action::Send(frame));
        }
    }

    fn fresh_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.next_lane
    }

    /// Most bytes of body, metadata and closing bytes together that may be put into one frame.
    fn max_payload(&self) -> usize {
        let remote = self.hop.as_ref().and_then(Hop::remote).map_or(usize::MAX, |remote| remote.max_frame);
        self.settings.max_frame.min(remote).saturating_sub(HEADROOM)
    }

    fn call(
        &mut self,
        number: u64,
        target: PeerId,
        mut request: Request,
        deadline: Option<Instant>,
        now: Instant,
    ) {
        // What is left now: some of it may have gone while the call waited for its turn.
        request.remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let size = request.body.len() + request.metadata.len();
        let max = self.max_payload();
        let refusal = match self.hop.as_ref().map(Hop::state) {
            Some(HopState::Open(_)) if self.requests.contains(number) => {
                return self.stats.duplicates += 1;
            }
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
        };
        if let Some((reason, detail)) = refusal {
            return self.fail(number, reason, detail);
        }
        self.requests.open(number, target.clone(), request.credit, deadline);
        let lane = self.fresh_lane();
        self.send_part(
            target,
            CallId::new(self.hello.epoch, number),
            Part::Request(request),
            Lane::Call(lane),
        );
    }

    fn stop_waiting(&mut self, number: u64) {
        if let Some(target) = self.requests.close(number) {
            let id = CallId::new(self.hello.epoch, number);
            self.requests.leave(id);
            self.send_part(target, id, Part::StopWaiting, Lane::Control);
        }
    }

    fn answer(&mut self, serving: ServingId, message: Option<Bytes>, mut end: Option<End>) {
        let max = self.max_payload();
        let Some(call) = self.serving.running(serving) else { return };
        let ends = end.is_some();
        if call.wanted {
            let closing = if let Some(End::Finished(closing)) = &end { closing.len() } else { 0 };
            let size = message.as_ref().map_or(0, Bytes::len) + closing;
            let mut message = message;
            if size > max || closing > crate::frame::MAX_CLOSING {
                let detail = format!(
                    "answer of {size} bytes; at most {max} can be sent: raise max_frame at every end or send less"
                );
                message = None;
                end = Some(End::Failed(Failure::new(Reason::TooLarge, detail)));
            } else if message.is_some() && !call.has_credit() {
                message = None;
                end = Some(End::Failed(Failure::new(Reason::Overloaded, "the service sent without credit")));
            }
            if let Some(message) = &message {
                call.spend(message);
            }
            let reply = Reply { sequence: call.next_sequence(), message, end };
            let (source, id, lane) = (call.source.clone(), call.id, call.lane);
            call.lane_open = reply.end.is_none();
            let ends_early = reply.end.is_some() && !ends;
            self.send_part(source, id, Part::Reply(reply), Lane::Call(lane));
            if ends_early && self.serving.abandon(serving) {
                self.actions.push_back(Action::Abandoned { serving });
            }
        }
        if ends {
            self.serving.end(serving);
        }
    }

    fn received(&mut self, bytes: Bytes, now: Instant) {
        let frame = match decode(bytes, self.settings.max_frame) {
            Ok(frame) => frame,
            Err(error) => return self.malformed(error, now),
        };
        let Kind::Call(id, part) = frame.kind else {
            self.stats.unknown_kinds += u64::from(frame.kind == Kind::Unknown);
            return self.hop(HopEvent::Frame(frame.kind), now);
        };
        if !self.is_open() {
            return self.hop(HopEvent::Noise, now);
        }
        self.hop(HopEvent::Noise, now);
        match part {
            Part::Request(request) => self.request(frame.source, id, request),
            Part::Reply(reply) => self.reply(frame.source, id, reply),
            Part::Credit { bytes } => {
                if let Some(serving) = frame.source.and_then(|source| self.serving.credit(&source, id, bytes))
                {
                    self.actions.push_back(Action::Credit { serving, bytes });
                }
            }
            Part::StopWaiting => {
                if let Some(serving) = frame.source.and_then(|source| self.serving.stop_waiting(&source, id))
                {
                    self.abandoned(serving);
                }
            }
        }
    }

    /// Nobody waits for a call any more, whose last reply was not sent.
    fn abandoned(&mut self, serving: ServingId) {
        self.actions.push_back(Action::Abandoned { serving });
        if let Some(call) = self.serving.running(serving)
            && std::mem::take(&mut call.lane_open)
        {
            let frame = self.encoder.encode(Frame::silence(), Lane::Call(call.lane));
            self.actions.push_back(Action::Send(frame));
        }
    }

    fn refused(&mut self, head: Bytes) {
        let detail =
            "the link refused the frame as too large: make its bound as high as max_frame at both ends";
        match decode(head, usize::MAX) {
            Ok(Frame { kind: Kind::Call(id, Part::Request(_)), .. })
                if self.requests.close(id.number).is_some() =>
            {
                self.fail(id.number, Reason::TooLarge, detail);
            }
            Ok(Frame { target: Some(requester), kind: Kind::Call(id, Part::Reply(reply)), .. }) => {
                let serving = self.serving.stop_waiting(&requester, id);
                let lane = match serving.and_then(|serving| self.serving.running(serving)) {
                    Some(call) => call.lane,
                    None => self.fresh_lane(),
                };
                let end = Some(End::Failed(Failure::new(Reason::TooLarge, detail)));
                let reply = Reply { sequence: reply.sequence, message: None, end };
                self.send_part(requester, id, Part::Reply(reply), Lane::Call(lane));
                if let Some(serving) = serving {
                    self.actions.push_back(Action::Abandoned { serving });
                }
            }
            _ => {}
        }
    }

    fn malformed(&mut self, error: DecodeError, now: Instant) {
        self.stats.malformed += 1;
        self.hop(HopEvent::Noise, now);
        let detail = error.to_string();
        let DecodeError::InCall { sender, id, request, .. } = error else { return };
        if request {
            if let Some(source) = sender {
                let reply = Reply::failed(Failure::new(Reason::Protocol, detail));
                let lane = self.fresh_lane();
                self.send_part(source, id, Part::Reply(Reply { sequence: 1, ..reply }), Lane::Call(lane));
            }
        } else if id.epoch == self.hello.epoch && self.requests.contains(id.number) {
            self.broken(id.number, detail);
        }
    }

    fn broken(&mut self, number: u64, detail: String) {
        self.stats.protocol_ends += 1;
        self.stop_waiting(number);
        self.fail(number, Reason::Protocol, detail);
    }

    fn request(&mut self, source: Option<PeerId>, id: CallId, request: Request) {
        let Some(source) = source else {
            return self.stats.wrong_source += 1;
        };
        if self.serving.knows(&source, id) {
            return self.stats.duplicates += 1;
        }
        let refusal = if !self.hop.as_ref().is_some_and(Hop::takes_calls) {
            Some((Reason::Draining, "the peer takes no new calls".to_owned()))
        } else if !self.hello.services.contains(&request.service) {
            Some((Reason::NoSuchService, format!("{} does not serve {}", self.hello.peer, request.service)))
        } else if self.serving.len() >= self.settings.max_serving {
            Some((Reason::Overloaded, format!("{} works on {} calls", self.hello.peer, self.serving.len())))
        } else if self.serving.bytes() > 0
            && self.serving.bytes() + request.body.len() > self.settings.max_serving_bytes
        {
            let detail = format!("{} works on {} bytes of requests", self.hello.peer, self.serving.bytes());
            Some((Reason::Overloaded, detail))
        } else {
            None
        };
        let lane = self.fresh_lane();
        if let Some((reason, detail)) = refusal {
            let reply =
                Reply { sequence: 1, message: None, end: Some(End::Failed(Failure::new(reason, detail))) };
            return self.send_part(source, id, Part::Reply(reply), Lane::Call(lane));
        }
        let serving = self.serving.open(source.clone(), id, lane, &request);
        self.actions.push_back(Action::Serve(Incoming { serving, source, id, request }));
    }

    fn reply(&mut self, source: Option<PeerId>, id: CallId, reply: Reply) {
        let verdict = if id.epoch == self.hello.epoch {
            self.requests.reply(source.as_ref(), id, &reply)
        } else {
            Verdict::Unknown
        };
        match verdict {
            Verdict::Deliver => {
                if reply.end.is_some() {
                    self.requests.close(id.number);
                    self.requests.leave(id);
                }
                self.actions.push_back(Action::Reply {
                    number: id.number,
                    message: reply.message,
                    end: reply.end,
                });
            }
            Verdict::Duplicate => self.stats.duplicates += 1,
            Verdict::Broken(detail) => self.broken(id.number, detail),
            Verdict::WrongSource => self.stats.wrong_source += 1,
            Verdict::Left | Verdict::Unknown => {
                self.stats.stray_replies += 1;
                if verdict == Verdict::Unknown {
                    self.requests.leave(id);
                }
                // Lanes may overtake each other: where the first reply comes after this end has left, the word of that may
                // have come before the request, to nobody.
                if let Some(source) = source
                    && reply.end.is_none()
                    && (verdict == Verdict::Unknown || reply.sequence == 1)
                {
                    self.send_part(source, id, Part::StopWaiting, Lane::Control);
                }
            }
        }
    }
}
