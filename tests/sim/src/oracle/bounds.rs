//! Memory is bounded: every table stays within its limit.

use std::time::Duration;

use super::FirstViolation;

const PROPERTY: &str = "memory is bounded";

#[derive(Debug, Default)]
pub(crate) struct Bounds {
    first_violation: FirstViolation,
}

impl Bounds {
    /// Checks a count against its limit.
    pub(crate) fn within(&mut self, at: Duration, label: &str, what: &str, found: usize, max: usize) {
        if found > max {
            self.first_violation
                .broken(PROPERTY, at, || format!("{label} has {found} {what}; at most {max} are allowed"));
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
