//! The fence at the node: which calls may begin.
//!
//! For each driver the node knows the highest term of its proxies, and for that term what the proxy has reported: the
//! lowest number still open, and the numbers above it that were given up. A call of a lower term does not begin, nor
//! one whose number is below the lowest open one or was given up. What any call has ever reported holds for all that
//! come or begin after it.
//!
//! A number begins once. What has begun is remembered until its number is below the lowest open one, whatever becomes
//! of its result; only what provably never reached the driver has not begun. Only a call that changes nothing may begin
//! again under its number: the proxy sends it again when it cannot know whether it arrived, and a second reading does
//! no harm.
//!
//! No bound makes the fence forget: at a bound calls are refused.

use std::collections::HashMap;

use csi_proto::DriverName;

use super::ranges::Ranges;
use crate::call::{CallNumber, Fault, Fence, MAX_GIVEN_UP, Term};

/// Most drivers that are fenced. Only drivers that were registered have a fence, so an operator alone could reach this.
const MAX_DRIVERS: usize = 1024;

/// Most ranges of one kind for each driver. A proxy reports at most [`MAX_GIVEN_UP`] at a time; four times as many
/// leave room for what it has merged or closed since.
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

    /// A term that is on the disk. All numbers begin anew with it. Nothing happens if it is not higher than the one
    /// that is known.
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

    /// Takes in what an arriving call reports. The call passes: it may join what runs or get a result that is there, and begin if that
    /// [may be](Self::may_begin).
    ///
    /// # Errors
    /// [`Fault::TermNotRecorded`] if the term is to be [raised](Self::raise) first; else why the call does not pass.
    pub(crate) fn arrive(&mut self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        let Some(known) = self.0.get_mut(driver).filter(|known| known.term >= fence.term()) else {
            let reason = "the term is new".to_owned();
            return Err(Fault::TermNotRecorded { driver: driver.clone(), reason });
        };
        if known.term == fence.term() {
            known.report(driver, fence)?;
        }
        known.check(driver, fence)
    }

    /// Whether a call that has arrived may begin now: its number has not begun, nor been closed since.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn may_begin(&self, driver: &DriverName, fence: &Fence) -> Result<(), Fault> {
        match self.0.get(driver) {
            Some(known) if !known.begun.contains(fence.number().get()) => known.check(driver, fence),
            _ => Err(stale(driver, fence)),
        }
    }

    /// A call begins, joins or gets a result. Its number never begins again. Whether it begins only now.
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

    /// What made a number [begin](Self::begin) has provably not reached the driver: it has not begun after all.
    pub(crate) fn take_back(&mut self, driver: &DriverName, term: Term, number: CallNumber) {
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
