//! The calls that this peer has made and still waits for.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use crate::counted::ByCount;
use crate::frame::{CallId, End, Reason, Reply, Request, Resume, cost};
use crate::name::{PeerId, ServiceName};

/// How many calls that are no longer open are remembered, so that stray replies are not answered again and again.
const LEFT_BOUND: usize = 256;

/// Whether there is a way to a call's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// As far as is known.
    Attached,
    /// No: the call ends at this time if it is not resumed.
    Detached { until: Instant },
}

#[derive(Debug)]
struct Open {
    target: PeerId,
    service: ServiceName,
    next_sequence: u64,
    balance: i64,
    deadline: Option<Instant>,
    standing: Standing,
    resumable: bool,
    /// The last resumption asked for the replies from here on. A second gap at the same place asks for nothing.
    asked: u64,
    /// A resumption was asked for and not answered; before it the call would have waited until then.
    resuming: Option<Instant>,
    /// The request, while it may have to be sent again.
    kept: Option<Request>,
    /// How often it was sent again on this way.
    again: u8,
}

/// How often a request is sent again on one way. Frames that overtake each other can make it twice; a target that never knows the
/// call must not keep this peer busy.
const MAX_AGAIN: u8 = 3;

/// A call that is no longer open.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) target: PeerId,
    pub(super) service: ServiceName,
    pub(super) resumable: bool,
    /// It was resumed at least once.
    pub(super) resumed: bool,
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The caller gets it.
    Deliver,
    /// It was seen before, or will come again.
    Duplicate,
    /// An earlier reply is missing: the call is to be resumed.
    Gap,
    /// The way to the target is gone; the call waits for its resumption.
    Cut,
    /// The target is not back yet; the call waits for its resumption as long as before.
    StillCut(Instant),
    /// The target has never seen the request.
    Unknown,
    /// It ends the call, because it broke the protocol.
    Broken(String),
    /// No such call is open; the other end should be told.
    Stray,
    /// No such call is open; the other end was told.
    Left,
    /// It does not come from the call's target.
    WrongSource,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    open: ByCount<u64, Open>,
    deadlines: BTreeSet<(Instant, u64)>,
    detached: BTreeSet<(Instant, u64)>,
    left: VecDeque<CallId>,
    kept_bytes: usize,
}

fn size(request: &Request) -> usize {
    request.body.len() + request.metadata.len()
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// Opens a call. With room below `max_kept` bytes its request is kept if it is `repeatable` and resumable.
    pub(super) fn open(
        &mut self,
        number: u64,
        target: PeerId,
        request: &Request,
        repeatable: bool,
        max_kept: usize,
        deadline: Option<Instant>,
    ) {
        let keeps = request.resumable && repeatable && self.kept_bytes + size(request) <= max_kept;
        let kept = keeps.then(|| request.clone());
        self.kept_bytes += kept.as_ref().map_or(0, size);
        let open = Open {
            target,
            service: request.service.clone(),
            next_sequence: 1,
            balance: i64::try_from(request.credit).unwrap_or(i64::MAX),
            deadline,
            standing: Standing::Attached,
            resumable: request.resumable,
            asked: 0,
            resuming: None,
            kept,
            again: 0,
        };
        self.open.insert(number, open);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, number));
        }
    }

    /// Takes a call out. The target is told by the caller of this function where that is needed.
    pub(super) fn close(&mut self, number: u64) -> Option<Closed> {
        let open = self.open.remove(&number)?;
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        if let Standing::Detached { until } = open.standing {
            self.detached.remove(&(until, number));
        }
        self.kept_bytes -= open.kept.as_ref().map_or(0, size);
        Some(Closed {
            target: open.target,
            service: open.service,
            resumable: open.resumable,
            resumed: open.asked > 0,
        })
    }

    /// Remembers that the other end has been told that nobody waits for this call.
    pub(super) fn leave(&mut self, id: CallId) {
        if self.left.len() == LEFT_BOUND {
            self.left.pop_front();
        }
        self.left.push_back(id);
    }

    /// The way to the target of this call is gone.
    pub(super) fn detach(&mut self, number: u64, until: Instant) -> bool {
        let Some(open) = self.open.get_mut(&number).filter(|open| open.standing == Standing::Attached) else {
            return false;
        };
        open.standing = Standing::Detached { until };
        open.again = 0;
        self.detached.insert((until, number));
        true
    }

    /// The numbers of calls that cannot be resumed, in order.
    pub(super) fn not_resumable(&self) -> Vec<u64> {
        self.numbers(|open| !open.resumable)
    }

    /// The numbers of calls that wait for a resumption, of one target or of all, in order.
    pub(super) fn detached(&self, target: Option<&PeerId>) -> Vec<u64> {
        if self.detached.is_empty() {
            return Vec::new();
        }
        self.numbers(|open| {
            open.standing != Standing::Attached && target.is_none_or(|target| *target == open.target)
        })
    }

    pub(super) fn detached_len(&self) -> usize {
        self.detached.len()
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.numbers(|_| true)
    }

    fn numbers(&self, wanted: impl Fn(&Open) -> bool) -> Vec<u64> {
        let wanted = self.open.iter().filter(|(_, open)| wanted(open));
        let mut numbers: Vec<u64> = wanted.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// What to ask of the target of a call that goes on.
    pub(super) fn resume(&mut self, number: u64) -> Option<(PeerId, Resume)> {
        let open = self.open.get_mut(&number)?;
        if let Standing::Detached { until } = std::mem::replace(&mut open.standing, Standing::Attached) {
            self.detached.remove(&(until, number));
            open.resuming = Some(until);
        }
        open.asked = open.next_sequence;
        let resume = Resume::new(open.service.clone(), open.next_sequence, open.balance);
        Some((open.target.clone(), resume))
    }

    /// The request once more, for a target that has never seen it; `None` if it may not be sent again.
    pub(super) fn again(&mut self, number: u64) -> Option<(PeerId, Request, Option<Instant>)> {
        let open = self.open.get_mut(&number)?;
        open.again += 1;
        let kept = open.kept.as_ref().filter(|_| open.next_sequence == 1 && open.again <= MAX_AGAIN)?;
        Some((open.target.clone(), kept.clone(), open.deadline))
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        match (self.deadlines.first(), self.detached.first()) {
            (Some((deadline, _)), Some((until, _))) => Some(*deadline.min(until)),
            (deadline, until) => deadline.or(until).map(|(at, _)| *at),
        }
    }

    /// The next call whose time is over.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, number)| *number)
    }

    /// The next call that has waited long enough for its resumption.
    pub(super) fn given_up(&self, now: Instant) -> Option<u64> {
        self.detached.first().filter(|(until, _)| *until <= now).map(|(_, number)| *number)
    }

    /// More credit; returns the target to tell.
    pub(super) fn credit(&mut self, number: u64, bytes: u64) -> Option<&PeerId> {
        let open = self.open.get_mut(&number)?;
        open.balance = open.balance.saturating_add_unsigned(bytes);
        (open.standing == Standing::Attached).then_some(&open.target)
    }

    pub(super) fn reply(&mut self, source: Option<&PeerId>, id: CallId, reply: &Reply) -> Verdict {
        let Some(open) = self.open.get_mut(&id.number) else {
            return if self.left.contains(&id) { Verdict::Left } else { Verdict::Stray };
        };
        let failure = match &reply.end {
            Some(End::Failed(failure)) if reply.sequence == 0 && reply.message.is_none() => {
                Some(failure.reason())
            }
            _ => None,
        };
        match (source, failure) {
            (None, Some(Reason::LinkLost)) if open.resumable => return Verdict::Cut,
            (None, Some(reason)) => {
                return match open.resuming.filter(|_| reason == Reason::PeerOffline) {
                    // The hub tells of the target's return only who asked to resume.
                    Some(_) if std::mem::take(&mut open.again) > 0 => Verdict::Gap,
                    Some(until) => Verdict::StillCut(until),
                    None => Verdict::Deliver,
                };
            }
            (Some(source), _) if *source == open.target => {}
            _ => return Verdict::WrongSource,
        }
        match failure {
            Some(Reason::UnknownCall) if !open.resumable => {
                return Verdict::Broken("a call that was not resumed is not known".to_owned());
            }
            Some(Reason::UnknownCall) if open.resuming.is_none() => return Verdict::Gap,
            Some(Reason::UnknownCall) => return Verdict::Unknown,
            Some(_) => return Verdict::Deliver,
            None => {}
        }
        if reply.sequence < open.next_sequence {
            return Verdict::Duplicate;
        }
        if reply.sequence > open.next_sequence {
            let expected = open.next_sequence;
            return match open.resumable {
                // A hub that has seen the end go by does not know the call any more: it must hear of it again.
                true if open.asked == expected && reply.end.is_none() => Verdict::Duplicate,
                true => Verdict::Gap,
                false => Verdict::Broken(format!("reply {} came where {expected} was due", reply.sequence)),
            };
        }
        open.next_sequence += 1;
        open.resuming = None;
        if let Some(kept) = open.kept.take() {
            self.kept_bytes -= size(&kept);
        }
        if let Some(message) = &reply.message {
            if open.balance <= 0 {
                return Verdict::Broken(format!("a message of {} bytes came without credit", message.len()));
            }
            open.balance = open.balance.saturating_sub_unsigned(cost(message));
        }
        Verdict::Deliver
    }
}
