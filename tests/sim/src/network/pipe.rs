//! One direction of a link: the frames in flight, and when each arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::frame::Frame;
use edge_transport::link::Lane;
use tokio::time::Instant;

use crate::plan::LinkProfile;
use crate::rng::Rng;

/// What is in flight.
#[derive(Debug)]
pub(super) enum Cargo {
    Frame(Bytes, Option<Box<Frame>>),
    /// The link's end in good order.
    End,
    /// The link's end without a word.
    Broken,
}

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    next: u64,
    pub(super) flights: BTreeMap<(Instant, u64), (Lane, Cargo)>,
    /// When the last frame of a lane arrives; where calls do not overtake each other, of any lane.
    last: BTreeMap<Lane, Instant>,
    /// Nothing arrives before the first frame, the hello.
    first: Option<Instant>,
    /// Nothing arrives before this; `Some(None)`: ever.
    pub(super) held: Option<Option<Instant>>,
    pub(super) stalled: Option<Instant>,
    /// The end is in flight or has arrived.
    pub(super) ended: bool,
    /// The sender has nothing more to say.
    pub(super) spent: bool,
}

impl Pipe {
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.held.is_some_and(|until| until.is_none_or(|until| until > now))
    }

    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.stalled.is_some_and(|until| until > now)
    }

    pub(super) fn fly(
        &mut self,
        now: Instant,
        lane: Lane,
        cargo: Cargo,
        profile: &LinkProfile,
        rng: &mut Rng,
    ) {
        if self.ended {
            return;
        }
        let lane = if profile.lanes { lane } else { Lane::Control };
        let mut at = now + profile.latency + rng.time(Duration::ZERO, profile.jitter);
        if matches!(cargo, Cargo::Frame(..)) {
            at = at.max(self.last.get(&lane).copied().unwrap_or(now));
            at = at.max(*self.first.get_or_insert(at));
        } else {
            // The end arrives after everything else.
            at = at.max(self.last.values().max().copied().unwrap_or(now));
            self.ended = true;
        }
        self.last.insert(lane, at);
        self.flights.insert((at, self.next), (lane, cargo));
        self.next += 1;
    }

    /// Cuts: `kept` of ten frames in flight arrive, the first ones of each lane; then the end.
    pub(super) fn cut(&mut self, now: Instant, kept: usize, profile: &LinkProfile, rng: &mut Rng) {
        let mut broken: Vec<Lane> = Vec::new();
        self.flights.retain(|_, (lane, _)| {
            let lost = broken.contains(lane) || rng.below(10) >= kept;
            if lost {
                broken.push(*lane);
            }
            !lost
        });
        self.ended = false;
        self.fly(now, Lane::Control, Cargo::Broken, profile, rng);
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
