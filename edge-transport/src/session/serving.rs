//! The calls of others that this peer works on.

use super::used::UsedNumbers;
use crate::counted::ByCount;
use crate::frame::{Request, cost};

/// A call that this peer works on: a number of this process, never on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServingId(u64);

#[derive(Debug)]
pub(super) struct Serving {
    /// The call's number on the link that it came from.
    pub(super) number: u64,
    pub(super) lane: u64,
    /// Replies have gone out on the lane, and the last has not.
    pub(super) lane_open: bool,
    /// The requester waits, on the link in use.
    wanted: bool,
    next_sequence: u64,
    /// Credit that is left.
    balance: i64,
    request_bytes: usize,
}

impl Serving {
    pub(super) const fn next_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    pub(super) const fn has_credit(&self) -> bool {
        self.balance > 0
    }

    pub(super) const fn spend(&mut self, message: &bytes::Bytes) {
        self.balance = self.balance.saturating_sub_unsigned(cost(message));
    }

    pub(super) const fn is_wanted(&self) -> bool {
        self.wanted
    }
}

/// What to do with a request that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new.
    New,
    /// A service works on it.
    Running,
    /// Its number was used before, by a call that has ended or by a cancel that overtook its request.
    Used,
}

#[derive(Debug, Default)]
pub(super) struct ServingTable {
    running: ByCount<ServingId, Serving>,
    /// The calls of the link in use that somebody waits for.
    by_number: ByCount<u64, ServingId>,
    used: UsedNumbers,
    next: u64,
    bytes: usize,
}

impl ServingTable {
    /// Calls that a service works on, whether or not somebody waits.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Bytes of the requests that services work on.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls that somebody waits for.
    pub(super) fn wanted(&self) -> usize {
        self.by_number.len()
    }

    /// Uses the number of a request on the link.
    pub(super) fn admission(&mut self, number: u64) -> Admission {
        match self.used.take(number) {
            true => Admission::New,
            false if self.by_number.contains_key(&number) => Admission::Running,
            false => Admission::Used,
        }
    }

    pub(super) fn open(&mut self, number: u64, lane: u64, request: &Request) -> ServingId {
        self.next += 1;
        let serving = ServingId(self.next);
        let request_bytes = request.body.len() + request.metadata.len();
        let call = Serving {
            number,
            lane,
            lane_open: false,
            wanted: true,
            next_sequence: 1,
            balance: i64::try_from(request.credit).unwrap_or(i64::MAX),
            request_bytes,
        };
        self.running.insert(serving, call);
        self.by_number.insert(number, serving);
        self.bytes += request_bytes;
        serving
    }

    pub(super) fn running(&mut self, serving: ServingId) -> Option<&mut Serving> {
        self.running.get_mut(&serving)
    }

    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> Option<ServingId> {
        let serving = *self.by_number.get(&number)?;
        let call = self.running.get_mut(&serving)?;
        call.balance = call.balance.saturating_add_unsigned(bytes);
        Some(serving)
    }

    /// The requester does not wait for this call; the service may go on. A request that is still on its way never opens.
    pub(super) fn stop_waiting(&mut self, number: u64) -> Option<ServingId> {
        self.used.take(number);
        let serving = *self.by_number.get(&number)?;
        self.abandon(serving).then_some(serving)
    }

    /// Nobody waits for this call. Whether somebody waited before.
    pub(super) fn abandon(&mut self, serving: ServingId) -> bool {
        let Some(call) = self.running.get_mut(&serving).filter(|call| call.wanted) else { return false };
        call.wanted = false;
        self.by_number.remove(&call.number);
        true
    }

    /// The link is gone, and its numbers with it. Returns the calls that somebody waited for, in their order.
    pub(super) fn link_lost(&mut self) -> Vec<ServingId> {
        self.used = UsedNumbers::default();
        let mut left: Vec<ServingId> = std::mem::take(&mut self.by_number).into_values().collect();
        left.sort_unstable();
        for serving in &left {
            if let Some(call) = self.running.get_mut(serving) {
                (call.wanted, call.lane_open) = (false, false);
            }
        }
        left
    }

    /// The service has ended.
    pub(super) fn end(&mut self, serving: ServingId) {
        self.abandon(serving);
        if let Some(call) = self.running.remove(&serving) {
            self.bytes -= call.request_bytes;
        }
    }
}
