//! The parts of a table in the database.

use std::io;
use std::path::Path;

use ::redb::{
    CommitError, Database, DatabaseError, MultimapTableHandle, ReadTransaction, ReadableDatabase,
    ReadableTable, StorageError, Table, TableDefinition, TableError, TableHandle, TransactionError,
    WriteTransaction,
};

use super::table::{Layout, Names, TableSetAside};
use super::{LAYOUT, begin};
use crate::store::rows::{Counter, Rows, Totals};
use crate::store::{OpenError, StoreError, Trouble};

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
        names: &Names,
        totals: Option<Totals>,
        action: &'static str,
    ) -> Result<Self, StoreError> {
        let during = |error: TableError| Failure::from(error).during(action);
        let mut tables = Self {
            action,
            records: transaction.open_table(names.records()).map_err(during)?,
            aside: transaction.open_table(names.aside()).map_err(during)?,
            numbers: transaction.open_table(names.numbers()).map_err(during)?,
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

/// Makes the tables of a new file.
pub(super) fn make(database: &Database, layout: &Layout) -> Result<(), Failure> {
    let transaction = begin(database)?;
    for table in &layout.tables {
        make_table(&transaction, &table.names())?;
    }
    Ok(transaction.commit()?)
}

fn make_table(transaction: &WriteTransaction, names: &Names) -> Result<(), Failure> {
    transaction.open_table(names.records())?;
    transaction.open_table(names.aside())?;
    transaction.open_table(names.numbers())?.insert(LAYOUT_NAME, LAYOUT)?;
    Ok(())
}

/// How a table was found.
enum Found {
    Usable,
    Missing,
    Newer(u64),
    Unusable(String),
}

/// Checks that the tables are those of stores, of a layout that is known. Makes those that are not there, and sets those
/// aside that cannot be used, if that is allowed.
pub(super) fn check(
    database: &Database,
    layout: &Layout,
    path: &Path,
) -> Result<Vec<TableSetAside>, OpenError> {
    let foreign = |what: String| OpenError::Foreign { path: path.into(), what };
    let failed = |failure: Failure| failure.on(path);
    let transaction = database.begin_read().map_err(|error| failed(error.into()))?;
    let there = names_in(&transaction).map_err(|error| failed(error.into()))?;
    let mut missing = Vec::new();
    let mut unusable = Vec::new();
    for table in &layout.tables {
        let names = table.names();
        match look_at(&transaction, &names, &there).map_err(failed)? {
            Found::Usable => {}
            Found::Missing => missing.push(names),
            Found::Newer(found) if !layout.sets_aside => {
                return Err(OpenError::Newer { path: path.into(), found, supported: LAYOUT });
            }
            Found::Newer(found) => {
                let reason = format!("it has layout {found}, and this version knows up to {LAYOUT}");
                unusable.push((table.name, names, reason));
            }
            Found::Unusable(reason) if !layout.sets_aside => return Err(foreign(reason)),
            Found::Unusable(reason) => unusable.push((table.name, names, reason)),
        }
    }
    drop(transaction);
    if missing.len() == layout.tables.len() {
        return Err(foreign(format!("it is a redb database with other tables: {there:?}")));
    }
    let ours: Vec<Names> = layout.tables.iter().map(|table| table.names()).collect();
    let is_ours = |name: &&String| ours.iter().any(|names| names.all().contains(&name.as_str()));
    match there.iter().find(|name| !is_ours(name)) {
        Some(name) if layout.is_all => {
            return Err(foreign(format!("it has the unknown table {name:?}")));
        }
        _ if missing.is_empty() && unusable.is_empty() => return Ok(Vec::new()),
        _ => {}
    }
    replace(database, &there, &missing, unusable).map_err(failed)
}

fn names_in(transaction: &ReadTransaction) -> Result<Vec<String>, StorageError> {
    let mut names: Vec<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    let tables = transaction.list_multimap_tables()?;
    names.extend(tables.map(|table| MultimapTableHandle::name(&table).to_owned()));
    Ok(names)
}

/// Looks at a table. The error is the disk's or that of the whole file.
fn look_at(transaction: &ReadTransaction, names: &Names, there: &[String]) -> Result<Found, Failure> {
    let parts = names.all().map(|name| there.iter().any(|there| there == name));
    if parts == [false; 3] {
        return Ok(Found::Missing);
    }
    let layout = match transaction.open_table(names.numbers()) {
        Ok(numbers) => numbers.get(LAYOUT_NAME)?.map(|layout| layout.value()),
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(error) => return Ok(Found::Unusable(error.to_string())),
    };
    match layout {
        Some(LAYOUT) => {}
        Some(layout) => return Ok(Found::Newer(layout)),
        None => return Ok(Found::Unusable("it has no layout's number".to_owned())),
    }
    let types =
        [transaction.open_table(names.records()).map(drop), transaction.open_table(names.aside()).map(drop)];
    match types.into_iter().find_map(Result::err) {
        Some(TableError::Storage(error)) => Err(error.into()),
        Some(error) => Ok(Found::Unusable(error.to_string())),
        None => Ok(Found::Usable),
    }
}

/// Makes tables that are missing, and gives those that cannot be used another name in favour of new ones, all in one commit.
fn replace(
    database: &Database,
    there: &[String],
    missing: &[Names],
    unusable: Vec<(&'static str, Names, String)>,
) -> Result<Vec<TableSetAside>, Failure> {
    let transaction = begin(database)?;
    let mut set_aside = Vec::new();
    for (table, names, reason) in unusable {
        let suffix = |number: u32| format!(".set-aside-{number}");
        let is_free = |number: &u32| !there.iter().any(|name| name.ends_with(&suffix(*number)));
        let suffix = suffix((1..u32::MAX).find(is_free).unwrap_or(u32::MAX));
        for part in names.all().into_iter().filter(|name| there.iter().any(|there| there == name)) {
            let kept = format!("{part}{suffix}");
            // What sort of table it is plays no part in a change of its name.
            let (old, new) =
                (TableDefinition::<u64, u64>::new(part), TableDefinition::<u64, u64>::new(&kept));
            transaction.rename_table(old, new)?;
        }
        make_table(&transaction, &names)?;
        set_aside.push(TableSetAside { table, kept: format!("{table}{suffix}"), reason });
    }
    for names in missing {
        make_table(&transaction, names)?;
    }
    transaction.commit()?;
    Ok(set_aside)
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
