//! The changes of one commit, staged until they are written as one batch of rows.

use std::collections::BTreeMap;

use super::StoreError;
use super::plan::Totals;
use super::rows::{RowTable, RowWrite, Rows};

/// The counters of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    /// The sequence number of the last commit.
    Sequence,
    /// The last number of a row that was moved aside.
    Aside,
}

impl Counter {
    /// The key of the counter's row.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Aside => "aside",
        }
    }

    /// The write that sets the counter.
    pub(super) fn set(self, number: u64) -> RowWrite {
        let value = Some(number.to_be_bytes().to_vec());
        RowWrite { table: RowTable::Counters, key: self.name().into(), value }
    }
}

/// Rows with the staged changes of one commit on top.
pub(super) struct Batch<'r> {
    rows: &'r mut dyn Rows,
    writes: BTreeMap<(RowTable, Vec<u8>), Option<Vec<u8>>>,
    totals: Totals,
}

impl<'r> Batch<'r> {
    pub(super) fn new(rows: &'r mut dyn Rows, totals: Totals) -> Self {
        Self { rows, writes: BTreeMap::new(), totals }
    }

    /// The totals with the staged changes.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the bytes of a record's row.
    pub(super) fn record(&mut self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(RowTable::Records, row)
    }

    /// Stages the new bytes of a record's row; `old` is the present size.
    pub(super) fn set_record(&mut self, row: &[u8], old: Option<usize>, bytes: Option<Vec<u8>>) {
        self.totals.records.change(old, bytes.as_ref().map(Vec::len));
        self.writes.insert((RowTable::Records, row.into()), bytes);
    }

    /// Returns the bytes that were moved aside under a number.
    pub(super) fn aside(&mut self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(RowTable::Aside, &number.to_be_bytes())
    }

    /// Stages the bytes aside under a number; `old` is the present size.
    pub(super) fn set_aside(&mut self, number: u64, old: Option<usize>, bytes: Option<Vec<u8>>) {
        self.totals.aside.change(old, bytes.as_ref().map(Vec::len));
        self.writes.insert((RowTable::Aside, number.to_be_bytes().into()), bytes);
    }

    /// Returns a counter, initially zero.
    pub(super) fn counter(&mut self, counter: Counter) -> Result<u64, StoreError> {
        let Some(value) = self.get(RowTable::Counters, counter.name().as_bytes())? else { return Ok(0) };
        number("a counter", &value)
    }

    /// Increments a counter, and returns its new value.
    pub(super) fn increment(&mut self, counter: Counter) -> Result<u64, StoreError> {
        let number = self.counter(counter)?.saturating_add(1);
        let RowWrite { table, key, value } = counter.set(number);
        self.writes.insert((table, key), value);
        Ok(number)
    }

    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.writes.get(&(table, key.to_vec())) {
            Some(staged) => Ok(staged.clone()),
            None => self.rows.get(table, key),
        }
    }

    /// Writes the staged changes, if there are any, and returns the totals after them.
    pub(super) fn write(self) -> Result<Totals, StoreError> {
        let writes: Vec<RowWrite> =
            self.writes.into_iter().map(|((table, key), value)| RowWrite { table, key, value }).collect();
        if !writes.is_empty() {
            self.rows.write(&writes)?;
        }
        Ok(self.totals)
    }
}

/// Decodes a number of 8 bytes.
pub(super) fn number(what: &str, bytes: &[u8]) -> Result<u64, StoreError> {
    let number = bytes.try_into().map(u64::from_be_bytes);
    number.map_err(|_| StoreError::Damaged {
        action: "an access to the rows",
        what: format!("{what} has {} bytes; expected 8", bytes.len()),
    })
}
