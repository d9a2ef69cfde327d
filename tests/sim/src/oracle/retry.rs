//! A call that may have begun is sent again only to the same instance of its agent, and only if it is an operation.

use super::{Expect, FirstViolation};
use crate::facts::Facts;
use crate::ids::Moment;
use crate::plan::Operation;

const PROPERTY: &str =
    "what may have begun is sent again only to the same instance, and only if it is an operation";

#[derive(Debug)]
pub(crate) struct Retry {
    expect: Expect,
    /// The number of deliveries that were checked.
    seen: usize,
    first_violation: FirstViolation,
}

impl Retry {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, seen: 0, first_violation: FirstViolation::default() }
    }

    /// Checks the deliveries after a frame has arrived at a peer.
    pub(crate) fn arrives(&mut self, now: Moment, facts: &Facts) {
        let (seen, all) = (self.seen, &facts.deliveries);
        self.seen = all.len();
        if !self.expect.whole || self.expect.doubles {
            return;
        }
        for (index, copy) in all.iter().enumerate().skip(seen) {
            let repeats = facts.operation(copy.operation).is_none_or(Operation::repeats);
            let bad = all
                .iter()
                .take(index)
                .filter(|earlier| earlier.attempt == copy.attempt && !earlier.refused)
                .find(|earlier| earlier.agent != copy.agent || !repeats);
            if let Some(earlier) = bad {
                self.first_violation.broken(PROPERTY, now.at, || {
                    format!(
                        "{:?} arrives at {:?}; {:?} has had it since {:?}",
                        copy.attempt, copy.agent, earlier.agent, earlier.at.at
                    )
                });
            }
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
