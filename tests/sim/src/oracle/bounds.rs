//! Memory is bounded: every table and queue stays within what was set for it, at every moment.

use std::time::Duration;

use super::Verdict;
use crate::world::PeerIndex;

const PROPERTY: &str = "memory is bounded";

/// Ticks of one process in a row without time passing. A process that is woken again and again for nothing never sleeps.
const TICKS: u32 = 100;

#[derive(Debug)]
pub(crate) struct Bounds {
    /// Where bits are twisted, so may be the credit.
    whole: bool,
    ticks: u32,
    ticked: Duration,
    verdict: Verdict,
}

impl Bounds {
    pub(crate) fn new(whole: bool) -> Self {
        Self { whole, ticks: 0, ticked: Duration::ZERO, verdict: Verdict::default() }
    }

    /// Something that is counted now.
    pub(crate) fn within(&mut self, at: Duration, who: &str, what: &str, found: usize, max: usize) {
        if found > max {
            self.verdict
                .broken(PROPERTY, at, || format!("{who} has {found} {what}; at most {max} are allowed"));
        }
    }

    /// A message has come to a caller that reads slowly.
    pub(crate) fn unread(
        &mut self,
        at: Duration,
        peer: PeerIndex,
        number: u64,
        unread: u64,
        credit: u64,
        last: u64,
    ) {
        if self.whole && unread >= credit + last {
            self.verdict.broken(PROPERTY, at, || {
                format!(
                    "{unread} bytes lie unread in call {number} of process {peer}, whose credit is {credit}"
                )
            });
        }
    }

    /// A tick is carried out.
    pub(crate) fn ticked(&mut self, at: Duration, who: &str) {
        self.ticks = if self.ticked == at { self.ticks + 1 } else { 0 };
        self.ticked = at;
        if self.ticks > TICKS {
            self.verdict.broken("nobody is woken for nothing", at, || format!("{who} ticks without end"));
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
