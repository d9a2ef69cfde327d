//! When a call is sent, sent again, or ends with a fault. Pure.

use std::time::{Duration, Instant};

use csi_proto::Delivery;
use fastrand::Rng;

use super::reachability::{Missing, NodeStatus};
use crate::call::{CallId, Fault, NodeId, NodeSession};

/// How long a call that may have begun waits for the instance that has it, after each loss.
pub(super) const INSTANCE_WAIT: Duration = Duration::from_secs(30);

/// Most attempts of one call.
pub(super) const MAX_ATTEMPTS: u32 = 32;

/// Longest pause before the second attempt; it doubles from attempt to attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the call to this session.
    Send(NodeSession),
    /// Ask again when the node's status has changed, and at that time.
    Wait {
        /// The time.
        until: Instant,
        /// How the call ends if it cannot wait.
        or: Fault,
    },
    /// The call ends.
    Fail(Fault),
}

/// Whom a call that may have begun is sent to again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Never,
    /// The instance that may have begun it.
    SameInstance,
    /// Any: what is sent is the rest of a stream, and not the same request.
    AnyInstance,
}

/// The attempts of one call.
#[derive(Debug)]
pub(super) struct Attempts {
    node: NodeId,
    grace: Duration,
    /// When it is not worth waiting any more for the caller.
    end: Option<Instant>,
    failed: u32,
    /// Not before: the pause after a failed attempt.
    not_before: Option<Instant>,
    /// Since when it has been waiting, if the last answer was to wait.
    waiting: Option<Instant>,
    phase: Phase,
    jitter: Rng,
}

#[derive(Debug)]
enum Phase {
    /// No attempt was sent. It has waited for so long in total.
    NotSent { waited: Duration, last: Option<Fault> },
    /// One may have begun.
    Unknown { instance: Option<u64>, until: Instant, last: Fault },
}

impl Attempts {
    /// A call that has not been sent. The id seeds the jitter of its pauses.
    pub(super) fn new(id: CallId, node: NodeId, grace: Duration, end: Option<Instant>) -> Self {
        let seed = id.as_bytes().iter().fold(0, |hash: u64, byte| hash.rotate_left(7) ^ u64::from(*byte));
        let jitter = Rng::with_seed(seed);
        let phase = Phase::NotSent { waited: Duration::ZERO, last: None };
        Self { node, grace, end, failed: 0, not_before: None, waiting: None, phase, jitter }
    }

    /// What to do, with what is known of the node.
    pub(super) fn next(&mut self, status: NodeStatus, now: Instant) -> Next {
        let waited_now = self.waiting.take().map(|since| now.saturating_duration_since(since));
        if let Phase::NotSent { waited, .. } = &mut self.phase {
            *waited += waited_now.unwrap_or_default();
        }
        let pause = self.not_before.filter(|until| now < *until);
        let (until, or) = match (&self.phase, status) {
            (_, NodeStatus::Connected(session)) if pause.is_none() && self.may_have(session) => {
                return Next::Send(session);
            }
            (Phase::NotSent { waited, last }, status) => {
                let grace_ends = now + self.grace.saturating_sub(*waited);
                let last = last.clone();
                match status {
                    NodeStatus::Connected(_) => {
                        (grace_ends, last.unwrap_or_else(|| self.away(Missing::Node)))
                    }
                    NodeStatus::Reconnecting { until, missing } => {
                        (grace_ends.min(until), last.unwrap_or_else(|| self.away(missing)))
                    }
                    NodeStatus::Away(missing) => return Next::Fail(self.away(missing)),
                }
            }
            // The instance that may have begun the call has ended.
            (Phase::Unknown { last, .. }, NodeStatus::Connected(session)) if !self.may_have(session) => {
                return Next::Fail(last.clone());
            }
            (Phase::Unknown { until, last, .. }, _) => (*until, last.clone()),
        };
        let until = self.end.map_or(until, |end| until.min(end));
        if until <= now {
            return Next::Fail(or);
        }
        self.waiting = Some(now);
        let pause = pause.filter(|_| matches!(status, NodeStatus::Connected(_)));
        Next::Wait { until: pause.map_or(until, |pause| pause.min(until)), or }
    }

    /// Whether the call may go to this session: any, unless an instance may have begun it.
    fn may_have(&self, session: NodeSession) -> bool {
        match &self.phase {
            Phase::NotSent { .. } => true,
            Phase::Unknown { instance, .. } => instance.is_none_or(|instance| instance == session.instance),
        }
    }

    /// An attempt on this session has failed. `repeat` is asked only if the call may have begun and can be sent again soon.
    ///
    /// # Errors
    /// The fault with which the call ends: one that says that nothing was sent only if nothing ever was.
    pub(super) fn failed(
        &mut self,
        fault: Fault,
        session: NodeSession,
        repeat: impl FnOnce() -> Repeat,
        now: Instant,
    ) -> Result<(), Fault> {
        self.failed += 1;
        let again = fault.is_transient() && self.failed < MAX_ATTEMPTS;
        match (fault.delivery(), &mut self.phase) {
            (Delivery::NotSent, Phase::NotSent { last, .. }) if again => *last = Some(fault),
            (Delivery::NotSent, Phase::Unknown { .. }) if again => {}
            (Delivery::NotSent, Phase::NotSent { .. }) => return Err(fault),
            (Delivery::NotSent, Phase::Unknown { last, .. }) => return Err(last.clone()),
            (Delivery::Unknown, _) => {
                let instance = match again.then(repeat) {
                    None | Some(Repeat::Never) => return Err(fault),
                    Some(Repeat::SameInstance) => Some(session.instance),
                    Some(Repeat::AnyInstance) => None,
                };
                self.phase = Phase::Unknown { instance, until: now + INSTANCE_WAIT, last: fault };
            }
        }
        self.not_before = Some(now + self.pause());
        Ok(())
    }

    /// An attempt was refused for something that is right now. Says whether there may be another one, at once.
    pub(super) fn again(&mut self) -> bool {
        self.failed += 1;
        self.failed < MAX_ATTEMPTS
    }

    /// The fault with which the call ends if it cannot be sent for this reason.
    pub(super) fn end_with(&self, fault: Fault) -> Fault {
        match &self.phase {
            Phase::NotSent { .. } => fault,
            Phase::Unknown { last, .. } => last.clone(),
        }
    }

    fn away(&self, missing: Missing) -> Fault {
        match missing {
            Missing::Node => Fault::NodeOffline { node: self.node.clone() },
            Missing::Hub => Fault::HubUnreachable { reason: "not connected".to_owned() },
        }
    }

    /// Between half and all of a time that doubles from attempt to attempt.
    fn pause(&mut self) -> Duration {
        let longest =
            FIRST_PAUSE.saturating_mul(1 << self.failed.saturating_sub(1).min(8)).min(LONGEST_PAUSE);
        longest.mul_f64(0.5 + 0.5 * self.jitter.f64())
    }
}

#[cfg(test)]
mod tests;
