//! A call that ends as not sent was not sent: every agent that got a copy refused it, and the call never begins.

use csi_proxy::Delivery as Proof;

use super::{Expect, FirstViolation};
use crate::facts::{End, Execution, Facts};
use crate::ids::{AttemptId, Moment};

const PROPERTY: &str = "what is called not sent was not sent";

#[derive(Debug)]
pub(crate) struct Sent {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Sent {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks the end of a sidecar's call.
    pub(crate) fn ends(&mut self, now: Moment, facts: &Facts, attempt: AttemptId, end: &End) {
        if !self.expect.whole || !is_not_sent(end) {
            return;
        }
        let has = facts.deliveries.iter().find(|delivery| delivery.attempt == attempt && !delivery.refused);
        let ran = facts.executions.iter().find(|run| run.attempt == attempt);
        let when = has.map(|delivery| delivery.at).or_else(|| ran.map(|run| run.began));
        if let Some(when) = when {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!("{attempt:?} ends with {end:?}; an agent has had it since {:?}", when.at)
            });
        }
    }

    /// Checks the begin of an execution in a driver.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, run: &Execution) {
        let ended = facts.attempt(run.attempt).and_then(|attempt| attempt.ended.as_ref());
        if let Some((since, end)) = ended.filter(|(_, end)| self.expect.whole && is_not_sent(end)) {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!("{:?} begins; it ended at {:?} with {end:?}", run.attempt, since.at)
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}

fn is_not_sent(end: &End) -> bool {
    matches!(end, End::Failed(fault) if fault.delivery() == Proof::NotSent)
}
