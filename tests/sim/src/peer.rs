//! A peer's process: the session and its link, driven as `edge_transport::Peer` drives them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use csi_proxy::operation::AskerId;
use edge_transport::frame::WireFrame;
use edge_transport::peer::Backoff;
use edge_transport::session::{Action, CloseReason, Delivery, Event, ServingId, Session};
use edge_transport::{Epoch, PeerId};

use crate::agent::Work;
use crate::clock::Clock;
use crate::desk::Desk;
use crate::link::{Link, LinkIndex};
use crate::plan::{Place, Way};
use crate::sidecar::Reader;
use crate::world::{Happening, PeerIndex, World};

/// A link that was in use for so long makes the next wait short again.
const STABLE: Duration = Duration::from_secs(1);
/// How long an attempt to connect takes where nothing answers.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it takes to be refused.
const REFUSAL: Duration = Duration::from_millis(1);
/// How long a drain may take before the process is ended.
const DRAIN: Duration = Duration::from_secs(5);

/// One life of a peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) place: Place,
    pub(crate) name: PeerId,
    pub(crate) epoch: Epoch,
    pub(crate) session: Session,
    pub(crate) clock: Clock,
    pub(crate) alive: bool,
    pub(crate) link: Option<LinkIndex>,
    /// When the link that is in use was opened.
    pub(crate) opened: Option<Duration>,
    pump: VecDeque<WireFrame>,
    backoff: Backoff,
    closed: Option<CloseReason>,
    tick: Option<Duration>,
    ending: bool,
    /// The last number of a call.
    pub(crate) number: u64,
    /// Calls that sidecars wait for.
    pub(crate) readers: BTreeMap<u64, Reader>,
    /// Calls that the agent works on.
    pub(crate) works: BTreeMap<ServingId, Work>,
    /// Who is to be told what became of the answers that the session has, and of which execution they are.
    pub(crate) receipts: BTreeMap<ServingId, (AskerId, usize)>,
    /// The operations of an agent.
    pub(crate) desk: Option<Desk>,
}

impl Peer {
    pub(crate) const fn new(
        place: Place,
        name: PeerId,
        epoch: Epoch,
        session: Session,
        clock: Clock,
        backoff: Backoff,
    ) -> Self {
        Self {
            place,
            name,
            epoch,
            session,
            clock,
            alive: true,
            link: None,
            opened: None,
            pump: VecDeque::new(),
            backoff,
            closed: None,
            tick: None,
            ending: false,
            number: 0,
            readers: BTreeMap::new(),
            works: BTreeMap::new(),
            receipts: BTreeMap::new(),
            desk: None,
        }
    }

    /// For the trace.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.name, self.epoch)
    }
}

impl World {
    /// Tries to reach the hub.
    pub(crate) fn dial(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive && peer.link.is_none()) else {
            return;
        };
        if peer.ending {
            return;
        }
        let away = self.away.get(&peer.place).is_some_and(|until| *until > self.now);
        match &self.hub {
            Some(hub) if !away => {
                let link = self.next_link;
                self.next_link += 1;
                let roads = self.plan.roads.get(peer.place).copied().unwrap_or(self.plain_roads);
                self.links.insert(link, Link::new(index, hub.life, roads));
                peer.link = Some(link);
                peer.opened = None;
                self.trace.note(self.now, || peer.label(), || format!("dials: link {link}"));
                self.hub_accepts(link);
                self.peer_event(index, Event::LinkUp);
            }
            _ => {
                let failure = if away { DIAL_TIMEOUT } else { REFUSAL };
                let wait = failure + peer.backoff.next_wait();
                self.after(wait, Happening::Dials { peer: index });
            }
        }
    }

    pub(crate) fn peer_received(&mut self, index: PeerIndex, link: LinkIndex, bytes: Bytes) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.alive && peer.link == Some(link)) else {
            return;
        };
        Self::note_arrival(&mut self.trace, self.now, &peer.label(), &bytes);
        self.peer_event(index, Event::Received(bytes));
    }

    /// The hub's end is gone.
    pub(crate) fn peer_lost(&mut self, index: PeerIndex, link: LinkIndex) {
        if self.peers.get(index).is_some_and(|peer| peer.alive && peer.link == Some(link)) {
            self.link_ended(index);
        }
    }

    fn link_ended(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.link = None;
        peer.pump.clear();
        let closed = peer.closed.take();
        self.trace.note(self.now, || peer.label(), || format!("its link has ended: {closed:?}"));
        let stable = peer.opened.take().is_some_and(|opened| self.now.saturating_sub(opened) >= STABLE);
        self.peer_event(index, Event::LinkLost);
        let Some(peer) = self.peers.get_mut(index) else { return };
        if stable {
            peer.backoff.reset();
        }
        let wait = peer.backoff.next_wait();
        self.after(wait, Happening::Dials { peer: index });
    }

    pub(crate) fn peer_ticks(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        peer.tick = None;
        self.peer_event(index, Event::Tick);
    }

    /// Gives a session an event, and does what it asks for.
    pub(crate) fn peer_event(&mut self, index: PeerIndex, event: Event) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        peer.session.handle(event, peer.clock.show(now));
        loop {
            let Some(action) = self.peers.get_mut(index).and_then(|peer| peer.session.poll_action()) else {
                break;
            };
            self.act(index, action);
        }
        self.peer_sends(index);
        self.peer_closes(index);
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        if peer.opened.is_none() && peer.session.is_open() {
            peer.opened = Some(now);
        }
        let next = peer.session.next_wakeup().map(|next| peer.clock.when(next).max(now));
        if let Some(next) = next
            && peer.tick.is_none_or(|tick| next < tick)
        {
            peer.tick = Some(next);
            self.at(next, Happening::PeerTicks { peer: index });
        }
    }

    fn act(&mut self, index: PeerIndex, action: Action) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        match action {
            Action::Send(frame) if peer.link.is_some() => peer.pump.push_back(frame),
            Action::Reply { number, message, end } => self.reply(index, number, message, end),
            Action::Serve(incoming) => self.serve(index, incoming),
            Action::Credit { serving, bytes } => self.work_credit(index, serving, bytes),
            Action::Abandoned { serving } => {
                self.trace.note(now, || peer.label(), || format!("{serving:?} is abandoned"));
                self.work_abandoned(index, serving);
            }
            Action::Delivery { serving, delivery } => {
                self.trace.note(now, || peer.label(), || format!("the answer of {serving:?}: {delivery:?}"));
                let receipt = peer.receipts.remove(&serving);
                self.desk_delivered(index, receipt, delivery == Delivery::Delivered);
            }
            Action::Opened(remote) => {
                self.trace.note(now, || peer.label(), || format!("connected to {}", remote.peer));
            }
            Action::Close(reason) => peer.closed = Some(reason),
            _ => {}
        }
    }

    /// Writes what waits, if the link takes it.
    pub(crate) fn peer_sends(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers.get(index) else { return };
        let Some(link) = peer.link else { return };
        if !self.takes(link, Way::Up) {
            return;
        }
        let Some(peer) = self.peers.get_mut(index) else { return };
        let frames: Vec<WireFrame> = peer.pump.drain(..).collect();
        for frame in frames {
            self.send(link, Way::Up, &frame);
        }
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.session.is_draining() && peer.closed.is_none() {
            let now = peer.clock.show(self.now);
            peer.session.handle(Event::Flushed, now);
            while let Some(action) = self.peers.get_mut(index).and_then(|peer| peer.session.poll_action()) {
                self.act(index, action);
            }
        }
    }

    /// Ends the link if the session has said so.
    fn peer_closes(&mut self, index: PeerIndex) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (Some(link), Some(reason)) = (peer.link, &peer.closed) else { return };
        let heard = !matches!(reason, CloseReason::Dead { .. });
        let takes = self.takes(link, Way::Up);
        let Some(peer) = self.peers.get_mut(index) else { return };
        let frames: Vec<WireFrame> = peer.pump.drain(..).collect();
        if heard && takes {
            for frame in frames {
                self.send(link, Way::Up, &frame);
            }
        }
        self.close(link, Way::Up);
        self.link_ended(index);
    }

    /// A life ends at once. Its hub is told, or not.
    pub(crate) fn peer_ends(&mut self, index: PeerIndex, silent: bool) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        peer.alive = false;
        self.trace.note(self.now, || peer.label(), || "the process ends".into());
        peer.works.clear();
        peer.receipts.clear();
        peer.desk = None;
        let readers = std::mem::take(&mut peer.readers);
        if let Some(link) = peer.link.take() {
            if silent {
                self.hold(link, Way::Up, Duration::MAX);
            } else {
                let kept = self.chance.below(11);
                self.cut_way(link, Way::Up, kept);
            }
        }
        for reader in readers.into_values() {
            self.caller_gone(reader);
        }
    }

    /// A life is told to end in good order.
    pub(crate) fn drain_peer(&mut self, index: PeerIndex, down: Duration) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| !peer.ending) else { return };
        peer.ending = true;
        let place = peer.place;
        self.peer_event(index, Event::Drain { reason: "update".into() });
        self.after(DRAIN, Happening::PeerEnds { peer: index });
        self.after(DRAIN + down, Happening::PeerStarts { place });
    }
}
