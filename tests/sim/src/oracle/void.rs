//! A result is void as soon as another operation begins on its volume: a later call does not get it.

use std::time::Duration;

use super::{Expect, FirstViolation};
use crate::facts::{Facts, Replied};

/// Tolerance for the time that a process needs to handle an event.
const INSIDE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Void {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Void {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks an agent's answer to a call.
    pub(crate) fn replies(&mut self, now: crate::ids::Moment, facts: &Facts, replied: &Replied) {
        let Some(execution) = replied.execution.filter(|_| self.expect.whole) else { return };
        let (Some(given), Some(delivery)) =
            (facts.execution(execution), facts.deliveries.get(replied.delivery))
        else {
            return;
        };
        let (Some(ended), Some(wanted)) = (given.ended, facts.operation(given.operation)) else { return };
        let asked = delivery.at;
        // The agent observes the end within the tolerance.
        if asked.at <= ended.at + INSIDE {
            return;
        }
        let later = facts.executions.iter().enumerate().find(|(index, run)| {
            let Some(other) = facts.operation(run.operation).filter(|other| other.is_about(wanted)) else {
                return false;
            };
            // The volume id of a CreateVolume is unknown before its answer, and stays unknown if the answer is an
            // error.
            let touched = match (wanted.creates(), other.creates()) {
                (false, true) if other.fails || !self.expect.prompt => return false,
                (false, true) => match run.given {
                    Some(given) => given,
                    None => return false,
                },
                (true, false) if wanted.fails => return false,
                _ => run.began,
            };
            // An operation that begins during a CreateVolume may undo it before its end.
            let after = if wanted.creates() { *index > execution.0 } else { touched >= ended };
            facts.ran_in_turn(run.agent, given.agent)
                && run.operation != given.operation
                && after
                && touched < asked
        });
        if let Some((later, _)) = later {
            self.first_violation.broken("a void result is not given", now.at, || {
                format!(
                    "{:?}, which asked at {:?}, gets the result of {execution:?}, which ended at {:?}; execution {later} has begun on the same volume since",
                    delivery.attempt, asked.at, ended.at
                )
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
