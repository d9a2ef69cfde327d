//! Links: frames on their way, and what can happen to them there.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use edge_transport::frame::{Kind, Lane, WireFrame, decode};

use crate::plan::{Roads, Way};
use crate::trace::Trace;
use crate::world::{Happening, PeerIndex, World};

pub(crate) type LinkIndex = usize;

/// Something on its way.
#[derive(Debug, Clone)]
struct Flight {
    lane: Lane,
    at: Duration,
    /// `None`: the link's end.
    frame: Option<Bytes>,
}

/// One way of a link.
#[derive(Debug)]
struct Direction {
    next: u64,
    flights: BTreeMap<u64, Flight>,
    /// When the last frame of a lane arrives; where lanes do not overtake each other, of any lane.
    last: BTreeMap<Lane, Duration>,
    /// Nothing arrives before this.
    held: Duration,
    /// Nothing is taken before this.
    stalled: Duration,
    /// Nothing is taken any more.
    ended: bool,
}

impl Direction {
    const fn new() -> Self {
        Self {
            next: 0,
            flights: BTreeMap::new(),
            last: BTreeMap::new(),
            held: Duration::ZERO,
            stalled: Duration::ZERO,
            ended: false,
        }
    }
}

/// A link between a peer and the hub.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerIndex,
    /// Which life of the hub it leads to.
    pub(crate) hub: u32,
    roads: Roads,
    up: Direction,
    down: Direction,
}

impl Link {
    pub(crate) const fn new(peer: PeerIndex, hub: u32, roads: Roads) -> Self {
        Self { peer, hub, roads, up: Direction::new(), down: Direction::new() }
    }

    const fn way(&mut self, way: Way) -> &mut Direction {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

impl World {
    /// Whether a link takes frames on this way now.
    pub(crate) fn takes(&mut self, link: LinkIndex, way: Way) -> bool {
        let now = self.now;
        self.links.get_mut(&link).is_some_and(|link| link.way(way).stalled <= now)
    }

    /// Puts a frame on its way.
    pub(crate) fn send(&mut self, link: LinkIndex, way: Way, frame: &WireFrame) {
        let mut bytes = BytesMut::with_capacity(frame.len());
        bytes.extend_from_slice(&frame.head);
        bytes.extend_from_slice(&frame.body);
        let hostile = self.plan.hostile;
        if self.now < self.plan.calm && !hostile.is_none() && self.has_greeted(link, way) {
            if self.chance.happens(hostile.twisted) && !bytes.is_empty() {
                let at = self.chance.below(bytes.len());
                bytes[at] ^= 1 << self.chance.below(8);
            }
            if self.chance.happens(hostile.garbled) {
                bytes.truncate(self.chance.below(frame.head.len()));
            }
            if self.chance.happens(hostile.doubled) {
                self.fly(link, way, frame.lane, Some(bytes.clone().freeze()));
            }
        }
        self.fly(link, way, frame.lane, Some(bytes.freeze()));
    }

    fn has_greeted(&mut self, link: LinkIndex, way: Way) -> bool {
        self.links.get_mut(&link).is_some_and(|link| link.way(way).next > 0)
    }

    /// One end has closed a link in good order: the other end finds what was sent before, and then the end.
    pub(crate) fn close(&mut self, link: LinkIndex, way: Way) {
        self.fly(link, way, Lane::Control, None);
    }

    fn fly(&mut self, index: LinkIndex, way: Way, lane: Lane, frame: Option<Bytes>) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&index) else { return };
        let roads = link.roads;
        let direction = link.way(way);
        if direction.ended {
            return;
        }
        direction.ended = frame.is_none();
        let key = if roads.lanes { lane } else { Lane::Control };
        let mut at = now + roads.latency + self.chance.time(Duration::ZERO, roads.jitter);
        at = at.max(direction.last.get(&key).copied().unwrap_or_default());
        if frame.is_none() {
            // The end comes after everything.
            at = at.max(direction.last.values().max().copied().unwrap_or_default());
        } else if direction.next > 0 {
            // The first frame is the hello, which nothing overtakes.
            at = at.max(direction.last.get(&Lane::Call(0)).copied().unwrap_or_default());
        } else {
            direction.last.insert(Lane::Call(0), at);
        }
        direction.last.insert(key, at);
        let flight = direction.next;
        direction.next += 1;
        direction.flights.insert(flight, Flight { lane: key, at, frame });
        self.at(at, Happening::Arrives { link: index, way, flight });
    }

    /// Something arrives, if it has not been lost and nothing holds it up.
    pub(crate) fn arrives(&mut self, index: LinkIndex, way: Way, flight: u64) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&index) else { return };
        let peer = link.peer;
        let direction = link.way(way);
        if direction.held > now {
            return;
        }
        let Some(arrived) = direction.flights.remove(&flight) else { return };
        match (way, arrived.frame) {
            (Way::Up, Some(frame)) => self.hub_received(index, frame),
            (Way::Up, None) => self.hub_lost(index),
            (Way::Down, Some(frame)) => self.peer_received(peer, index, frame),
            (Way::Down, None) => self.peer_lost(peer, index),
        }
    }

    /// Holds up what is on its way and what will be, until a moment or for ever.
    pub(crate) fn hold(&mut self, index: LinkIndex, way: Way, until: Duration) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let direction = link.way(way);
        direction.held = direction.held.max(until);
        let until = direction.held;
        if until < Duration::MAX {
            self.at(until, Happening::Released { link: index, way });
        }
    }

    /// What was held up comes, in its order.
    pub(crate) fn released(&mut self, index: LinkIndex, way: Way) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&index) else { return };
        let direction = link.way(way);
        if direction.held > now {
            return;
        }
        let due: Vec<u64> = direction
            .flights
            .iter()
            .filter(|(_, flight)| flight.at <= now)
            .map(|(number, _)| *number)
            .collect();
        for flight in due {
            self.at(now, Happening::Arrives { link: index, way, flight });
        }
    }

    /// A way takes nothing until a moment.
    pub(crate) fn stall(&mut self, index: LinkIndex, way: Way, until: Duration) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let direction = link.way(way);
        direction.stalled = direction.stalled.max(until);
        let until = direction.stalled;
        self.at(until, Happening::TakesAgain { link: index, way });
    }

    /// Ends a link at both ends. Of what is on its way so many of ten frames arrive, the first ones of each lane.
    pub(crate) fn cut(&mut self, index: LinkIndex, kept: usize) {
        for way in [Way::Up, Way::Down] {
            self.cut_way(index, way, kept);
        }
    }

    /// Ends one way of a link.
    pub(crate) fn cut_way(&mut self, index: LinkIndex, way: Way, kept: usize) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let direction = link.way(way);
        let mut broken: Vec<Lane> = Vec::new();
        let chance = &mut self.chance;
        direction.flights.retain(|_, flight| {
            let lost = broken.contains(&flight.lane) || chance.below(10) >= kept;
            if lost {
                broken.push(flight.lane);
            }
            !lost
        });
        direction.ended = false;
        self.fly(index, way, Lane::Control, None);
    }

    /// The links of a peer's lives.
    pub(crate) fn links_of(&self, place: usize) -> Vec<LinkIndex> {
        let of = |link: &Link| self.peers.get(link.peer).is_some_and(|peer| peer.place == place);
        self.links.iter().filter(|(_, link)| of(link)).map(|(index, _)| *index).collect()
    }

    /// Frees links that neither end uses any more.
    pub(crate) fn forget_links(&mut self) {
        let Self { links, peers, hub, .. } = self;
        links.retain(|index, link| {
            let at_peer = peers.get(link.peer).is_some_and(|peer| peer.link == Some(*index));
            let at_hub = hub.as_ref().is_some_and(|hub| hub.connections.contains_key(index));
            at_peer || at_hub
        });
    }
}

/// Pings and pongs without end would hide the rest of a trace.
fn is_liveness(bytes: &Bytes) -> bool {
    let kind = decode(bytes.clone(), usize::MAX).map(|frame| frame.kind);
    matches!(kind, Ok(Kind::Ping { .. } | Kind::Pong { .. }))
}

/// What a frame says.
fn describe(bytes: &Bytes) -> String {
    match decode(bytes.clone(), usize::MAX) {
        Ok(frame) => {
            let from = frame.source.as_ref().map_or("-", |name| name.as_str());
            let to = frame.target.as_ref().map_or("-", |name| name.as_str());
            format!("[{from} > {to}] {:?}", frame.kind)
        }
        Err(error) => format!("no frame: {error}"),
    }
}

impl World {
    /// Notes a frame that has arrived.
    pub(crate) fn note_arrival(trace: &mut Trace, now: Duration, who: &str, bytes: &Bytes) {
        if trace.is_on() && !is_liveness(bytes) {
            trace.note(now, || who.to_owned(), || format!("got {}", describe(bytes)));
        }
        trace.mark(bytes.len() as u64);
    }
}
