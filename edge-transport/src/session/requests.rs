//! The calls that this peer has made and still waits for.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::counted::ByCount;
use crate::frame::{End, Reply, cost};
use crate::name::PeerId;

#[derive(Debug)]
struct Open {
    target: PeerId,
    next_sequence: u64,
    balance: i64,
    deadline: Option<Instant>,
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The caller gets it.
    Deliver,
    /// It was seen before.
    Duplicate,
    /// It ends the call, because it broke the protocol.
    Broken(String),
    /// No such call is open.
    Stray,
    /// It does not come from the call's target.
    WrongSource,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    open: ByCount<u64, Open>,
    deadlines: BTreeSet<(Instant, u64)>,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    pub(super) fn open(&mut self, number: u64, target: PeerId, credit: u64, deadline: Option<Instant>) {
        let balance = i64::try_from(credit).unwrap_or(i64::MAX);
        self.open.insert(number, Open { target, next_sequence: 1, balance, deadline });
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
    }

    /// Takes a call out. Whether it was open.
    pub(super) fn close(&mut self, number: u64) -> bool {
        let Some(open) = self.open.remove(&number) else { return false };
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        true
    }

    /// Takes all calls out, in their order.
    pub(super) fn close_all(&mut self) -> Vec<u64> {
        self.deadlines.clear();
        let mut numbers: Vec<u64> = std::mem::take(&mut self.open).into_keys().collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The next call whose time is over.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, number)| *number)
    }

    /// More credit. Whether the call is open.
    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> bool {
        let Some(open) = self.open.get_mut(&number) else { return false };
        open.balance = open.balance.saturating_add_unsigned(bytes);
        true
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, number: u64, reply: &Reply) -> Verdict {
        let Some(open) = self.open.get_mut(&number) else { return Verdict::Stray };
        let is_failure =
            reply.sequence == 0 && reply.message.is_none() && matches!(reply.end, Some(End::Failed(_)));
        match source {
            None if is_failure => return Verdict::Deliver,
            Some(source) if *source == open.target => {}
            _ => return Verdict::WrongSource,
        }
        if is_failure {
            return Verdict::Deliver;
        }
        if reply.sequence < open.next_sequence {
            return Verdict::Duplicate;
        }
        if reply.sequence > open.next_sequence {
            let (found, expected) = (reply.sequence, open.next_sequence);
            return Verdict::Broken(format!("reply {found} came where {expected} was due"));
        }
        open.next_sequence += 1;
        if let Some(message) = &reply.message {
            if open.balance <= 0 {
                return Verdict::Broken(format!("a message of {} bytes came without credit", message.len()));
            }
            open.balance = open.balance.saturating_sub_unsigned(cost(message));
        }
        Verdict::Deliver
    }
}
