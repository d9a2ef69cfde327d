//! Which ends of calls have come, for the peers that answered them: they keep their answers until they know.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::frame::MAX_ENDED;
use crate::name::{PeerId, ServiceName};

/// Ends that are told in one frame, which goes right behind a request: a frame for each would cost as much as a call's own, and so
/// would a write for the frame alone.
const BATCH: usize = 64;
/// Ends that are told whether or not there is a request.
const MOST: usize = 4 * BATCH;
/// How long an end waits for others.
const DELAY: Duration = Duration::from_millis(500);
/// Services of peers with ends that nobody has been told. What goes beyond it waits for no others.
const MAX_SERVICES: usize = 1024;

/// Frames of ends that are told again if their link is lost.
const MAX_TOLD: usize = 32;

/// Ends of calls that their targets have not been told.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// The latest that was told, and when.
    told: VecDeque<(Instant, PeerId, ServiceName, Vec<u64>)>,
    waiting: BTreeMap<(PeerId, ServiceName), Ends>,
    due: Option<Instant>,
}

#[derive(Debug, Default)]
struct Ends {
    numbers: Vec<u64>,
    /// So many of them, from the first on, need not go with a request any more.
    passed: usize,
}

/// Ends that are told with a request.
#[derive(Debug, Default)]
pub(super) struct Along {
    /// The latest, each once. They are told again in a frame of their own, since a hub or a target may not know of this way.
    pub(super) in_it: Vec<u64>,
    /// Those for which a frame of their own is due.
    pub(super) behind_it: Option<Vec<u64>>,
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
        let key = (target, service);
        if self.waiting.len() >= MAX_SERVICES && !self.waiting.contains_key(&key) {
            return Some(vec![number]);
        }
        let ends = self.waiting.entry(key).or_default();
        ends.numbers.push(number);
        if ends.numbers.len() >= MOST {
            return Some(std::mem::take(ends).numbers);
        }
        self.due.get_or_insert(now + DELAY);
        None
    }

    /// What goes along with a request to this service.
    pub(super) fn with_request(&mut self, target: &PeerId, service: &ServiceName) -> Along {
        if self.due.is_none() {
            return Along::default();
        }
        let Some(ends) = self.waiting.get_mut(&(target.clone(), service.clone())) else {
            return Along::default();
        };
        let first = ends.passed.max(ends.numbers.len().saturating_sub(MAX_ENDED));
        ends.passed = ends.numbers.len();
        let in_it = ends.numbers.get(first..).unwrap_or_default().to_vec();
        let behind_it = (ends.numbers.len() >= BATCH).then(|| std::mem::take(ends).numbers);
        Along { in_it, behind_it }
    }

    /// These ends are told now.
    pub(super) fn told(&mut self, target: PeerId, service: ServiceName, numbers: Vec<u64>, now: Instant) {
        if self.told.len() == MAX_TOLD {
            self.told.pop_front();
        }
        self.told.push_back((now, target, service, numbers));
    }

    /// The link is lost, and may have been dead for so long: what was told meanwhile is to be told again.
    pub(super) fn untold(&mut self, dead_for: Duration, now: Instant) {
        for (at, target, service, numbers) in std::mem::take(&mut self.told) {
            if now.saturating_duration_since(at) <= dead_for {
                self.waiting.entry((target, service)).or_default().numbers.extend(numbers);
                self.due.get_or_insert(now + DELAY);
            }
        }
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
