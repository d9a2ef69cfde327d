//! The hub's process: the routing table, and its end of every link, driven as `edge_transport::Hub` drives them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::frame::{Frame, Hello, Kind, Lane, WireFrame, decode, encode};
use edge_transport::hub::{Core, HubSettings, NodesCallNobody, SessionKey};
use edge_transport::session::{CloseReason, Hop, HopAction, HopEvent, HopState, Role};

use crate::clock::Clock;
use crate::link::LinkIndex;
use crate::plan::Way;
use crate::world::{Happening, World};

/// Bytes moved from the routing table to a link at a time.
const WRITE_BATCH: usize = 256 * 1024;

/// The hub's end of a link.
#[derive(Debug)]
pub(crate) struct Connection {
    hop: Hop,
    key: Option<SessionKey>,
    pong: Option<Kind>,
    pump: VecDeque<WireFrame>,
    /// Since when frames wait and the link takes nothing.
    stalled: Option<Instant>,
    ending: Option<CloseReason>,
    /// The earliest tick that is arranged.
    tick: Option<Duration>,
}

/// A life of the hub.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) life: u32,
    pub(crate) core: Core,
    pub(crate) connections: BTreeMap<LinkIndex, Connection>,
    settings: HubSettings,
    hello: Hello,
    clock: Clock,
}

impl Hub {
    pub(crate) fn new(life: u32, hello: Hello, settings: HubSettings, clock: Clock) -> Self {
        let core = Core::new(settings.clone(), Arc::new(NodesCallNobody));
        Self { life, core, connections: BTreeMap::new(), settings, hello, clock }
    }

    /// When a link that takes nothing is given up.
    fn stall_deadline(&self, connection: &Connection) -> Option<Instant> {
        connection.stalled.map(|since| since + self.settings.session.dead_after)
    }

    fn next_wakeup(&self, connection: &Connection) -> Option<Instant> {
        let stall = self.stall_deadline(connection);
        connection.hop.next_wakeup().into_iter().chain(stall).min()
    }

    /// What the bounds allow to wait, with the small frames that must not be lost: for each call a few.
    pub(crate) const fn most_queued(&self, places: usize) -> usize {
        self.settings.total_queue_bytes + places * self.settings.max_calls * 8 * 256
    }

    pub(crate) const fn most_calls(&self, places: usize) -> usize {
        places * self.settings.max_calls
    }
}

impl World {
    /// A link has come.
    pub(crate) fn hub_accepts(&mut self, link: LinkIndex) {
        let now = self.now;
        let Some(hub) = &mut self.hub else { return };
        let mut actions = Vec::new();
        let session = hub.settings.session.clone();
        let hop = Hop::new(Role::Acceptor, hub.hello.clone(), session, hub.clock.show(now), &mut actions);
        let connection = Connection {
            hop,
            key: None,
            pong: None,
            pump: VecDeque::new(),
            stalled: None,
            ending: None,
            tick: None,
        };
        hub.connections.insert(link, connection);
        self.hub_settles(link);
    }

    pub(crate) fn hub_received(&mut self, link: LinkIndex, bytes: Bytes) {
        let now = self.now;
        let Some(hub) = self.hub.as_mut() else { return };
        let Some(connection) = hub.connections.get_mut(&link) else { return };
        Self::note_arrival(&mut self.trace, now, "hub", &bytes);
        let key = connection.key;
        match (decode(bytes, hub.settings.session.max_frame), key) {
            (Ok(frame), Some(key)) if matches!(frame.kind, Kind::Call(..)) => {
                self.hop_event(link, HopEvent::Noise);
                self.route(link, key, frame);
            }
            (Ok(frame), _) => self.hop_event(link, HopEvent::Frame(frame.kind)),
            (Err(error), Some(key)) => {
                self.hop_event(link, HopEvent::Noise);
                if let Some(hub) = &mut self.hub {
                    hub.core.malformed(key, &error);
                }
            }
            (Err(error), None) => {
                let cause = error.to_string();
                self.hop_event(link, HopEvent::Refuse(CloseReason::Protocol { cause }));
            }
        }
        self.hub_settles(link);
    }

    fn route(&mut self, link: LinkIndex, key: SessionKey, frame: Frame) {
        let peer = self.links.get(&link).and_then(|link| self.peers.get(link.peer));
        let now = self.now;
        let Some(hub) = &mut self.hub else { return };
        let before = hub.core.stats().frames;
        hub.core.route(key, frame, hub.clock.show(now));
        let passed = hub.core.stats().frames > before;
        if let Some(peer) = peer {
            self.oracle.fence.routed(hub.life, &peer.name, peer.epoch, passed);
        }
    }

    /// The peer's end is gone.
    pub(crate) fn hub_lost(&mut self, link: LinkIndex) {
        self.hub_drops(link);
    }

    fn hub_drops(&mut self, link: LinkIndex) {
        let now = self.now;
        let Some(hub) = &mut self.hub else { return };
        let Some(connection) = hub.connections.remove(&link) else { return };
        self.trace.note(now, || "hub".into(), || format!("link {link} ends: {:?}", connection.ending));
        if let Some(key) = connection.key {
            hub.core.lost(key, hub.clock.show(now));
        }
        self.hub_wakes();
    }

    /// Time has passed for one link.
    pub(crate) fn hub_ticks(&mut self, link: LinkIndex) {
        let now = self.now;
        let Some(hub) = &mut self.hub else { return };
        let shown = hub.clock.show(now);
        let Some(connection) = hub.connections.get_mut(&link) else { return };
        connection.tick = None;
        let due = connection.stalled.is_some_and(|since| shown >= since + hub.settings.session.dead_after);
        self.hop_event(link, HopEvent::Tick);
        if due {
            self.hop_event(link, HopEvent::Refuse(CloseReason::Stalled { after: Duration::ZERO }));
        }
        self.hub_settles(link);
    }

    fn hop_event(&mut self, link: LinkIndex, event: HopEvent) {
        let now = self.now;
        let Some(hub) = &mut self.hub else { return };
        let shown = hub.clock.show(now);
        let Some(connection) = hub.connections.get_mut(&link) else { return };
        let mut actions = Vec::new();
        connection.hop.handle(event, shown, &mut actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                HopAction::Send(pong @ Kind::Pong { .. }) => connection.pong = Some(pong),
                HopAction::Send(kind) => connection.pump.push_back(encode(Frame::hop(kind), Lane::Control)),
                HopAction::Introduced(remote) => {
                    let decision = match hub.core.admit(&remote, shown) {
                        Ok(key) => {
                            connection.key = Some(key);
                            self.oracle.fence.admitted(hub.life, remote.peer.as_str(), remote.epoch, now);
                            HopEvent::Admit
                        }
                        Err(reason) => HopEvent::Refuse(reason),
                    };
                    self.trace.note(
                        now,
                        || "hub".into(),
                        || format!("{} epoch {} on link {link}: {decision:?}", remote.peer, remote.epoch),
                    );
                    let mut more = Vec::new();
                    connection.hop.handle(decision, shown, &mut more);
                    actions.extend(more);
                }
                HopAction::Draining { .. } => {
                    if let Some(key) = connection.key {
                        hub.core.peer_draining(key);
                    }
                }
                HopAction::Close(reason) => connection.ending = Some(reason),
                _ => {}
            }
        }
    }

    /// Carries out what a transition has left to do, for the link that it was about and for those that the table wakes.
    fn hub_settles(&mut self, link: LinkIndex) {
        self.hub_serves(link);
        self.hub_wakes();
    }

    pub(crate) fn hub_wakes(&mut self) {
        while let Some(hub) = &mut self.hub {
            while hub.core.poll_presence().is_some() {}
            let Some(key) = hub.core.poll_wake() else { return };
            let link = hub.connections.iter().find(|(_, connection)| connection.key == Some(key));
            if let Some(link) = link.map(|(link, _)| *link) {
                self.hub_serves(link);
            }
        }
    }

    /// Writes what waits for a link, and closes it if it is to be closed.
    pub(crate) fn hub_serves(&mut self, link: LinkIndex) {
        self.hub_takes(link);
        let Some(hub) = &mut self.hub else { return };
        let Some(connection) = hub.connections.get(&link) else { return };
        if connection.ending.is_some() {
            self.hub_closes(link);
            return;
        }
        let next = hub.next_wakeup(connection).map(|next| hub.clock.when(next));
        if let (Some(next), Some(connection)) = (next, hub.connections.get_mut(&link))
            && connection.tick.is_none_or(|tick| next < tick)
        {
            connection.tick = Some(next);
            self.at(next, Happening::HubTicks { link });
        }
    }

    fn hub_takes(&mut self, link: LinkIndex) {
        loop {
            let takes = self.takes(link, Way::Down);
            let now = self.now;
            let Some(hub) = &mut self.hub else { return };
            let shown = hub.clock.show(now);
            let Some(connection) = hub.connections.get_mut(&link) else { return };
            if connection.ending.is_some() {
                return;
            }
            let room = if connection.pump.is_empty() { WRITE_BATCH } else { 0 };
            if room > 0
                && let Some(pong) = connection.pong.take()
            {
                connection.pump.push_back(encode(Frame::hop(pong), Lane::Control));
            }
            if let Some(key) = connection.key {
                if let Err(reason) = hub.core.take(key, &mut connection.pump, room, shown) {
                    return self.hop_event(link, HopEvent::Refuse(reason));
                }
                if let Some(reason) = hub.core.draining().map(ToOwned::to_owned)
                    && !matches!(connection.hop.state(), HopState::Draining { deadline: Some(_), .. })
                {
                    self.hop_event(link, HopEvent::Drain { reason });
                    continue;
                }
            }
            if connection.pump.is_empty() {
                connection.stalled = None;
                if let (Some(key), HopState::Draining { .. }) = (connection.key, connection.hop.state())
                    && hub.core.is_idle(key)
                {
                    self.hop_event(link, HopEvent::Idle);
                }
                return;
            }
            if !takes {
                connection.stalled.get_or_insert(shown);
                return;
            }
            let frames: Vec<WireFrame> = connection.pump.drain(..).collect();
            for frame in frames {
                self.send(link, Way::Down, &frame);
            }
        }
    }

    /// The last words, then the end.
    fn hub_closes(&mut self, link: LinkIndex) {
        let takes = self.takes(link, Way::Down);
        let Some(connection) = self.hub.as_mut().and_then(|hub| hub.connections.get_mut(&link)) else {
            return;
        };
        let heard =
            !matches!(connection.ending, Some(CloseReason::Dead { .. } | CloseReason::Stalled { .. }));
        let frames: Vec<WireFrame> = connection.pump.drain(..).collect();
        if heard && takes {
            for frame in frames {
                self.send(link, Way::Down, &frame);
            }
        }
        self.close(link, Way::Down);
        self.hub_drops(link);
    }

    /// The hub's process ends. Its peers are told, or not.
    pub(crate) fn hub_ends(&mut self, silent: bool) {
        let now = self.now;
        let Some(hub) = self.hub.take() else { return };
        self.trace.note(now, || "hub".into(), || format!("life {} ends", hub.life));
        for link in hub.connections.into_keys() {
            if silent {
                self.hold(link, Way::Down, Duration::MAX);
            } else {
                let kept = self.chance.below(11);
                self.cut_way(link, Way::Down, kept);
            }
        }
    }

    /// The hub ends in good order: no new calls, then each link when it is idle.
    pub(crate) fn drain_hub(&mut self, down: Duration) {
        let Some(hub) = &mut self.hub else { return };
        if hub.core.draining().is_some() {
            return;
        }
        hub.core.drain("the hub is updated");
        let life = hub.life;
        self.hub_wakes();
        self.after(Duration::from_secs(4), Happening::HubDrained { life, down });
    }
}
