//! One direction of a link: the frames in flight, and when each arrives.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::Frame;
use edge_transport::link::Lane;
use tokio::time::Instant;

use crate::plan::LinkProfile;
use crate::rng::Rng;

/// A frame in flight, or the end of a link.
#[derive(Debug)]
pub(super) enum Cargo {
    Frame(Bytes, Option<Box<Frame>>),
    /// The link was closed.
    End,
    /// The link was lost without a close.
    Broken,
}

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    next: u64,
    pub(super) flights: BTreeMap<(Instant, u64), (Lane, Cargo)>,
    /// The arrival of the last frame of each lane. There is one lane if calls do not overtake each other.
    last: BTreeMap<Lane, Instant>,
    /// The arrival of the first frame, the hello. No other frame arrives before it.
    first: Option<Instant>,
    /// No frame arrives before this instant; `Some(None)`: no frame ever arrives.
    pub(super) held: Option<Option<Instant>>,
    pub(super) stalled: Option<Instant>,
    /// The end is in flight or has arrived.
    pub(super) ended: bool,
    /// The sender has ended.
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

    /// Cuts the link: `kept` of ten frames in flight arrive, the first ones of each lane, and then the end.
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

    /// Returns the instant at which the pipe has to be polled next, without a command.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let arrives = match self.held {
            Some(None) => None,
            Some(Some(until)) if until > now => Some(until),
            _ => self.flights.keys().next().map(|(at, _)| *at),
        };
        arrives.into_iter().chain(self.stalled.filter(|until| *until > now)).min()
    }
}
