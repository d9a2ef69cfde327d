//! An agent's process does not call a driver for an operation that the driver is executing, nor for another operation
//! on the same volume, nor twice for the same call. A result that no call waited for is given to the next equal call,
//! and only to that one. The results of node calls are not kept.

use std::time::Duration;

use super::turn::are_in_one_line;
use super::{Expect, FirstViolation};
use crate::facts::{Delivery, Execution, Facts, Replied};
use crate::ids::{ExecutionId, Moment};
use crate::plan::Operation;

/// How long a result that no call waited for is kept for the next call.
const KEPT: Duration = Duration::from_secs(600);
/// Tolerance for the time that a process needs to handle an event.
const INSIDE: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(crate) struct Once {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Once {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks the begin of an execution in a driver.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, id: ExecutionId, run: &Execution) {
        let changes = facts.operation(run.operation).is_some_and(Operation::changes);
        if !self.expect.whole || !changes {
            return;
        }
        let Execution { operation, agent, attempt, .. } = *run;
        for before in facts.executions.iter().take(id.0) {
            let line = are_in_one_line(facts, operation, before.operation) && operation != before.operation;
            if line && before.agent == agent && before.ended.is_none() {
                self.first_violation.broken("one thing at a time is done to a volume", now.at, || {
                    format!("{agent:?} begins {operation:?} while {:?} runs", before.operation)
                });
            }
            if before.agent != agent || before.operation != operation {
                continue;
            }
            let Some(ended) = before.ended else {
                self.first_violation.broken("an operation does not run twice at once", now.at, || {
                    format!("{agent:?} begins {operation:?} while it runs")
                });
                return;
            };
            if before.attempt == attempt {
                self.first_violation.broken("a call is executed once", now.at, || {
                    format!("{agent:?} begins {operation:?} again for {attempt:?}, which it was begun for")
                });
            }
            let is_kept = facts.operation(operation).is_some_and(Operation::is_kept);
            if !is_kept || before.answered.is_none() || !self.expect.keeps || is_void(facts, before, now) {
                continue;
            }
            let since = now.at - ended.at;
            let is_offered = || {
                let next =
                    |copy: &Delivery| copy.agent == agent && copy.operation == operation && copy.at > ended;
                // The first copy after the end got the result, even if its call was cancelled meanwhile.
                facts.deliveries.iter().find(|copy| next(copy)).is_none_or(|copy| copy.attempt == attempt)
            };
            if self.expect.prompt
                && before.unwanted
                && before.given.is_none()
                && is_offered()
                && since > INSIDE
                && since + INSIDE < KEPT
            {
                self.first_violation.broken("what no call waited for is there for the next", now.at, || {
                    format!("{agent:?} begins {operation:?} again, but no call has received its result")
                });
            }
        }
    }

    /// Checks an agent's answer to a call.
    pub(crate) fn replies(&mut self, now: Moment, facts: &Facts, replied: &Replied) {
        let Some((id, run)) = replied.execution.and_then(|id| Some((id, facts.execution(id)?))) else {
            return;
        };
        let Some(wanted) = facts.operation(run.operation).filter(|wanted| wanted.changes()) else { return };
        if self.expect.whole && run.later.len() > 1 {
            self.first_violation.broken("what is kept is given once", now.at, || {
                format!("{id:?} of {:?} is given to {:?}", run.operation, run.later)
            });
        }
        let Some((asked, ended)) = facts.deliveries.get(replied.delivery).map(|copy| copy.at).zip(run.ended)
        else {
            return;
        };
        if self.expect.whole && !wanted.is_kept() && asked.at > ended.at + INSIDE {
            self.first_violation.broken("the result of a node call is not kept", now.at, || {
                format!(
                    "{id:?}, which ended at {:?}, is given to a call that came at {:?}",
                    ended.at, asked.at
                )
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}

/// Returns whether another operation on the volume may have voided the result of an execution.
pub(super) fn is_void(facts: &Facts, before: &Execution, now: Moment) -> bool {
    let other = |operation| operation != before.operation && facts.are_about_one(operation, before.operation);
    let ran = facts.executions.iter().any(|run| {
        other(run.operation) && run.began < now && run.ended.is_none_or(|ended| ended >= before.began)
    });
    // A delivered call may have voided the result even if it was not executed.
    let came = facts
        .deliveries
        .iter()
        .any(|delivery| other(delivery.operation) && delivery.over.is_none_or(|over| over >= before.began));
    ran || came
}
