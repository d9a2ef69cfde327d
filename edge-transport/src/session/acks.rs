//! Which ends of calls have come, for the peers that answered them: they keep their answers until they know.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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
    waiting: BTreeMap<(PeerId, ServiceName), Vec<u64>>,
    due: Option<Instant>,
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
        let numbers = self.waiting.entry((target, service)).or_default();
        numbers.push(number);
        if numbers.len() >= BATCH {
            return Some(std::mem::take(numbers));
        }
        self.due.get_or_insert(now + DELAY);
        None
    }

    pub(super) const fn next_wakeup(&self) -> Option<Instant> {
        self.due
    }

    /// Everything that is to be told, if its time has come.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(PeerId, ServiceName, Vec<u64>)> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.due = None;
        let told = std::mem::take(&mut self.waiting).into_iter();
        told.filter(|(_, numbers)| !numbers.is_empty())
            .map(|((target, service), numbers)| (target, service, numbers))
            .collect()
    }
}
