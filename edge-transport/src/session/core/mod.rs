//! A peer's session: the link's state, and the calls in both directions.

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::requests::Requests;
use super::serving::ServingTable;
use super::{Action, CloseReason, Event, Hop, HopAction, HopEvent, HopState, Role, Settings, Stats};
use crate::frame::{
    DecodeError, Encoder, End, Failure, Frame, HEADROOM, Hello, Kind, Lane, Part, Reason, Reply, decode,
};
use crate::name::PeerId;

/// The sessions of a peer, one after the other: each runs over one link, and its calls end with that. Work that goes on for calls of
/// earlier links counts on.
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
    /// A peer that introduces itself with `hello`, without a link. The number of the session in it rises with each link.
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
        hop.into_iter().chain(self.requests.next_wakeup()).min()
    }

    /// The transition function.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::LinkUp => {
                self.hello.session.number += 1;
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
            Event::Credit { number, bytes } => self.credit(number, bytes),
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
                self.expire_requests(now);
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

    /// The calls of the link end with it.
    fn link_lost(&mut self, detail: &str) {
        self.hop = None;
        for number in self.requests.close_all() {
            self.fail(number, Reason::LinkLost, format!("{detail}; the work may go on"));
        }
        for serving in self.serving.link_lost() {
            self.actions.push_back(Action::Abandoned { serving });
        }
    }

    fn fail(&mut self, number: u64, reason: Reason, detail: impl Into<String>) {
        let end = Some(End::Failed(Failure::new(reason, detail)));
        self.actions.push_back(Action::Reply { number, message: None, end });
    }

    fn send_part(&mut self, target: Option<PeerId>, number: u64, part: Part, lane: Lane) {
        if self.is_open() {
            let frame = self.encoder.encode(Frame::call(None, target, number, part), lane);
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
        let (number, part) = match frame.kind {
            Kind::Call(number, part) => (number, part),
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
            Part::Request(request) => self.request(frame.source, number, request),
            Part::Reply(reply) => self.reply(frame.source.as_ref(), number, reply),
            Part::Credit { bytes } => self.credited(number, bytes),
            Part::StopWaiting => self.requester_left(number),
        }
    }

    fn refused(&mut self, head: Bytes) {
        let detail =
            "the link refused the frame as too large: make its bound as high as max_frame at both ends";
        match decode(head, usize::MAX) {
            Ok(Frame { kind: Kind::Call(number, Part::Request(_)), .. }) if self.requests.close(number) => {
                self.fail(number, Reason::TooLarge, detail);
            }
            Ok(Frame { kind: Kind::Call(number, Part::Reply(_)), .. }) => {
                let serving = self.serving.stop_waiting(number);
                let lane = match serving.and_then(|serving| self.serving.running(serving)) {
                    Some(call) => {
                        call.lane_open = false;
                        call.lane
                    }
                    None => self.fresh_lane(),
                };
                let reply = Reply::failed(Failure::new(Reason::TooLarge, detail));
                self.send_part(None, number, Part::Reply(reply), Lane::Call(lane));
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
        let DecodeError::InCall { number, request, .. } = error else { return };
        if request {
            let reply = Reply::failed(Failure::new(Reason::Protocol, detail));
            let lane = self.fresh_lane();
            self.send_part(None, number, Part::Reply(reply), Lane::Call(lane));
        } else if self.requests.contains(number) {
            self.broken(number, detail);
        }
    }
}
