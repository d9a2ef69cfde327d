//! Operations that wait for another one on their volume run in the order of arrival, and are refused in time otherwise.

use std::time::Duration;

use csi_proxy::Fault;

use super::{Expect, FirstViolation};
use crate::facts::{Delivery, Execution, Facts, Replied};
use crate::ids::{Moment, OperationId};
use crate::plan::Operation;

const PROPERTY: &str = "first come, first served, or refused in time";

/// Tolerance for the time that a process needs to handle an event.
const INSIDE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Turn {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Turn {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks the begin of an execution in a driver.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, run: &Execution) {
        let of = |delivery: &&Delivery| delivery.agent == run.agent;
        let mine = |delivery: &&Delivery| of(delivery) && delivery.attempt == run.attempt;
        // On a stalled link, a finished call without a sent reply seems to wait.
        let seen = self.expect.whole && self.expect.prompt;
        let Some(own) = facts.deliveries.iter().rfind(mine).filter(|_| seen) else { return };
        let passed = facts.deliveries.iter().filter(of).find(|other| {
            let waits = other.over.is_none() && other.at < own.at && other.operation != run.operation;
            let in_time = other.at.at + self.expect.wait > now.at + INSIDE && other.at.at + INSIDE < now.at;
            waits
                && in_time
                && are_in_one_line(facts, other.operation, run.operation)
                && !has_begun(facts, other)
                && !has_new_term(facts, other)
                && !has_place_before(facts, run, other)
        });
        if let Some(passed) = passed {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!(
                    "{:?} begins {:?} before {:?}, which came first",
                    run.agent, run.attempt, passed.attempt
                )
            });
        }
    }

    /// Checks an agent's answer to a call.
    pub(crate) fn replies(&mut self, now: Moment, facts: &Facts, replied: &Replied) {
        let fault = replied.outcome.as_ref().and_then(csi_proxy::Outcome::fault);
        let (Some(Fault::OperationPending { .. }), Some(delivery)) =
            (fault, facts.deliveries.get(replied.delivery))
        else {
            return;
        };
        let waited = now.at - delivery.at.at;
        let linked = facts.links.get(&delivery.link).is_some_and(|link| link.lost.is_none());
        if linked && self.expect.prompt && self.expect.whole && waited > self.expect.wait + INSIDE {
            self.first_violation
                .broken(PROPERTY, now.at, || format!("{:?} is refused after {waited:?}", delivery.attempt));
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}

/// Returns whether an agent can know that both operations are about one volume. CreateVolume has the volume's name, and
/// all other calls have its id.
pub(super) fn are_in_one_line(facts: &Facts, one: OperationId, other: OperationId) -> bool {
    let creates = |id| facts.operation(id).is_some_and(Operation::creates);
    facts.are_about_one(one, other) && creates(one) == creates(other)
}

/// Returns whether a call was begun, or has joined a running operation.
fn has_begun(facts: &Facts, delivery: &Delivery) -> bool {
    facts.executions.iter().any(|run| {
        run.agent == delivery.agent
            && run.operation == delivery.operation
            && run.ended.is_none_or(|ended| ended > delivery.at)
    })
}

/// Returns whether a call arrived before its proxy's term was on the agent's disk. Calls that wait for the write have
/// no order.
fn has_new_term(facts: &Facts, delivery: &Delivery) -> bool {
    let proxy_of = |attempt| facts.attempt(attempt).map(|attempt| attempt.proxy);
    !facts.executions.iter().any(|run| {
        let of_term = run.agent == delivery.agent && proxy_of(run.attempt) == proxy_of(delivery.attempt);
        of_term && run.began < delivery.at
    })
}

/// Returns whether an equal call was queued before another one.
fn has_place_before(facts: &Facts, run: &Execution, other: &Delivery) -> bool {
    facts.deliveries.iter().any(|equal| {
        equal.agent == run.agent
            && equal.operation == run.operation
            && equal.at < other.at
            && equal.over.is_none_or(|over| over > other.at)
    })
}
