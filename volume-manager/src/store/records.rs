//! The store: records, versions and quarantine above rows of bytes.

use std::fmt;

use super::batch::{Batch, number};
use super::plan::{Loading, Plan, Totals};
use super::rows::{RowTable, Rows};
use super::{Change, Loaded, QuarantineId, StoreError, quarantine};

/// A store of records, on the [`Rows`] of a medium. See the [module](super) for its contract.
///
/// Dropping it closes the medium. Every acknowledged commit is on it already.
pub struct Store {
    rows: Box<dyn Rows>,
    /// Why the store is stopped.
    stop: Option<StoreError>,
    /// The totals of the rows, once counted.
    totals: Option<Totals>,
}

impl Store {
    /// Creates a store on the rows of a medium, which may have the records of an earlier store.
    pub fn new(rows: impl Rows + 'static) -> Self {
        Self { rows: Box::new(rows), stop: None, totals: None }
    }

    /// Returns the rows, such as to wrap them.
    #[must_use]
    pub fn into_rows(self) -> Box<dyn Rows> {
        self.rows
    }

    /// Loads all records, in order of the keys. The result is durable.
    ///
    /// # Errors
    /// If the medium cannot be read, or the store exceeds the limits; never because of a single record.
    pub fn load(&mut self) -> Result<Loaded, StoreError> {
        self.running(|rows, totals| {
            let mut loading = Loading::default();
            scan(rows, RowTable::Records, |row, bytes| loading.add_record(row, bytes))?;
            scan(rows, RowTable::Aside, |key, packed| {
                loading.add_aside(number("a key of the table of rows aside", key)?, packed)
            })?;
            let (loaded, found) = loading.finish();
            *totals = Some(found);
            Ok(loaded)
        })
    }

    /// Applies the changes in order, and returns when all of them are durable. If one is rejected, none is
    /// applied.
    ///
    /// # Errors
    /// If a limit is exceeded: nothing is written, the store continues, and [`StoreError::rejected_record`] is the record to
    /// omit. If the medium fails: either all or none of the changes are durable, and the store is stopped until
    /// [`Store::reopen`].
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.change(|batch| {
            let plan = Plan::new(batch, changes)?;
            if plan.is_empty() { Ok(()) } else { plan.stage(batch) }
        })
    }

    /// Reopens a stopped store. Load it again afterwards.
    ///
    /// # Errors
    /// If it cannot be opened. It remains stopped, and may be reopened later.
    pub fn reopen(&mut self) -> Result<(), StoreError> {
        self.totals = None;
        let outcome = self.rows.reopen();
        self.stop = outcome.as_ref().err().map(StoreError::stopped);
        outcome
    }

    /// Returns the bytes of a quarantined record.
    ///
    /// # Errors
    /// If the record does not exist, or the medium cannot be read.
    pub fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.running(|rows, _| quarantine::quarantined(&mut Batch::new(rows, Totals::default()), id))
    }

    /// Releases a quarantined record, if it is readable now and its key is free.
    ///
    /// # Errors
    /// As [`Store::commit`]; or if it cannot be read, or its key has a newer record.
    pub fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.change(|batch| quarantine::release(batch, id))
    }

    /// Deletes a quarantined record permanently.
    ///
    /// # Errors
    /// As [`Store::commit`], or if the record does not exist.
    pub fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.change(|batch| quarantine::discard(batch, id))
    }

    /// Stages changes, and writes them as one batch.
    fn change(
        &mut self,
        stage: impl FnOnce(&mut Batch<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.running(|rows, totals| {
            let before = match *totals {
                Some(totals) => totals,
                None => count(rows)?,
            };
            *totals = Some(before);
            let mut batch = Batch::new(rows, before);
            stage(&mut batch)?;
            *totals = Some(batch.write()?);
            Ok(())
        })
    }

    /// Accesses the rows unless the store is stopped, and stops it if they fail.
    fn running<T>(
        &mut self,
        access: impl FnOnce(&mut dyn Rows, &mut Option<Totals>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(stop) = &self.stop {
            return Err(stop.clone());
        }
        let outcome = access(&mut *self.rows, &mut self.totals);
        self.stop = outcome.as_ref().err().filter(|error| error.is_stopped()).map(StoreError::stopped);
        outcome
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stopped", &self.stop).finish_non_exhaustive()
    }
}

/// Visits the rows of a table until one is rejected.
fn scan(
    rows: &mut dyn Rows,
    table: RowTable,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    rows.scan(table, &mut |key, value| {
        if outcome.is_ok() {
            outcome = visit(key, value);
        }
    })?;
    outcome
}

fn count(rows: &mut dyn Rows) -> Result<Totals, StoreError> {
    let mut totals = Totals::default();
    rows.scan(RowTable::Records, &mut |_, value| totals.records.change(None, Some(value.len())))?;
    rows.scan(RowTable::Aside, &mut |_, value| totals.aside.change(None, Some(value.len())))?;
    Ok(totals)
}
