//! A peer's session: the link's state, and the calls in both directions.

mod incoming;
mod outgoing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::inbound::InboundCalls;
use super::outbound::OutboundCalls;
use super::{
    Action, CloseReason, Event, LinkAction, LinkCore, LinkEvent, LinkState, Role, SessionSettings, Stats,
};
use crate::frame::{
    DecodeError, Encoder, End, Failure, Frame, HEADROOM, Hello, Kind, Lane, Part, Reason, Reply, decode,
};
use crate::name::PeerId;

/// The successive sessions of a peer. Each runs over one link, and its calls end with the link. Calls of earlier links that
/// services still process count against the limits.
#[derive(Debug)]
pub struct Session {
    hello: Hello,
    settings: SessionSettings,
    link: Option<LinkCore>,
    link_actions: Vec<LinkAction>,
    encoder: Encoder,
    outbound: OutboundCalls,
    inbound: InboundCalls,
    next_lane: u64,
    actions: VecDeque<Action>,
    stats: Stats,
}

impl Session {
    /// Creates the sessions of a peer that sends `hello`, without a link. The session number of the hello increases
    /// with each link.
    #[must_use]
    pub fn new(hello: Hello, settings: SessionSettings) -> Self {
        Self {
            hello,
            inbound: InboundCalls::new(&settings),
            settings,
            link: None,
            link_actions: Vec::new(),
            encoder: Encoder::default(),
            outbound: OutboundCalls::default(),
            next_lane: 0,
            actions: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Sets the peer's name for the next link.
    pub fn set_name(&mut self, name: PeerId) {
        self.hello.peer = name;
    }

    /// Sets how often the next link is pinged while no call waits. `None`: as often as while one does.
    pub const fn set_idle_ping(&mut self, every: Option<Duration>) {
        self.hello.idle_ping = every;
    }

    /// Counters of unusual events.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// Open calls that this peer has made.
    #[must_use]
    pub fn open_outbound(&self) -> usize {
        self.outbound.len()
    }

    /// Calls of other peers that services of this peer process.
    #[must_use]
    pub fn open_inbound(&self) -> usize {
        self.inbound.len()
    }

    /// Whether a link is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.remote().is_some())
    }

    /// Whether the link is draining, so that [`Event::Flushed`] is required.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.link.as_ref().is_some_and(|link| matches!(link.state(), LinkState::Draining { .. }))
    }

    /// Removes and returns the next action. Call until `None` after every event.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let link = self.link.as_ref().and_then(LinkCore::next_wakeup);
        link.into_iter().chain(self.outbound.next_wakeup()).min()
    }

    /// Handles an event at `now`. Call [`Session::poll_action`] afterwards.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::LinkUp => {
                self.hello.session.number += 1;
                let hello = Arc::new(self.hello.clone());
                self.link = Some(LinkCore::new(
                    Role::Dialer,
                    hello,
                    self.settings.clone(),
                    now,
                    &mut self.link_actions,
                ));
            }
            Event::LinkLost => self.link_lost("the link to the hub was lost"),
            Event::Received(bytes) => self.received(bytes, now),
            Event::Refused(head) => self.refused(head),
            Event::Call { number, target, request, deadline } => {
                self.call(number, target, request, deadline, now);
            }
            Event::Credit { number, bytes } => self.credit(number, bytes),
            Event::Cancel { number } => self.cancel(number),
            Event::Answer { inbound, message, end } => self.answer(inbound, message, end),
            Event::Drain { reason } => self.link_event(LinkEvent::Drain { reason }, now),
            Event::Flushed => {
                if self.outbound.len() == 0 && self.inbound.with_caller() == 0 {
                    self.link_event(LinkEvent::Idle, now);
                }
            }
            Event::Close => self.link_event(LinkEvent::Refuse(CloseReason::Closed), now),
            Event::Excused => self.link_event(LinkEvent::Excused, now),
            Event::Tick => {
                self.expire_requests(now);
                self.link_event(LinkEvent::Tick, now);
            }
        }
        let call_waits = self.outbound.is_waiting() || self.inbound.is_waiting();
        self.link_event(LinkEvent::Waiting(call_waits), now);
        self.apply_link_actions();
    }

    fn link_event(&mut self, event: LinkEvent, now: Instant) {
        if let Some(link) = &mut self.link {
            link.handle(event, now, &mut self.link_actions);
        }
    }

    fn apply_link_actions(&mut self) {
        if self.link_actions.is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.link_actions);
        for action in actions.drain(..) {
            match action {
                LinkAction::Send(kind) => {
                    let frame = self.encoder.encode(Frame::link(kind), Lane::Control);
                    self.actions.push_back(Action::Send { frame, owner: None });
                }
                LinkAction::HelloReceived(_) => {}
                LinkAction::Opened(remote) => self.actions.push_back(Action::Opened(remote)),
                LinkAction::Draining { reason } => self.actions.push_back(Action::Draining { reason }),
                LinkAction::Close(reason) => {
                    self.link_lost(&format!("the link to the hub was closed: {reason}"));
                    self.actions.push_back(Action::Close(reason));
                }
            }
        }
        self.link_actions = actions;
    }

    /// Ends the calls of the link.
    fn link_lost(&mut self, detail: &str) {
        self.link = None;
        for number in self.outbound.close_all() {
            self.fail(number, Reason::LinkLost, format!("{detail}; the work may continue"));
        }
        for inbound in self.inbound.link_lost() {
            self.actions.push_back(Action::Cancelled { inbound });
        }
    }

    fn fail(&mut self, number: u64, reason: Reason, detail: impl Into<String>) {
        let end = Some(End::Failed(Failure::new(reason, detail)));
        self.actions.push_back(Action::Reply { number, message: None, end });
    }

    /// Sends a frame of a call that this peer makes.
    fn send_own(&mut self, target: Option<PeerId>, number: u64, part: Part, lane: Lane) {
        self.send_part(self.hello.peer.clone(), target, number, part, lane);
    }

    fn send_part(&mut self, owner: PeerId, target: Option<PeerId>, number: u64, part: Part, lane: Lane) {
        if self.is_open() {
            let frame = self.encoder.encode(Frame::call(None, target, number, part), lane);
            self.actions.push_back(Action::Send { frame, owner: Some(owner) });
        }
    }

    fn next_free_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.next_lane
    }

    /// Returns the maximum number of bytes of body, metadata and closing bytes together that fit into one frame.
    fn max_payload(&self) -> usize {
        let remote =
            self.link.as_ref().and_then(LinkCore::remote).map_or(usize::MAX, |remote| remote.max_frame);
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
                return self.link_event(LinkEvent::Frame(kind), now);
            }
        };
        self.link_event(LinkEvent::Activity, now);
        if !self.is_open() {
            return;
        }
        match part {
            Part::Request(request) => self.request(frame.source, number, request),
            Part::Reply(reply) => self.reply(frame.source.as_ref(), number, reply),
            Part::Credit { bytes } => self.on_credit(number, bytes),
            Part::Cancel => self.on_cancel(number),
        }
    }

    fn refused(&mut self, head: Bytes) {
        let detail =
            "the link refused the frame as too large: raise its frame limit to max_frame at both ends";
        match decode(head, usize::MAX) {
            Ok(Frame { kind: Kind::Call(number, Part::Request(_)), .. }) if self.outbound.close(number) => {
                self.fail(number, Reason::TooLarge, detail);
            }
            Ok(Frame { kind: Kind::Call(number, Part::Reply(_)), .. }) => {
                let inbound = self.inbound.cancel(number);
                let (owner, lane) = match inbound.and_then(|inbound| self.inbound.running(inbound)) {
                    Some(call) => {
                        call.lane_open = false;
                        (call.owner.clone(), call.lane)
                    }
                    None => (self.hello.peer.clone(), self.next_free_lane()),
                };
                let reply = Reply::failed(Failure::new(Reason::TooLarge, detail));
                self.send_part(owner, None, number, Part::Reply(reply), Lane::Call(lane));
                if let Some(inbound) = inbound {
                    self.actions.push_back(Action::Cancelled { inbound });
                }
            }
            _ => {}
        }
    }

    fn malformed(&mut self, error: DecodeError, now: Instant) {
        self.stats.malformed += 1;
        self.link_event(LinkEvent::Activity, now);
        let detail = error.to_string();
        let DecodeError::InCall { number, request, .. } = error else { return };
        if request {
            let reply = Reply::failed(Failure::new(Reason::Protocol, detail));
            let lane = self.next_free_lane();
            self.send_own(None, number, Part::Reply(reply), Lane::Call(lane));
        } else if self.outbound.contains(number) {
            self.protocol_violation(number, detail);
        }
    }
}
