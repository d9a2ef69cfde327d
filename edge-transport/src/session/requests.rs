//! The calls that this peer has made and still waits for.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use crate::frame::{CallId, End, Reply, cost};
use crate::name::PeerId;

/// How many calls that are no longer open are remembered, so that stray replies are not answered again and again.
const LEFT_BOUND: usize = 256;

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
    /// No such call is open; the other end should be told.
    Unknown,
    /// No such call is open; the other end was told.
    Left,
    /// It does not come from the call's target.
    WrongSource,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    open: HashMap<u64, Open>,
    deadlines: BTreeSet<(Instant, u64)>,
    left: VecDeque<CallId>,
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

    /// Takes a call out. The target is told by the caller of this function where that is needed.
    pub(super) fn close(&mut self, number: u64) -> Option<PeerId> {
        let open = self.open.remove(&number)?;
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        Some(open.target)
    }

    /// Remembers that the other end has been told that nobody waits for this call.
    pub(super) fn leave(&mut self, id: CallId) {
        if self.left.len() == LEFT_BOUND {
            self.left.pop_front();
        }
        self.left.push_back(id);
    }

    pub(super) fn drain(&mut self) -> Vec<u64> {
        self.deadlines.clear();
        let mut numbers: Vec<u64> = self.open.drain().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The next call whose time is over.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, number)| *number)
    }

    /// More credit; returns the target to tell.
    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> Option<&PeerId> {
        let open = self.open.get_mut(&number)?;
        open.balance = open.balance.saturating_add_unsigned(bytes);
        Some(&open.target)
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, id: CallId, reply: &Reply) -> Verdict {
        let Some(open) = self.open.get_mut(&id.number) else {
            return if self.left.contains(&id) { Verdict::Left } else { Verdict::Unknown };
        };
        let made_on_the_way =
            reply.sequence == 0 && reply.message.is_none() && matches!(reply.end, Some(End::Failed(_)));
        match source {
            None if made_on_the_way => return Verdict::Deliver,
            Some(source) if *source == open.target => {}
            _ => return Verdict::WrongSource,
        }
        if made_on_the_way {
            return Verdict::Deliver;
        }
        if reply.sequence < open.next_sequence {
            return Verdict::Duplicate;
        }
        if reply.sequence > open.next_sequence {
            let expected = open.next_sequence;
            return Verdict::Broken(format!("reply {} came where {expected} was due", reply.sequence));
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
