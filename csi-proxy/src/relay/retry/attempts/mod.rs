//! Decides when a call is sent, sent again, or ends with a fault. Does no I/O.

use std::time::{Duration, Instant};

use csi_proto::Delivery;
use fastrand::Rng;

use super::reachability::{Missing, NodeStatus};
use crate::call::{CallId, Fault, NodeId, NodeSession};

/// How long a call that may have begun waits for its instance, after each loss.
pub(super) const INSTANCE_WAIT: Duration = Duration::from_secs(30);

/// The maximum number of attempts of one call.
pub(super) const MAX_ATTEMPTS: u32 = 32;

/// The maximum pause before the second attempt; it doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the call to this session.
    Send(NodeSession),
    /// Wait, then decide again: when the status of the node changes, or at the time `until`.
    Wait {
        /// The latest time of the next decision.
        until: Instant,
        /// The fault of a call that cannot wait.
        or: Fault,
    },
    /// The call ends.
    Fail(Fault),
}

/// The instances to which a call that may have begun may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Never,
    /// The call may be sent again only to the instance that may have begun it.
    SameInstance,
    /// Any instance: the request is for the rest of a stream, not the same request.
    AnyInstance,
}

/// The attempts of one call.
#[derive(Debug)]
pub(super) struct Attempts {
    node: NodeId,
    grace: Duration,
    /// The deadline, after which waiting is useless.
    end: Option<Instant>,
    failed: u32,
    /// The end of the pause after a failed attempt.
    not_before: Option<Instant>,
    /// The start of the wait, if the last step was to wait.
    waiting: Option<Instant>,
    phase: Phase,
    jitter: Rng,
}

#[derive(Debug)]
enum Phase {
    /// No attempt was sent. `waited` is the total wait.
    NotSent { waited: Duration, last: Option<Fault> },
    /// An attempt may have begun.
    Unknown { instance: Option<u64>, until: Instant, last: Fault },
}

impl Attempts {
    /// Creates the state of an unsent call. The id seeds the jitter of its pauses.
    pub(super) fn new(id: CallId, node: NodeId, grace: Duration, end: Option<Instant>) -> Self {
        let seed = id.as_bytes().iter().fold(0, |hash: u64, byte| hash.rotate_left(7) ^ u64::from(*byte));
        let jitter = Rng::with_seed(seed);
        let phase = Phase::NotSent { waited: Duration::ZERO, last: None };
        Self { node, grace, end, failed: 0, not_before: None, waiting: None, phase, jitter }
    }

    /// The next step, given the status of the node.
    pub(super) fn next(&mut self, status: NodeStatus, now: Instant) -> Next {
        let waited_now = self.waiting.take().map(|since| now.saturating_duration_since(since));
        if let Phase::NotSent { waited, .. } = &mut self.phase {
            *waited += waited_now.unwrap_or_default();
        }
        let pause = self.not_before.filter(|until| now < *until);
        let is_connected = matches!(status, NodeStatus::Connected(_));
        let (until, or) = match (&self.phase, status) {
            (_, NodeStatus::Connected(session)) if pause.is_none() && self.may_send_to(session) => {
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
            (Phase::Unknown { last, .. }, NodeStatus::Connected(session)) if !self.may_send_to(session) => {
                return Next::Fail(last.clone());
            }
            (Phase::Unknown { until, last, .. }, _) => (*until, last.clone()),
        };
        let until = self.end.map_or(until, |end| until.min(end));
        if until <= now {
            return Next::Fail(or);
        }
        self.waiting = Some(now);
        let pause = pause.filter(|_| is_connected);
        Next::Wait { until: pause.map_or(until, |pause| pause.min(until)), or }
    }

    /// Whether the call may be sent to this session: always, unless another instance may have begun it.
    fn may_send_to(&self, session: NodeSession) -> bool {
        match &self.phase {
            Phase::NotSent { .. } => true,
            Phase::Unknown { instance, .. } => instance.is_none_or(|instance| instance == session.instance),
        }
    }

    /// Records a failed attempt on this session. `repeat` is evaluated only if the call may have begun and can be
    /// retried soon.
    ///
    /// # Errors
    /// The final fault of the call. It reports that nothing was sent only if that holds for every attempt.
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

    /// Counts an attempt that was refused for a cause that is fixed by now. Returns whether another attempt may
    /// follow at once.
    pub(super) fn count_refusal(&mut self) -> bool {
        self.failed += 1;
        self.failed < MAX_ATTEMPTS
    }

    /// The final fault if the call cannot be sent for this reason.
    pub(super) fn end_with(&self, fault: Fault) -> Fault {
        match &self.phase {
            Phase::NotSent { .. } => fault,
            Phase::Unknown { last, .. } => last.clone(),
        }
    }

    fn away(&self, missing: Missing) -> Fault {
        match missing {
            Missing::List { cause } => {
                Fault::HubUnreachable { reason: format!("it does not list its nodes: {cause}") }
            }
            Missing::Node => Fault::NodeOffline { node: self.node.clone() },
            Missing::OneAgent => Fault::TwoAgents { node: self.node.clone() },
            Missing::Hub => Fault::HubUnreachable { reason: "not connected".to_owned() },
        }
    }

    /// The pause before the next attempt: 50 % to 100 % of a maximum that doubles with each attempt.
    fn pause(&mut self) -> Duration {
        let longest =
            FIRST_PAUSE.saturating_mul(1 << self.failed.saturating_sub(1).min(8)).min(LONGEST_PAUSE);
        longest.mul_f64(0.5 + 0.5 * self.jitter.f64())
    }
}

#[cfg(test)]
mod tests;
