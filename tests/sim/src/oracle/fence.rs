//! A copy of a call that was given up never begins after a later call has begun.

use std::time::Duration;

use super::{Expect, FirstViolation};
use crate::facts::{Execution, Facts};
use crate::ids::Moment;
use crate::plan::Operation;

const PROPERTY: &str = "no copy of a call that was given up begins after a later one";

/// Tolerance for the time that a process needs to handle an event.
const INSIDE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Fence {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Fence {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, run: &Execution) {
        let (Some(attempt), Some(wanted)) = (facts.attempt(run.attempt), facts.operation(run.operation))
        else {
            return;
        };
        let Some(given_up) = attempt.given_up().filter(|_| self.expect.whole) else { return };
        // Streams have a separate connection to a driver, on which they may overtake other calls within the tolerance.
        let streams = |id| facts.operation(id).is_some_and(Operation::streams);
        let before = |other: &Execution| {
            let alike = streams(other.operation) == streams(run.operation);
            other.began < now && (alike || other.began.at + INSIDE < now.at)
        };
        // Calls of two proxies are ordered only by the proxies' terms.
        let terms_of = |attempt| facts.terms.get(&facts.attempt(attempt)?.proxy);
        let of_lower_term = |other: &Execution| match (terms_of(other.attempt), terms_of(run.attempt)) {
            (Some((_, last)), Some((first, _))) => last < first,
            _ => false,
        };
        let later = facts.executions.iter().find(|other| {
            let of_one_line = facts
                .operation(other.operation)
                .is_some_and(|other| (other.agent, other.driver) == (wanted.agent, wanted.driver));
            let asked = facts.attempt(other.attempt).map(|attempt| attempt.asked);
            of_one_line
                && before(other)
                && facts.ran_in_turn(other.agent, run.agent)
                && !of_lower_term(other)
                && asked.is_some_and(|asked| asked > given_up)
        });
        if let Some(later) = later {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!(
                    "{:?} of {:?}, given up at {:?}, begins after {:?} of {:?} began at {:?}",
                    run.attempt, run.operation, given_up.at, later.attempt, later.operation, later.began.at
                )
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
