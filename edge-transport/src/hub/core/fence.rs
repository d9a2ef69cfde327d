//! The latest lives of peers that are not connected.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::name::{Epoch, PeerId};

/// Longer than the waits between two attempts to connect, so that an older life that tries all the time finds the fence up;
/// short enough that a peer whose epoch is a clock that was set back is not locked out for long.
const KEPT: Duration = Duration::from_secs(120);

/// A bounded memory; the oldest entry goes first.
#[derive(Debug)]
pub(super) struct Fences {
    latest: HashMap<PeerId, (Epoch, Instant)>,
    order: VecDeque<(Instant, PeerId)>,
    max: usize,
}

impl Fences {
    pub(super) fn new(max: usize) -> Self {
        Self { latest: HashMap::new(), order: VecDeque::new(), max }
    }

    /// The link of this life has gone.
    pub(super) fn remember(&mut self, peer: PeerId, epoch: Epoch, now: Instant) {
        self.latest.insert(peer.clone(), (epoch, now));
        self.order.push_back((now, peer));
        self.forget(now);
    }

    /// The life that was connected after this one, if it was.
    pub(super) fn later_life(&mut self, peer: &PeerId, epoch: Epoch, now: Instant) -> Option<Epoch> {
        self.forget(now);
        self.latest.get(peer).map(|(latest, _)| *latest).filter(|latest| epoch < *latest)
    }

    fn forget(&mut self, now: Instant) {
        while let Some((since, _)) = self.order.front()
            && (now.saturating_duration_since(*since) >= KEPT || self.order.len() > self.max)
        {
            let Some((since, peer)) = self.order.pop_front() else { return };
            if self.latest.get(&peer).is_some_and(|(_, remembered)| *remembered == since) {
                self.latest.remove(&peer);
            }
        }
        if self.order.is_empty() && self.order.capacity() > 256 {
            (self.latest, self.order) = (HashMap::new(), VecDeque::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> PeerId {
        PeerId::new(name).unwrap()
    }

    #[test]
    fn an_older_life_is_known_until_the_time_is_over() {
        let (start, mut fences) = (Instant::now(), Fences::new(10));
        fences.remember(peer("a"), Epoch::new(5), start);
        let later = |fences: &mut Fences, epoch, after| {
            fences.later_life(&peer("a"), Epoch::new(epoch), start + Duration::from_secs(after))
        };
        assert_eq!(later(&mut fences, 4, 119), Some(Epoch::new(5)));
        assert_eq!(later(&mut fences, 5, 119), None);
        assert_eq!(later(&mut fences, 4, 120), None);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let (start, mut fences) = (Instant::now(), Fences::new(2));
        for (after, name) in [(0, "a"), (1, "b"), (2, "a"), (3, "c")] {
            fences.remember(peer(name), Epoch::new(5), start + Duration::from_secs(after));
        }
        let now = start + Duration::from_secs(4);
        let known = ["a", "b", "c"].map(|name| fences.later_life(&peer(name), Epoch::new(1), now).is_some());
        assert_eq!(known, [true, false, true]);
        assert!(fences.order.len() <= 2 && fences.latest.len() <= 2);
    }
}
