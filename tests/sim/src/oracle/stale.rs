//! A call begins only on the session that it is addressed to, and not if a call of a proxy with a higher term has
//! begun.

use super::{Expect, FirstViolation};
use crate::facts::{Delivery, Execution, Facts};
use crate::ids::Moment;

const SESSION: &str = "a call begins only on the session that it is for";
const TERM: &str = "no call of an older term begins";

#[derive(Debug)]
pub(crate) struct Stale {
    expect: Expect,
    first_violation: FirstViolation,
}

impl Stale {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
    }

    /// Checks the begin of an execution in a driver.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, run: &Execution) {
        if !self.expect.whole {
            return;
        }
        let copies = facts
            .deliveries
            .iter()
            .filter(|delivery| delivery.agent == run.agent && delivery.attempt == run.attempt);
        let rightly = |delivery: &Delivery| {
            let session = facts.links.get(&delivery.link).and_then(|link| link.session);
            delivery.to_session.is_some() && delivery.to_session == session
        };
        if !copies.clone().any(rightly) {
            self.first_violation.broken(SESSION, now.at, || {
                let copies: Vec<_> = copies.clone().map(|copy| (copy.at.at, copy.to_session)).collect();
                format!("{:?} begins at {:?}; its copies were for {copies:?}", run.attempt, run.agent)
            });
        }
        let terms_of = |attempt| facts.terms.get(&facts.attempt(attempt)?.proxy);
        // The terms of the proxy, not those in the calls, which a planted fault changes.
        let Some(&(_, term)) = terms_of(run.attempt) else { return };
        let Some(wanted) = facts.operation(run.operation) else { return };
        let higher = facts.executions.iter().find_map(|other| {
            let of_driver = facts
                .operation(other.operation)
                .is_some_and(|other| (other.agent, other.driver) == (wanted.agent, wanted.driver));
            // The lowest term with which the other call can have begun.
            let (least, _) = terms_of(other.attempt)?;
            let known = facts.ran_in_turn(other.agent, run.agent);
            (of_driver && known && other.began < now && *least > term).then_some((
                least,
                other.attempt,
                other.began,
            ))
        });
        if let Some((least, attempt, began)) = higher {
            self.first_violation.broken(TERM, now.at, || {
                format!(
                    "{:?} begins with term {term}, after {attempt:?} with term {least} began at {:?}",
                    run.attempt, began.at
                )
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
