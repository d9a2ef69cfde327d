//! After the faults have stopped the system recovers: every sidecar gets its driver's answer, and no table keeps an entry.

use std::time::Duration;

use super::FirstViolation;

/// The entries that are left when everything should have ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// A description of each entry.
    pub(crate) found: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Healing {
    first_violation: FirstViolation,
}

impl Healing {
    /// Reports that these orders were not done within the time limit of the recovery.
    pub(crate) fn late(&mut self, at: Duration, orders: &[crate::ids::OrderId]) {
        self.first_violation.broken("faults stop, then every call gets its end", at, || {
            format!("the orders {orders:?} have no answer of their driver")
        });
    }

    /// Checks that nothing is left once all orders are done.
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
