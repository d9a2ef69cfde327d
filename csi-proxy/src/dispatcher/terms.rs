//! Stores of the terms of the drivers' proxies at a node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::call::Term;

/// Stores the highest term of each driver, so that a restarted node still refuses a replaced proxy.
///
/// # Contract
/// - A term is durable when [`Self::raise`] returns. A lower term never replaces a higher one.
/// - A dropped or failed future may or may not have stored the term. The dispatcher then raises the term again.
#[async_trait]
pub trait TermStore: Send + Sync + fmt::Debug {
    /// The highest term of a driver; `None` if there is none. Awaited for at most 10 s, before the first call of the driver
    /// that has a term. Calls for one driver do not overlap.
    ///
    /// # Errors
    /// If the term cannot be read. No call of the driver begins until a read succeeds.
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError>;

    /// Stores a term unless a higher one is stored. Awaited for at most 10 s; a driver's term rises 8 times at once, and then
    /// once a second. Raises of one driver do not overlap, but a dropped one may still be running.
    ///
    /// # Errors
    /// If the term may not be durable. No call of that term begins until it is.
    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError>;

    /// Removes the term of a driver. The removal is durable when this returns. Does not overlap with another call for the
    /// driver, and has no time limit.
    ///
    /// # Errors
    /// If the term may still be stored.
    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError>;
}

/// A term cannot be read or stored.
#[derive(Debug, thiserror::Error)]
#[error("cannot read or store terms: {0}")]
pub struct TermStoreError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TermStoreError {
    /// Wraps the error of the store.
    #[must_use]
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Terms in memory: for tests, and for a node without a disk. After a restart of the node a replaced proxy is accepted
/// until its successor calls.
#[derive(Debug, Default)]
pub struct MemoryTerms(Mutex<BTreeMap<DriverName, Term>>);

#[async_trait]
impl TermStore for MemoryTerms {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).get(driver).copied())
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        let mut terms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = terms.entry(driver.clone()).or_insert(term);
        *known = term.max(*known);
        Ok(())
    }

    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(driver);
        Ok(())
    }
}

/// How many times the term of a driver may rise at once, and how long until it may rise once more. A proxy raises its
/// term when it starts, and each rise is a write to the disk.
const MAX_RISES: u32 = 8;
const RISE_INTERVAL: Duration = Duration::from_secs(1);

/// Bounds how often the term of one driver rises.
#[derive(Debug, Default)]
pub(crate) struct Rises {
    used: u32,
    /// The time at which the first of the used rises is free again.
    free_at: Option<Instant>,
}

impl Rises {
    /// Takes one rise, if one is free.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        while let Some(at) = self.free_at.filter(|at| *at <= now) {
            self.used -= 1;
            self.free_at = (self.used > 0).then(|| at + RISE_INTERVAL);
        }
        if self.used >= MAX_RISES {
            return false;
        }
        self.used += 1;
        self.free_at.get_or_insert(now + RISE_INTERVAL);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_rises_8_times_at_once_and_then_once_a_second() {
        let (mut rises, start) = (Rises::default(), Instant::now());
        let mut count = |millis| {
            let now = start + Duration::from_millis(millis);
            std::iter::repeat_with(|| rises.take(now)).take_while(|taken| *taken).count()
        };
        assert_eq!([0, 999, 1000, 1500, 2999, 4000].map(&mut count), [8, 0, 1, 0, 1, 2]);
        assert_eq!([3_600_000, 3_600_500].map(count), [8, 0]);
    }
}
