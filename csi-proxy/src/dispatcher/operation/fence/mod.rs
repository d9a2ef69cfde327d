//! The fence at the node: decides which calls may begin.
//!
//! For a driver the node stores the highest term of its proxies, and what the proxy of that term has reported: the
//! lowest open number, and the numbers above it that were given up. A call of a lower term does not begin, nor a call
//! whose number is below the lowest open one or was given up. Every report applies to all calls that arrive or begin
//! after it.
//!
//! A call number begins at most once. A begun number is remembered until it is below the lowest open one, whatever
//! happens to its result; only a call that provably never reached the driver has not begun. A read-only call may
//! begin again under its number: the proxy sends the call again if its arrival is unknown, and a second read is
//! harmless.
//!
//! The fence never evicts a number: at a limit it closes the lowest ones that it knows nothing of. A proxy that still has
//! one of them open continues with a higher term.

use csi_proto::DriverName;

use super::ranges::Ranges;
use crate::call::{CallNumber, Fault, Fence, MAX_GIVEN_UP, Term};

/// The maximum number of ranges of one kind. A proxy reports at most [`MAX_GIVEN_UP`] at a time; four times as many leave
/// space for ranges merged or closed since.
const MAX_RANGES: usize = 4 * MAX_GIVEN_UP;

/// The fence of a driver.
#[derive(Debug, Default)]
pub(crate) struct DriverFence {
    /// The highest term; `None` before the first one.
    term: Option<Term>,
    lowest_open: u64,
    given_up: Ranges,
    begun: Ranges,
}

impl DriverFence {
    /// The highest term.
    pub(crate) fn term(&self) -> Option<Term> {
        self.term
    }

    /// Raises the term to one that is on disk. Numbers start again with the new term. Does nothing if the term is
    /// not higher than the known one.
    pub(crate) fn raise(&mut self, term: Term) {
        if self.term < Some(term) {
            *self = Self { term: Some(term), ..Self::default() };
        }
    }

    /// Applies the report of an arriving call. The call may join a running operation or get a kept result, and begin
    /// if it [may](Self::may_begin).
    ///
    /// # Errors
    /// [`Fault::TermNotRecorded`] if the term must be [raised](Self::raise) first; otherwise the reason why the call
    /// is refused.
    pub(crate) fn arrive(&mut self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        if self.term < Some(fence.term()) {
            let reason = "the term is not recorded yet".to_owned();
            return Err(Fault::TermNotRecorded { driver: driver.clone(), reason });
        }
        if self.term == Some(fence.term()) {
            self.report(fence);
        }
        self.check(driver, fence)
    }

    /// Whether an arrived call may begin now: its number has not begun and was not closed since.
    ///
    /// # Errors
    /// The reason why the call may not begin.
    pub(crate) fn may_begin(&self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        match self.begun.contains(fence.number().get()) {
            true => Err(stale(driver, fence)),
            false => self.check(driver, fence),
        }
    }

    /// Marks the number of a call as begun because the call begins, joins or gets a result. Returns whether the
    /// number had not begun before.
    pub(crate) fn begin(&mut self, fence: &Fence) -> bool {
        let number = fence.number().get();
        let begins = self.term == Some(fence.term()) && !self.begun.contains(number);
        if begins {
            self.begun.insert(number, number);
            self.begun.merge_lowest(MAX_RANGES);
        }
        begins
    }

    /// Unmarks a number whose call has provably not reached the driver.
    pub(crate) fn retract(&mut self, term: Term, number: CallNumber) {
        if self.term == Some(term) {
            self.begun.remove(number.get());
        }
    }

    fn report(&mut self, fence: &Fence) {
        let lowest_open = fence.lowest_open().get();
        if lowest_open > self.lowest_open {
            self.lowest_open = lowest_open;
            self.given_up.remove_below(lowest_open);
            self.begun.remove_below(lowest_open);
        }
        for range in fence.given_up().ranges() {
            let last = range.end().get();
            if last >= self.lowest_open {
                self.given_up.insert(range.start().get().max(self.lowest_open), last);
            }
        }
        self.given_up.merge_lowest(MAX_RANGES);
    }

    fn check(&self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        if let Some(current) = self.term.filter(|current| fence.term() != *current) {
            return Err(Fault::StaleTerm { driver: driver.clone(), found: fence.term(), current });
        }
        let number = fence.number().get();
        if self.term.is_none() || number < self.lowest_open || self.given_up.contains(number) {
            return Err(stale(driver, fence));
        }
        Ok(())
    }
}

pub(crate) fn stale(driver: &DriverName, fence: &Fence) -> Fault {
    Fault::StaleCall { driver: driver.clone(), number: fence.number() }
}

#[cfg(test)]
mod tests;
