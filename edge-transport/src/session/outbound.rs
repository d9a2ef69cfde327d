//! Open calls that this peer has made.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::frame::{End, Reply, cost};
use crate::id_map::IdMap;
use crate::name::PeerId;

#[derive(Debug)]
struct OutboundCall {
    target: PeerId,
    next_sequence: u64,
    balance: i64,
    deadline: Option<Instant>,
}

impl OutboundCall {
    /// Whether the caller waits: for the first reply, or until its deadline. A watch without deadline may be silent for days.
    const fn waits(&self) -> bool {
        self.deadline.is_some() || self.next_sequence == 1
    }
}

/// The result of checking a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplyCheck {
    /// The reply is valid: deliver it.
    Deliver,
    /// The reply was delivered before.
    Duplicate,
    /// The reply violates the protocol and ends the call.
    Violation(String),
    /// The call is not open.
    UnknownCall,
    /// The reply is not from the call's target.
    WrongSource,
}

#[derive(Debug, Default)]
pub(super) struct OutboundCalls {
    open: IdMap<u64, OutboundCall>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Calls whose callers wait.
    waiting: usize,
}

impl OutboundCalls {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether a caller waits.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    pub(super) fn open(&mut self, number: u64, target: PeerId, credit: u64, deadline: Option<Instant>) {
        let balance = i64::try_from(credit).unwrap_or(i64::MAX);
        self.open.insert(number, OutboundCall { target, next_sequence: 1, balance, deadline });
        self.waiting += 1;
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
    }

    /// Removes a call. Returns whether it was open.
    pub(super) fn close(&mut self, number: u64) -> bool {
        let Some(open) = self.open.remove(&number) else { return false };
        self.waiting -= usize::from(open.waits());
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        true
    }

    /// Removes all calls and returns their numbers in order.
    pub(super) fn close_all(&mut self) -> Vec<u64> {
        self.deadlines.clear();
        self.waiting = 0;
        let mut numbers: Vec<u64> = std::mem::take(&mut self.open).into_keys().collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns the first call whose deadline has passed.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, number)| *number)
    }

    /// Adds credit. Returns whether the call is open.
    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> bool {
        let Some(open) = self.open.get_mut(&number) else { return false };
        open.balance = open.balance.saturating_add_unsigned(bytes);
        true
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, number: u64, reply: &Reply) -> ReplyCheck {
        let Some(open) = self.open.get_mut(&number) else { return ReplyCheck::UnknownCall };
        let is_failure =
            reply.sequence == 0 && reply.message.is_none() && matches!(reply.end, Some(End::Failed(_)));
        match source {
            None if is_failure => return ReplyCheck::Deliver,
            Some(source) if *source == open.target => {}
            _ => return ReplyCheck::WrongSource,
        }
        if is_failure {
            return ReplyCheck::Deliver;
        }
        if reply.sequence < open.next_sequence {
            return ReplyCheck::Duplicate;
        }
        if reply.sequence > open.next_sequence {
            let (found, expected) = (reply.sequence, open.next_sequence);
            return ReplyCheck::Violation(format!("reply {found} received; expected {expected}"));
        }
        let waited = open.waits();
        open.next_sequence += 1;
        self.waiting -= usize::from(waited && !open.waits());
        if let Some(message) = &reply.message {
            if open.balance <= 0 {
                return ReplyCheck::Violation(format!("message of {} bytes without credit", message.len()));
            }
            open.balance = open.balance.saturating_sub_unsigned(cost(message));
        }
        ReplyCheck::Deliver
    }
}
