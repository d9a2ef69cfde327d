//! One way of a link: what is on its way, and when it arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::frame::Frame;
use edge_transport::link::Lane;
use tokio::time::Instant;

use crate::chance::Chance;
use crate::plan::Road;

/// What is on its way.
#[derive(Debug)]
pub(super) enum Cargo {
    Frame(Bytes, Option<Box<Frame>>),
    /// The link's end in good order.
    End,
    /// The link's end without a word.
    Broken,
}

/// One way of a link.
#[derive(Debug, Default)]
pub(super) struct Direction {
    next: u64,
    pub(super) flights: BTreeMap<(Instant, u64), (Lane, Cargo)>,
    /// When the last frame of a lane arrives; where calls do not overtake each other, of any lane.
    last: BTreeMap<Lane, Instant>,
    /// Nothing arrives before the first frame, the hello.
    first: Option<Instant>,
    /// Nothing arrives before this; `Some(None)`: ever.
    pub(super) held: Option<Option<Instant>>,
    pub(super) stalled: Option<Instant>,
    /// The end is on its way, or has come.
    pub(super) ended: bool,
    /// The sender has nothing more to say.
    pub(super) spent: bool,
}

impl Direction {
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.held.is_some_and(|until| until.is_none_or(|until| until > now))
    }

    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.stalled.is_some_and(|until| until > now)
    }

    pub(super) fn fly(&mut self, now: Instant, lane: Lane, cargo: Cargo, road: &Road, chance: &mut Chance) {
        if self.ended {
            return;
        }
        let lane = if road.lanes { lane } else { Lane::Control };
        let mut at = now + road.latency + chance.time(Duration::ZERO, road.jitter);
        if matches!(cargo, Cargo::Frame(..)) {
            at = at.max(self.last.get(&lane).copied().unwrap_or(now));
            at = at.max(*self.first.get_or_insert(at));
        } else {
            // The end comes after everything.
            at = at.max(self.last.values().max().copied().unwrap_or(now));
            self.ended = true;
        }
        self.last.insert(lane, at);
        self.flights.insert((at, self.next), (lane, cargo));
        self.next += 1;
    }

    /// Of what is on its way so many of ten frames arrive, the first ones of each lane; then the end.
    pub(super) fn cut(&mut self, now: Instant, kept: usize, road: &Road, chance: &mut Chance) {
        let mut broken: Vec<Lane> = Vec::new();
        self.flights.retain(|_, (lane, _)| {
            let lost = broken.contains(lane) || chance.below(10) >= kept;
            if lost {
                broken.push(*lane);
            }
            !lost
        });
        self.ended = false;
        self.fly(now, Lane::Control, Cargo::Broken, road, chance);
    }

    /// When something is to be done next, without a command.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let arrives = match self.held {
            Some(None) => None,
            Some(Some(until)) if until > now => Some(until),
            _ => self.flights.keys().next().map(|(at, _)| *at),
        };
        arrives.into_iter().chain(self.stalled.filter(|until| *until > now)).min()
    }
}
