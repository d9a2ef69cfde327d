//! The fence at the node: decides which calls may begin.
//!
//! For each driver the node stores the highest term of its proxies, and what the proxy of that term has reported: the
//! lowest open number, and the numbers above it that were given up. A call of a lower term does not begin, nor a call
//! whose number is below the lowest open one or was given up. Every report applies to all calls that arrive or begin
//! after it.
//!
//! A call number begins at most once. A begun number is remembered until it is below the lowest open one, whatever
//! happens to its result; only a call that provably never reached the driver has not begun. A read-only call may
//! begin again under its number: the proxy sends the call again if its arrival is unknown, and a second read is
//! harmless.
//!
//! The fence never evicts a number: at a limit it rejects calls.

use csi_proto::DriverName;

use super::HashMap;
use super::ranges::Ranges;
use crate::call::{CallNumber, Fault, Fence, MAX_GIVEN_UP, Term};

/// The maximum number of fenced drivers. Only registered drivers have a fence, so only an operator could reach this.
const MAX_DRIVERS: usize = 1024;

/// The maximum number of ranges of one kind per driver. A proxy reports at most [`MAX_GIVEN_UP`] at a time; four times
/// as many leave space for ranges merged or closed since.
const MAX_RANGES: usize = 4 * MAX_GIVEN_UP;

/// The fences of all drivers.
#[derive(Debug, Default)]
pub(crate) struct Fences(HashMap<DriverName, DriverFence>);

#[derive(Debug)]
struct DriverFence {
    term: Term,
    lowest_open: u64,
    given_up: Ranges,
    begun: Ranges,
}

impl Fences {
    /// The highest term of a driver.
    pub(crate) fn term(&self, driver: &DriverName) -> Option<Term> {
        self.0.get(driver).map(|known| known.term)
    }

    /// Raises the term to one that is on disk. Numbers start again with the new term. Does nothing if the term is
    /// not higher than the known one.
    ///
    /// # Errors
    /// If there are too many drivers.
    pub(crate) fn raise(&mut self, driver: &DriverName, term: Term) -> Result<(), Fault> {
        if self.term(driver).is_some_and(|known| known >= term) {
            return Ok(());
        }
        if self.0.len() >= MAX_DRIVERS && !self.0.contains_key(driver) {
            return Err(overloaded("the table of fenced drivers", MAX_DRIVERS));
        }
        let fence =
            DriverFence { term, lowest_open: 0, given_up: Ranges::default(), begun: Ranges::default() };
        self.0.insert(driver.clone(), fence);
        Ok(())
    }

    /// Forgets the term of a driver, and its numbers.
    pub(crate) fn forget(&mut self, driver: &DriverName) {
        self.0.remove(driver);
    }

    /// Applies the report of an arriving call. The call may join a running operation or get a kept result, and begin
    /// if it [may](Self::may_begin).
    ///
    /// # Errors
    /// [`Fault::TermNotRecorded`] if the term must be [raised](Self::raise) first; otherwise the reason why the call
    /// is refused.
    pub(crate) fn arrive(&mut self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        let Some(known) = self.0.get_mut(driver).filter(|known| known.term >= fence.term()) else {
            let reason = "the term is not recorded yet".to_owned();
            return Err(Fault::TermNotRecorded { driver: driver.clone(), reason });
        };
        if known.term == fence.term() {
            known.report(driver, fence)?;
        }
        known.check(driver, fence)
    }

    /// Whether an arrived call may begin now: its number has not begun and was not closed since.
    ///
    /// # Errors
    /// The reason why the call may not begin.
    pub(crate) fn may_begin(&self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        match self.0.get(driver) {
            Some(known) if !known.begun.contains(fence.number().get()) => known.check(driver, fence),
            _ => Err(stale(driver, fence)),
        }
    }

    /// Marks the number of a call as begun because the call begins, joins or gets a result. Returns whether the
    /// number had not begun before.
    pub(crate) fn begin(&mut self, driver: &DriverName, fence: &Fence) -> bool {
        let number = fence.number().get();
        match self.0.get_mut(driver) {
            Some(known) if known.term == fence.term() && !known.begun.contains(number) => {
                known.begun.insert(number, number);
                true
            }
            _ => false,
        }
    }

    /// Unmarks a number whose call has provably not reached the driver.
    pub(crate) fn retract(&mut self, driver: &DriverName, term: Term, number: CallNumber) {
        if let Some(known) = self.0.get_mut(driver).filter(|known| known.term == term) {
            known.begun.remove(number.get());
        }
    }
}

impl DriverFence {
    fn report(&mut self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        let lowest_open = fence.lowest_open().get();
        if lowest_open > self.lowest_open {
            self.lowest_open = lowest_open;
            self.given_up.remove_below(lowest_open);
            self.begun.remove_below(lowest_open);
        }
        let ranges = fence.given_up().ranges();
        if self.given_up.len() + ranges.len() > MAX_RANGES || self.begun.len() >= MAX_RANGES {
            return Err(overloaded(&format!("the fence of driver {driver}"), MAX_RANGES));
        }
        for range in ranges {
            let last = range.end().get();
            if last >= self.lowest_open {
                self.given_up.insert(range.start().get().max(self.lowest_open), last);
            }
        }
        Ok(())
    }

    fn check(&self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        if fence.term() != self.term {
            let (driver, found, current) = (driver.clone(), fence.term(), self.term);
            return Err(Fault::StaleTerm { driver, found, current });
        }
        let number = fence.number().get();
        if number < self.lowest_open || self.given_up.contains(number) {
            return Err(stale(driver, fence));
        }
        Ok(())
    }
}

pub(crate) fn stale(driver: &DriverName, fence: &Fence) -> Fault {
    Fault::StaleCall { driver: driver.clone(), number: fence.number() }
}

fn overloaded(what: &str, max: usize) -> Fault {
    Fault::Overloaded { what: what.to_owned(), max: max as u64 }
}

#[cfg(test)]
mod tests;
