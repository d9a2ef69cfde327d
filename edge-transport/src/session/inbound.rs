//! Calls of other peers that services of this peer process.

use super::SessionSettings;
use super::used_numbers::UsedNumbers;
use crate::fair_share::FairShare;
use crate::frame::{Request, cost};
use crate::id_map::IdMap;
use crate::name::PeerId;

/// Identifies an inbound call within this process. Never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboundCallId(u64);

#[derive(Debug)]
pub(super) struct InboundCall {
    /// The call's number on its link.
    pub(super) number: u64,
    pub(super) lane: u64,
    /// Whether replies were sent on the lane, but not the last one.
    pub(super) lane_open: bool,
    /// Whether the requester waits for the response on the current link.
    has_caller: bool,
    next_sequence: u64,
    /// Whether the requester has a deadline.
    has_deadline: bool,
    /// Remaining credit in bytes.
    balance: i64,
    pub(super) owner: PeerId,
    request_bytes: usize,
}

impl InboundCall {
    pub(super) const fn has_credit(&self) -> bool {
        self.balance > 0
    }

    pub(super) const fn spend(&mut self, message: &bytes::Bytes) {
        self.balance = self.balance.saturating_sub_unsigned(cost(message));
    }

    pub(super) const fn has_caller(&self) -> bool {
        self.has_caller
    }

    /// Whether the requester waits: for the first reply, or until its deadline. A watch without deadline may be silent for days.
    const fn waits(&self) -> bool {
        self.has_caller && (self.has_deadline || self.next_sequence == 1)
    }
}

/// How to handle a received request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The request is new.
    New,
    /// A service is processing it.
    Running,
    /// The number was used by a call that has ended, or by a cancel that overtook its request.
    Used,
}

#[derive(Debug)]
pub(super) struct InboundCalls {
    running: IdMap<InboundCallId, InboundCall>,
    /// The calls of the current link that have a waiting caller, by number.
    by_number: IdMap<u64, InboundCallId>,
    /// How many of them have a requester that waits.
    waiting: usize,
    used: UsedNumbers,
    next: u64,
    /// The calls in progress, with or without a waiting caller. The owner of a call is the caller's name without names below
    /// it, which one certificate can take without limit.
    calls: FairShare<PeerId>,
    /// The bytes of their requests.
    bytes: FairShare<PeerId>,
}

impl InboundCalls {
    pub(super) fn new(settings: &SessionSettings) -> Self {
        Self {
            running: IdMap::default(),
            by_number: IdMap::default(),
            waiting: 0,
            used: UsedNumbers::default(),
            next: 0,
            calls: FairShare::new(settings.max_inbound_calls),
            bytes: FairShare::new(settings.max_inbound_bytes),
        }
    }

    /// Calls in progress, with or without a waiting caller.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    /// Returns why there is no room for a request of this owner, if so.
    fn full(&self, peer: &PeerId, owner: &PeerId, request: &Request) -> Option<String> {
        let full = |shared: &FairShare<PeerId>, what: &str| {
            let (found, own, max) = (shared.used(), shared.held_by(owner), shared.max());
            format!(
                "{peer} has {found} {what} in progress, {own} of {owner}; at most {max} are allowed, and for each caller as \
                 many as are then unused"
            )
        };
        if !self.calls.has_room(owner, 1) {
            Some(full(&self.calls, "calls"))
        } else if self.bytes.used() > 0 && !self.bytes.has_room(owner, request_bytes(request)) {
            Some(full(&self.bytes, "bytes of requests"))
        } else {
            None
        }
    }

    /// Calls with a waiting caller.
    pub(super) fn with_caller(&self) -> usize {
        self.by_number.len()
    }

    /// Whether a requester waits.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the number of the call's next reply, which is being sent.
    pub(super) fn next_sequence(&mut self, inbound: InboundCallId) -> u64 {
        let Some(call) = self.running.get_mut(&inbound) else { return 0 };
        let (waited, sequence) = (call.waits(), call.next_sequence);
        call.next_sequence += 1;
        self.waiting -= usize::from(waited && !call.waits());
        sequence
    }

    /// Marks the number of a request as used on the link, and returns how to handle the request.
    pub(super) fn admission(&mut self, number: u64) -> Admission {
        match self.used.insert(number) {
            true => Admission::New,
            false if self.by_number.contains_key(&number) => Admission::Running,
            false => Admission::Used,
        }
    }

    /// Begins a call to this peer, or returns why there is no room for its request.
    pub(super) fn open(
        &mut self,
        peer: &PeerId,
        owner: &PeerId,
        number: u64,
        lane: u64,
        request: &Request,
    ) -> Result<InboundCallId, String> {
        if let Some(full) = self.full(peer, owner, request) {
            return Err(full);
        }
        self.next += 1;
        let inbound = InboundCallId(self.next);
        let request_bytes = request_bytes(request);
        self.calls.take(owner, 1);
        self.bytes.take(owner, request_bytes);
        let call = InboundCall {
            number,
            lane,
            lane_open: false,
            has_caller: true,
            next_sequence: 1,
            has_deadline: request.remaining.is_some(),
            balance: i64::try_from(request.credit).unwrap_or(i64::MAX),
            owner: owner.clone(),
            request_bytes,
        };
        self.running.insert(inbound, call);
        self.by_number.insert(number, inbound);
        self.waiting += 1;
        Ok(inbound)
    }

    pub(super) fn running(&mut self, inbound: InboundCallId) -> Option<&mut InboundCall> {
        self.running.get_mut(&inbound)
    }

    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> Option<InboundCallId> {
        let inbound = *self.by_number.get(&number)?;
        let call = self.running.get_mut(&inbound)?;
        call.balance = call.balance.saturating_add_unsigned(bytes);
        Some(inbound)
    }

    /// Handles a cancel of the requester. The service may continue. A request that has not arrived yet is never started.
    pub(super) fn cancel(&mut self, number: u64) -> Option<InboundCallId> {
        self.used.insert(number);
        let inbound = *self.by_number.get(&number)?;
        self.abandon(inbound).then_some(inbound)
    }

    /// Marks the call as having no caller. Returns whether it had one.
    pub(super) fn abandon(&mut self, inbound: InboundCallId) -> bool {
        let Some(call) = self.running.get_mut(&inbound).filter(|call| call.has_caller) else { return false };
        self.waiting -= usize::from(call.waits());
        call.has_caller = false;
        self.by_number.remove(&call.number);
        true
    }

    /// Handles the loss of the link and discards its numbers. Returns the calls that had a waiting caller, in order.
    pub(super) fn link_lost(&mut self) -> Vec<InboundCallId> {
        self.used = UsedNumbers::default();
        self.waiting = 0;
        let mut left: Vec<InboundCallId> = std::mem::take(&mut self.by_number).into_values().collect();
        left.sort_unstable();
        for inbound in &left {
            if let Some(call) = self.running.get_mut(inbound) {
                (call.has_caller, call.lane_open) = (false, false);
            }
        }
        left
    }

    /// Removes a call whose service has ended.
    pub(super) fn end(&mut self, inbound: InboundCallId) {
        self.abandon(inbound);
        if let Some(call) = self.running.remove(&inbound) {
            self.calls.give_back(&call.owner, 1);
            self.bytes.give_back(&call.owner, call.request_bytes);
        }
    }
}

fn request_bytes(request: &Request) -> usize {
    request.body.len() + request.metadata.len()
}
