//! Which ends of calls have come, for the peers that answered them: they keep their answers until they know.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::frame::MAX_ENDED;
use crate::name::{PeerId, ServiceName};

/// Ends that are told in one frame. A frame for each would cost as much as a call's own.
const BATCH: usize = 64;
/// How long an end waits for others.
const DELAY: Duration = Duration::from_millis(500);
/// Services of peers with ends that nobody has been told. What goes beyond it is not told at all, and ages out at the peer.
const MAX_SERVICES: usize = 1024;

/// Ends of calls that their targets have not been told.
#[derive(Debug, Default)]
pub(super) struct Acks {
    waiting: BTreeMap<(PeerId, ServiceName), Ends>,
    due: Option<Instant>,
}

#[derive(Debug, Default)]
struct Ends {
    numbers: Vec<u64>,
    /// So many of them, from the first on, need not go with a request any more.
    passed: usize,
}

impl Acks {
    /// The end of a call has come. Returns what is to be told now.
    pub(super) fn note(
        &mut self,
        target: PeerId,
        service: ServiceName,
        number: u64,
        now: Instant,
    ) -> Option<Vec<u64>> {
        if self.waiting.len() >= MAX_SERVICES {
            return None;
        }
        let ends = self.waiting.entry((target, service)).or_default();
        ends.numbers.push(number);
        if ends.numbers.len() >= BATCH {
            return Some(std::mem::take(ends).numbers);
        }
        self.due.get_or_insert(now + DELAY);
        None
    }

    /// What goes along with a request to this service: the latest ends, each once. They are told again in a frame of their own, since
    /// a hub or a target may not know of this way.
    pub(super) fn with_request(&mut self, target: &PeerId, service: &ServiceName) -> Vec<u64> {
        if self.due.is_none() {
            return Vec::new();
        }
        let Some(ends) = self.waiting.get_mut(&(target.clone(), service.clone())) else { return Vec::new() };
        let first = ends.passed.max(ends.numbers.len().saturating_sub(MAX_ENDED));
        ends.passed = ends.numbers.len();
        ends.numbers.get(first..).unwrap_or_default().to_vec()
    }

    pub(super) const fn next_wakeup(&self) -> Option<Instant> {
        self.due
    }

    /// Everything that is to be told, if its time has come.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(PeerId, ServiceName, Vec<u64>)> {
        if self.due.is_none_or(|due| due > now) { Vec::new() } else { self.all() }
    }

    /// Everything that is to be told.
    pub(super) fn all(&mut self) -> Vec<(PeerId, ServiceName, Vec<u64>)> {
        self.due = None;
        let told = std::mem::take(&mut self.waiting).into_iter();
        told.filter(|(_, ends)| !ends.numbers.is_empty())
            .map(|((target, service), ends)| (target, service, ends.numbers))
            .collect()
    }
}
