//! After the faults have stopped the system recovers: every sidecar gets its driver's answer, and no table keeps an entry.

use std::time::Duration;

use super::FirstViolation;

/// What is left when everything should have ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// In words, one for each.
    pub(crate) found: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Healing {
    first_violation: FirstViolation,
}

impl Healing {
    /// The time to heal is over, and these orders are not done.
    pub(crate) fn late(&mut self, at: Duration, orders: &[crate::ids::OrderId]) {
        self.first_violation.broken("faults stop, then every call gets its end", at, || {
            format!("the orders {orders:?} have no answer of their driver")
        });
    }

    /// All orders are done, and nothing moves any more.
    pub(crate) fn done(&mut self, at: Duration, left: &Leftovers) {
        if !left.found.is_empty() {
            self.first_violation
                .broken("faults stop, then no table keeps anything", at, || left.found.join("; "));
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
