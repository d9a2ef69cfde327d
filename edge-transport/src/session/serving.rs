//! The calls of others that this peer works on.

use std::collections::{HashMap, VecDeque};

use crate::frame::{CallId, Request, cost};
use crate::name::PeerId;

/// How many ended calls are remembered, so that a request that comes twice is not executed twice.
const ENDED_BOUND: usize = 1024;

/// A call that this peer works on: a number of this process, never on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServingId(u64);

type Key = (PeerId, CallId);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Running(ServingId),
    Ended,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub(super) source: PeerId,
    pub(super) id: CallId,
    pub(super) lane: u64,
    /// Somebody waits for the answer.
    pub(super) wanted: bool,
    /// Replies have gone out on the lane, and the last has not.
    pub(super) lane_open: bool,
    next_sequence: u64,
    balance: i64,
    request_bytes: usize,
}

impl Serving {
    pub(super) fn next_sequence(&mut self) -> u64 {
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
}

#[derive(Debug, Default)]
pub(super) struct ServingTable {
    seen: HashMap<Key, Seen>,
    ended: VecDeque<Key>,
    running: HashMap<ServingId, Serving>,
    next: u64,
    wanted: usize,
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
    pub(super) const fn wanted(&self) -> usize {
        self.wanted
    }

    pub(super) fn knows(&self, source: &PeerId, id: CallId) -> bool {
        self.seen.contains_key(&(source.clone(), id))
    }

    pub(super) fn open(&mut self, source: PeerId, id: CallId, lane: u64, request: &Request) -> ServingId {
        self.next += 1;
        let serving = ServingId(self.next);
        let balance = i64::try_from(request.credit).unwrap_or(i64::MAX);
        self.seen.insert((source.clone(), id), Seen::Running(serving));
        let request_bytes = request.body.len() + request.metadata.len();
        let call = Serving {
            source,
            id,
            lane,
            wanted: true,
            lane_open: false,
            next_sequence: 1,
            balance,
            request_bytes,
        };
        self.running.insert(serving, call);
        self.wanted += 1;
        self.bytes += request_bytes;
        serving
    }

    pub(super) fn running(&mut self, serving: ServingId) -> Option<&mut Serving> {
        self.running.get_mut(&serving)
    }

    fn find(&self, source: &PeerId, id: CallId) -> Option<ServingId> {
        match self.seen.get(&(source.clone(), id)) {
            Some(Seen::Running(serving)) => Some(*serving),
            _ => None,
        }
    }

    pub(super) fn credit(&mut self, source: &PeerId, id: CallId, bytes: u64) -> Option<ServingId> {
        let serving = self.find(source, id)?;
        let call = self.running.get_mut(&serving)?;
        call.balance = call.balance.saturating_add_unsigned(bytes);
        call.wanted.then_some(serving)
    }

    /// Nobody waits for this call any more; the service goes on.
    pub(super) fn stop_waiting(&mut self, source: &PeerId, id: CallId) -> Option<ServingId> {
        let serving = self.find(source, id)?;
        self.abandon(serving).then_some(serving)
    }

    /// Whether somebody waited.
    pub(super) fn abandon(&mut self, serving: ServingId) -> bool {
        let Some(call) = self.running.get_mut(&serving) else { return false };
        let was_wanted = std::mem::replace(&mut call.wanted, false);
        self.wanted -= usize::from(was_wanted);
        was_wanted
    }

    /// Nobody waits for anything any more; the services go on.
    pub(super) fn abandon_all(&mut self) -> Vec<ServingId> {
        let mut abandoned: Vec<ServingId> =
            self.running.iter().filter(|(_, call)| call.wanted).map(|(serving, _)| *serving).collect();
        abandoned.sort_unstable();
        for serving in &abandoned {
            self.abandon(*serving);
        }
        abandoned
    }

    /// The service has ended.
    pub(super) fn end(&mut self, serving: ServingId) {
        let Some(call) = self.running.remove(&serving) else { return };
        self.wanted -= usize::from(call.wanted);
        self.bytes -= call.request_bytes;
        let key = (call.source, call.id);
        self.seen.insert(key.clone(), Seen::Ended);
        self.ended.push_back(key);
        if self.ended.len() > ENDED_BOUND
            && let Some(oldest) = self.ended.pop_front()
        {
            self.seen.remove(&oldest);
        }
    }
}
