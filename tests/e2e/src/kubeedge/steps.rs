//! The steps of the start, with their times.

use std::time::Instant;

use crate::table;

/// Prints each step when it ends.
#[derive(Debug)]
pub(super) struct Steps {
    begun: Instant,
    last: Instant,
}

impl Steps {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        table::say(&format!("{:<52} {:>7} {:>9}", "step", "seconds", "since the start"));
        Self { begun: now, last: now }
    }

    /// Prints a step that has ended.
    pub(super) fn done(&mut self, step: &str) {
        let (took, since) = (self.last.elapsed().as_secs_f64(), self.begun.elapsed().as_secs_f64());
        table::say(&format!("{step:<52} {took:>7.1} {since:>9.1}"));
        self.last = Instant::now();
    }
}
