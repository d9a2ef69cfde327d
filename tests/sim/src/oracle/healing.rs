//! When the faults have stopped all becomes well: every sidecar gets its driver's answer, and no table keeps anything.

use std::time::Duration;

use super::Verdict;

/// What is still there when everything should be over.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// In words, one for each.
    pub(crate) found: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Healing {
    verdict: Verdict,
}

impl Healing {
    /// The time to heal is over, and these orders are not done.
    pub(crate) fn late(&mut self, at: Duration, orders: &[crate::ids::OrderId]) {
        self.verdict.broken("faults stop, then every call gets its end", at, || {
            format!("the orders {orders:?} have no answer of their driver")
        });
    }

    /// All orders are done, and nothing moves any more.
    pub(crate) fn done(&mut self, at: Duration, left: &Leftovers) {
        if !left.found.is_empty() {
            self.verdict.broken("faults stop, then no table keeps anything", at, || left.found.join("; "));
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
