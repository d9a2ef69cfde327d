//! Memory is bounded: every table stays within what was set for it.

use std::time::Duration;

use super::Verdict;

const PROPERTY: &str = "memory is bounded";

#[derive(Debug, Default)]
pub(crate) struct Bounds {
    verdict: Verdict,
}

impl Bounds {
    /// Something that is counted now.
    pub(crate) fn within(&mut self, at: Duration, who: &str, what: &str, found: usize, max: usize) {
        if found > max {
            self.verdict
                .broken(PROPERTY, at, || format!("{who} has {found} {what}; at most {max} are allowed"));
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
