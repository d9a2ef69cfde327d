//! The state of one candidate for a Lease. Does no I/O and reads no clock.
//!
//! The rules, as in client-go (`tools/leaderelection`):
//!
//! - The time in a Lease is for people. A candidate measures with its own monotonic clock how long a Lease has not changed, and
//!   takes it after its whole duration. Any new `resourceVersion` is a change.
//! - The holder's time runs from the moment *before* its last successful write was sent, and ends at the deadline, two thirds of
//!   the duration. Therefore it has ended before another candidate may take the Lease, unless a clock is 1.5 times as fast as
//!   another.
//! - Each write names the version that it replaces, so a late copy of a write does nothing once another candidate has written.
//!
//! Each acquisition has a higher term than the Lease and every Lease that this candidate has read before, and at least the time
//! of the clock, so that it rises when the Lease is deleted too, except while another candidate creates it. `leaseTransitions`
//! cannot be the term: it starts again at 0 then, and does not change when the same candidate acquires again.
//!
//! The holder of a deleted Lease loses it at its next renewal. Until then another candidate may have created it: only the term
//! keeps the nodes from executing the calls of both.

use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;

use super::LeaseLost;
use crate::call::Term;
use crate::relay::{TermError, next_term};

/// The times of a Lease, all in proportion to its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timing {
    /// How long a Lease that does not change belongs to its holder.
    pub(super) duration: Duration,
    /// How long the holder relies on its last renewal.
    pub(super) deadline: Duration,
    /// The average pause before the holder's next renewal, and the maximum pause of another candidate.
    pub(super) retry: Duration,
    /// The time limit of one request.
    pub(super) request: Duration,
}

impl Timing {
    /// 15 s: renewed every 2 s, 10 s until the loss, 5 s for each request.
    pub(super) fn new(duration: Duration) -> Self {
        let deadline = duration * 2 / 3;
        Self { duration, deadline, retry: duration * 2 / 15, request: deadline / 2 }
    }
}

/// The time of an event: for intervals, and for terms and people.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) wall: SystemTime,
}

/// The content of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty if the Lease was released.
    pub(super) holder: String,
    pub(super) duration: Duration,
    /// The number of changes of the holder.
    pub(super) transitions: i32,
    pub(super) term: Option<Term>,
}

/// A Lease to write. A Lease that was read is replaced in the version that was read or written last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) record: Record,
    pub(super) acquired: SystemTime,
    pub(super) renewed: SystemTime,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The time of [`Action::Wait`] has come.
    Wake,
    /// The Lease with its version; `None` if it does not exist.
    Read(Option<(String, Record)>),
    /// The write was executed.
    Written,
    /// The write was not executed, since the Lease is not in the expected version.
    Refused,
    /// The request was perhaps executed.
    Failed,
    /// The process ends in order.
    Release,
}

/// The next step. Its result is the next event; [`Event::Release`] may interrupt a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Read the Lease.
    Read,
    /// Write the Lease.
    Write(Write),
    /// Wait until this time.
    Wait(Instant),
    /// Stop: the Lease is lost, or no candidate can acquire it.
    Stop(Stop),
}

/// Why a candidate stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// The holder has lost the Lease.
    Lost(LeaseLost),
    /// The process released the Lease.
    Released,
    /// No higher term is left.
    NoTerm {
        /// The last term.
        above: Term,
    },
}

#[derive(Debug)]
enum State {
    /// Another process holds the Lease, or this one does not know.
    Candidate,
    /// A write that acquires the Lease is under way.
    Acquiring(Held),
    /// This process holds the Lease.
    Holder(Held),
    /// The write that releases the Lease is under way.
    Releasing,
    Stopped(Stop),
}

/// The version that a candidate has seen last, and since when.
#[derive(Debug)]
struct Seen {
    version: String,
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    term: Term,
    transitions: i32,
    acquired: SystemTime,
    /// When the last successful write was sent.
    renewed: Instant,
    /// When the write under way was sent.
    sent: Instant,
}

/// One candidate, which stops when it has lost the Lease.
#[derive(Debug)]
pub(super) struct Core {
    identity: String,
    timing: Timing,
    state: State,
    /// What this process has read last as a candidate.
    seen: Option<Seen>,
    /// The highest term in any Lease that was read or written.
    highest: Option<Term>,
    jitter: Rng,
}

impl Core {
    /// Creates a candidate. No other process has its identity.
    pub(super) fn new(identity: String, timing: Timing, jitter: Rng) -> Self {
        Self { identity, timing, state: State::Candidate, seen: None, highest: None, jitter }
    }

    /// The term, and until when the Lease is held if nothing more happens; `None` if it is not held.
    pub(super) fn held(&self) -> Option<(Term, Instant)> {
        match &self.state {
            State::Holder(held) => Some((held.term, held.renewed + self.timing.deadline)),
            _ => None,
        }
    }

    /// Handles an event and returns the next step. The first event is [`Event::Wake`].
    pub(super) fn on(&mut self, event: Event, now: Now) -> Action {
        if let State::Holder(held) = self.state
            && now.instant >= held.renewed + self.timing.deadline
        {
            return self.stop(Stop::Lost(LeaseLost::NotRenewed { deadline: self.timing.deadline }));
        }
        match (&mut self.state, event) {
            (State::Stopped(stop), _) => Action::Stop(stop.clone()),
            (State::Candidate, Event::Release) => self.stop(Stop::Released),
            (State::Candidate, Event::Read(None)) => self.acquire(0, now),
            (State::Candidate, Event::Read(Some((version, record)))) => self.observe(version, &record, now),
            (State::Candidate, Event::Failed) => self.pause(now),
            (State::Candidate, _) => Action::Read,

            (State::Acquiring(held), Event::Written) => {
                let held = Held { renewed: held.sent, ..*held };
                self.highest = self.highest.max(Some(held.term));
                self.state = State::Holder(held);
                // An answer after the deadline is too late.
                if now.instant >= held.renewed + self.timing.deadline {
                    self.state = State::Candidate;
                    return Action::Read;
                }
                self.pause(now)
            }
            // Read again: either another candidate holds it, or this one does, and the answer was lost.
            (State::Acquiring(_), _) => {
                self.state = State::Candidate;
                self.pause(now)
            }

            (State::Holder(held), Event::Written) => {
                held.renewed = held.sent;
                self.pause(now)
            }
            (State::Holder(held), Event::Wake) => {
                held.sent = now.instant;
                let held = *held;
                self.write(held, now)
            }
            (State::Holder(_), Event::Failed) => self.pause(now),
            // Another process has written the Lease, or the answer to the last write was lost.
            (State::Holder(_), Event::Refused) => Action::Read,
            (State::Holder(held), Event::Read(Some((_, record)))) => {
                if record.holder != self.identity || record.term != Some(held.term) {
                    return self.stop(Stop::Lost(LeaseLost::Taken { holder: record.holder }));
                }
                held.sent = now.instant;
                let held = *held;
                self.write(held, now)
            }
            // Created again it could have a lower term than another candidate has read.
            (State::Holder(_), Event::Read(None)) => self.stop(Stop::Lost(LeaseLost::Deleted)),
            (State::Holder(held), Event::Release) => {
                let held = *held;
                self.state = State::Releasing;
                let Action::Write(mut write) = self.write(held, now) else { return Action::Read };
                write.record.holder.clear();
                Action::Write(write)
            }
            // Without an answer the others wait until the Lease expires.
            (State::Releasing, _) => self.stop(Stop::Released),
        }
    }

    /// Handles the Lease as a candidate.
    fn observe(&mut self, version: String, record: &Record, now: Now) -> Action {
        self.highest = self.highest.max(record.term);
        let since = match &self.seen {
            Some(seen) if seen.version == version => seen.since,
            _ => self.seen.insert(Seen { version, since: now.instant }).since,
        };
        // Not shorter than the own one: the deadline of this candidate's own writes is in proportion to that.
        let duration = record.duration.clamp(self.timing.duration, super::MAX_LEASE_DURATION);
        let (is_own, expires) = (record.holder == self.identity, since + duration);
        if record.holder.is_empty() || is_own || now.instant >= expires {
            return self.acquire(record.transitions.saturating_add(i32::from(!is_own)), now);
        }
        Action::Wait(self.next(now).min(expires))
    }

    fn acquire(&mut self, transitions: i32, now: Now) -> Action {
        let term = match next_term(self.highest, now.wall) {
            Ok(term) => term,
            Err(TermError::Exhausted { above }) => return self.stop(Stop::NoTerm { above }),
            // `next_term` has no store.
            Err(TermError::Store(_)) => return self.pause(now),
        };
        let (acquired, sent) = (now.wall, now.instant);
        let held = Held { term, transitions, acquired, renewed: sent, sent };
        self.state = State::Acquiring(held);
        self.write(held, now)
    }

    fn write(&self, held: Held, now: Now) -> Action {
        let record = Record {
            holder: self.identity.clone(),
            duration: self.timing.duration,
            transitions: held.transitions,
            term: Some(held.term),
        };
        Action::Write(Write { record, acquired: held.acquired, renewed: now.wall })
    }

    fn pause(&mut self, now: Now) -> Action {
        Action::Wait(self.next(now))
    }

    /// The time of the next request, with jitter, so that candidates do not send at the same time. A candidate reads more often
    /// than the holder renews: the time until it sees a renewal adds to a fail-over.
    fn next(&mut self, now: Now) -> Instant {
        let retry = self.timing.retry;
        let random = retry.mul_f64(self.jitter.f64());
        match self.held() {
            Some((_, until)) => (now.instant + retry / 2 + random).min(until),
            None => now.instant + (retry + random) / 2,
        }
    }

    fn stop(&mut self, stop: Stop) -> Action {
        self.state = State::Stopped(stop.clone());
        Action::Stop(stop)
    }
}
