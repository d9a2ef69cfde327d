//! The tables of the database.

use std::io;
use std::path::Path;

use ::redb::{
    CommitError, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, Table,
    TableDefinition, TableError, TableHandle, TransactionError, WriteTransaction,
};

use super::{LAYOUT, begin};
use crate::store::rows::{Counter, Rows, Totals};
use crate::store::{OpenError, StoreError, Trouble};

/// Records in their envelopes, by the row of their key.
pub(super) const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// What was moved aside, packed, by number.
pub(super) const ASIDE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("aside");

/// The layout's number and the counters.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

const LAYOUT_NAME: &str = "layout";

const fn name(counter: Counter) -> &'static str {
    match counter {
        Counter::Sequence => "sequence",
        Counter::Aside => "aside",
    }
}

/// The tables in a transaction that writes.
pub(super) struct Tables<'t> {
    action: &'static str,
    records: Table<'t, &'static [u8], &'static [u8]>,
    aside: Table<'t, u64, &'static [u8]>,
    numbers: Table<'t, &'static str, u64>,
    totals: Totals,
}

impl<'t> Tables<'t> {
    /// Opens the tables. How much they hold is counted if it is not known.
    pub(super) fn open(
        transaction: &'t WriteTransaction,
        totals: Option<Totals>,
        action: &'static str,
    ) -> Result<Self, StoreError> {
        let during = |error: TableError| Failure::from(error).during(action);
        let mut tables = Self {
            action,
            records: transaction.open_table(RECORDS).map_err(during)?,
            aside: transaction.open_table(ASIDE).map_err(during)?,
            numbers: transaction.open_table(NUMBERS).map_err(during)?,
            totals: Totals::default(),
        };
        tables.totals = match totals {
            Some(totals) => totals,
            None => tables.during(tables.count())?,
        };
        Ok(tables)
    }

    fn count(&self) -> Result<Totals, StorageError> {
        let mut totals = Totals::default();
        for row in self.records.iter()? {
            totals.records.change(None, Some(row?.1.value().len()));
        }
        for row in self.aside.iter()? {
            totals.aside.change(None, Some(row?.1.value().len()));
        }
        Ok(totals)
    }

    fn during<T>(&self, outcome: Result<T, StorageError>) -> Result<T, StoreError> {
        outcome.map_err(|error| Failure::from(error).during(self.action))
    }
}

impl Rows for Tables<'_> {
    fn record(&self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.during(self.records.get(row))?.map(|bytes| bytes.value().to_vec()))
    }

    fn put_record(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let old = self.records.insert(row, bytes).map(|old| old.map(|old| old.value().len()));
        let old = self.during(old)?;
        self.totals.records.change(old, Some(bytes.len()));
        Ok(())
    }

    fn remove_record(&mut self, row: &[u8]) -> Result<(), StoreError> {
        let old = self.records.remove(row).map(|old| old.map(|old| old.value().len()));
        let old = self.during(old)?;
        self.totals.records.change(old, None);
        Ok(())
    }

    fn aside(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.during(self.aside.get(number))?.map(|bytes| bytes.value().to_vec()))
    }

    fn put_aside(&mut self, number: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let old = self.aside.insert(number, bytes).map(|old| old.map(|old| old.value().len()));
        let old = self.during(old)?;
        self.totals.aside.change(old, Some(bytes.len()));
        Ok(())
    }

    fn remove_aside(&mut self, number: u64) -> Result<(), StoreError> {
        let old = self.aside.remove(number).map(|old| old.map(|old| old.value().len()));
        let old = self.during(old)?;
        self.totals.aside.change(old, None);
        Ok(())
    }

    fn counter(&self, counter: Counter) -> Result<u64, StoreError> {
        Ok(self.during(self.numbers.get(name(counter)))?.map_or(0, |number| number.value()))
    }

    fn set_counter(&mut self, counter: Counter, number: u64) -> Result<(), StoreError> {
        let outcome = self.numbers.insert(name(counter), number).map(drop);
        self.during(outcome)
    }

    fn totals(&self) -> Totals {
        self.totals
    }
}

/// Makes the tables of a new store.
pub(super) fn make(database: &Database) -> Result<(), Failure> {
    let transaction = begin(database)?;
    transaction.open_table(RECORDS)?;
    transaction.open_table(ASIDE)?;
    transaction.open_table(NUMBERS)?.insert(LAYOUT_NAME, LAYOUT)?;
    Ok(transaction.commit()?)
}

/// Checks that the tables are those of a store, of a layout that is known.
pub(super) fn check(database: &Database, path: &Path) -> Result<(), OpenError> {
    let foreign = |what: String| OpenError::Foreign { path: path.into(), what };
    let failed = |failure: Failure| failure.on(path);
    let transaction = database.begin_read().map_err(|error| failed(error.into()))?;
    let layout = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers.get(LAYOUT_NAME).map_err(|error| failed(error.into()))?,
        Err(TableError::Storage(error)) => return Err(failed(error.into())),
        Err(error) => return Err(foreign(format!("it is a redb database, but {error}"))),
    };
    let Some(layout) = layout else {
        return Err(foreign("it is a redb database without a layout's number".into()));
    };
    if layout.value() != LAYOUT {
        return Err(OpenError::Newer { path: path.into(), found: layout.value(), supported: LAYOUT });
    }
    let known = [RECORDS.name(), ASIDE.name(), NUMBERS.name()];
    let mut names = Vec::new();
    names.extend(
        transaction.list_tables().map_err(|error| failed(error.into()))?.map(|table| table.name().to_owned()),
    );
    let tables = transaction.list_multimap_tables().map_err(|error| failed(error.into()))?;
    names.extend(tables.map(|table| ::redb::MultimapTableHandle::name(&table).to_owned()));
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => return Err(foreign(format!("it has the unknown table {name:?}"))),
        None if names.len() < known.len() => return Err(foreign(format!("it has no tables but {names:?}"))),
        None => {}
    }
    let types = [transaction.open_table(RECORDS).map(drop), transaction.open_table(ASIDE).map(drop)];
    match types.into_iter().find_map(Result::err) {
        Some(TableError::Storage(error)) => Err(failed(error.into())),
        Some(error) => Err(foreign(error.to_string())),
        None => Ok(()),
    }
}

/// Why redb did not do something.
#[derive(Debug)]
pub(super) enum Failure {
    Disk(io::Error),
    InUse,
    Damaged(String),
}

impl Failure {
    pub(super) fn during(self, action: &'static str) -> StoreError {
        match self {
            Self::Disk(source) => StoreError::disk(action, source),
            Self::InUse => StoreError::disk(action, io::Error::other("another process has it open")),
            Self::Damaged(what) => StoreError::Damaged { action, what },
        }
    }

    pub(super) fn on(self, path: &Path) -> OpenError {
        let path = path.into();
        match self {
            Self::Disk(source) => OpenError::Disk { path, trouble: Trouble::of(&source), source },
            Self::InUse => OpenError::InUse { path },
            Self::Damaged(what) => OpenError::Damaged { path, what },
        }
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        match error {
            // A file that ends too early is how truncation shows.
            StorageError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it ends too early".into())
            }
            StorageError::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Damaged(error.to_string())
            }
            StorageError::Io(error) => Self::Disk(error),
            StorageError::Corrupted(what) => Self::Damaged(what),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Storage(error) => error.into(),
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::InUse,
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<TransactionError> for Failure {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => error.into(),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => error.into(),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}
