//! A peer's session: the link's state, and the calls in both directions.

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::acks::Acks;
use super::requests::Requests;
use super::serving::ServingTable;
use super::{Action, CloseReason, Event, Hop, HopAction, HopEvent, HopState, Role, Settings, Stats};
use crate::frame::{
    CallId, DecodeError, Encoder, End, FEATURE_RESUME, Failure, Frame, HEADROOM, Hello, Kind, Lane, Part,
    Reason, Reply, decode,
};
use crate::name::PeerId;

/// The session of a peer. It outlives its links.
#[derive(Debug)]
pub struct Session {
    hello: Hello,
    settings: Settings,
    hop: Option<Hop>,
    /// Both ends of the link in use let calls outlive it.
    resumes: bool,
    hop_actions: Vec<HopAction>,
    encoder: Encoder,
    requests: Requests,
    serving: ServingTable,
    acks: Acks,
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
            resumes: false,
            hop_actions: Vec::new(),
            encoder: Encoder::default(),
            requests: Requests::default(),
            serving: ServingTable::default(),
            acks: Acks::default(),
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

    /// Calls that this peer has open and that wait for their link.
    #[must_use]
    pub fn detached_requests(&self) -> usize {
        self.requests.detached_len()
    }

    /// Bytes of answers that are kept until their requesters say that they have them, at most
    /// [`max_kept`](Settings::max_kept).
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.serving.kept_bytes()
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
        let acks = self.acks.next_wakeup().filter(|_| self.is_open());
        [hop, self.requests.next_wakeup(), self.serving.next_wakeup(), acks].into_iter().flatten().min()
    }

    /// The transition function.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::LinkUp => {
                let hello = self.hello.clone();
                self.hop =
                    Some(Hop::new(Role::Dialer, hello, self.settings.clone(), now, &mut self.hop_actions));
            }
            Event::LinkLost => self.link_lost("the link to the hub was lost", now),
            Event::Received(bytes) => self.received(bytes, now),
            Event::Refused(head) => self.refused(head),
            Event::Call { number, target, request, deadline, repeatable } => {
                self.call(number, target, request, deadline, repeatable, now);
            }
            Event::Credit { number, bytes } => self.credit(number, bytes),
            Event::StopWaiting { number } => self.stop_waiting(number),
            Event::Answer { serving, message, end, receipt } => {
                self.answer(serving, message, end, receipt, now);
            }
            Event::Drain { reason } => self.hop(HopEvent::Drain { reason }, now),
            Event::Flushed => {
                if self.requests.len() == 0 && self.serving.wanted() == 0 {
                    self.acknowledge_all(now);
                    self.hop(HopEvent::Idle, now);
                }
            }
            Event::Close => {
                self.acknowledge_all(now);
                self.hop(HopEvent::Refuse(CloseReason::Closed), now);
            }
            Event::Tick => {
                self.tick_outgoing(now);
                self.tick_incoming(now);
                self.hop(HopEvent::Tick, now);
            }
        }
        self.carry_out_hop_actions(now);
        self.tell_deliveries();
    }

    fn hop(&mut self, event: HopEvent, now: Instant) {
        if let Some(hop) = &mut self.hop {
            hop.handle(event, now, &mut self.hop_actions);
        }
    }

    fn carry_out_hop_actions(&mut self, now: Instant) {
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
                HopAction::Opened(remote) => {
                    self.resumes = remote.features.iter().any(|feature| feature == FEATURE_RESUME);
                    self.actions.push_back(Action::Opened(remote));
                    self.resume(None);
                }
                HopAction::Draining { reason } => self.actions.push_back(Action::Draining { reason }),
                HopAction::Close(reason) => {
                    self.link_lost(&format!("the link to the hub was closed: {reason}"), now);
                    self.actions.push_back(Action::Close(reason));
                }
            }
        }
        self.hop_actions = actions;
    }

    /// What can be resumed waits for the next link, the rest ends.
    fn link_lost(&mut self, detail: &str, now: Instant) {
        self.hop = None;
        let until = now + self.settings.resume_window;
        self.detach_outgoing(detail, until, now);
        for serving in self.serving.away_all(until) {
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

    fn received(&mut self, bytes: Bytes, now: Instant) {
        let frame = match decode(bytes, self.settings.max_frame) {
            Ok(frame) => frame,
            Err(error) => return self.malformed(error, now),
        };
        let (id, part) = match frame.kind {
            Kind::Call(id, part) => (id, part),
            Kind::Returned { peer } if self.is_open() => {
                self.hop(HopEvent::Noise, now);
                return self.resume(Some(&peer));
            }
            kind => {
                self.stats.unknown_kinds += u64::from(kind == Kind::Unknown);
                return self.hop(HopEvent::Frame(kind), now);
            }
        };
        self.hop(HopEvent::Noise, now);
        if !self.is_open() {
            return;
        }
        match part {
            Part::Request(request) => self.request(frame.source, id, request, now),
            Part::Reply(reply) => self.reply(frame.source, id, reply, now),
            Part::Credit { bytes } => self.credited(frame.source, id, bytes),
            Part::StopWaiting => self.requester_left(frame.source, id),
            Part::Away => self.requester_away(frame.source, id, now),
            Part::Resume(resume) => self.requester_back(frame.source, id, &resume, now),
            Part::Ack { further, .. } => self.requester_has(frame.source, id, &further),
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
                self.serving.undeliverable(&requester, id);
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
}
