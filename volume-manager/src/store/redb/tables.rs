//! The tables of a file and their parts.

use std::io;
use std::path::Path;

use ::redb::{
    Database, MultimapTableHandle, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, TableHandle, WriteTransaction,
};

use super::{LAYOUT, begin};
use crate::store::rows::{Counter, Rows, Totals};
use crate::store::{OpenError, RecordKind, StoreError};

/// A table of a database file, with the records of one store, its quarantine and its layout version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// The table's name.
    pub name: &'static str,
    /// The kind of its records, if the file has several tables. Records salvaged from a corrupt file are assigned
    /// to tables by their kind.
    pub kind: RecordKind,
}

impl Table {
    /// The table of a file with a single table, for records of any kind.
    pub(super) const ONLY: Self = Self::new("records", RecordKind(0));

    /// Creates a table for records of a kind. The kind must be unique within the file. The name must not contain a
    /// dot.
    #[must_use]
    pub const fn new(name: &'static str, kind: RecordKind) -> Self {
        Self { name, kind }
    }

    pub(super) fn names(self) -> Names {
        let part = |part: &str| format!("{}.{part}", self.name);
        Names { records: self.name.to_owned(), aside: part("aside"), numbers: part("numbers") }
    }
}

/// The names of a table's parts in the file.
#[derive(Debug, Clone)]
pub(super) struct Names {
    records: String,
    aside: String,
    numbers: String,
}

impl Names {
    /// The names of all parts.
    pub(super) fn all(&self) -> [&str; 3] {
        [&self.records, &self.aside, &self.numbers]
    }

    /// Records in their envelopes, by the row of their key.
    pub(super) fn records(&self) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
        TableDefinition::new(&self.records)
    }

    /// The packed rows that were moved aside, by number.
    pub(super) fn aside(&self) -> TableDefinition<'_, u64, &'static [u8]> {
        TableDefinition::new(&self.aside)
    }

    /// The layout version and the counters.
    pub(super) fn numbers(&self) -> TableDefinition<'_, &'static str, u64> {
        TableDefinition::new(&self.numbers)
    }
}

/// The tables of a file, with the options for opening them.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) tables: Vec<Table>,
    /// Whether an unusable table is renamed and replaced. Otherwise it is an error.
    pub(super) replace_unusable: bool,
    /// Whether other tables in the file are an error. Otherwise they are left unchanged.
    pub(super) exclusive: bool,
}

impl Layout {
    /// Returns the layout of a file with a single table.
    pub(super) fn only() -> Self {
        Self { tables: vec![Table::ONLY], replace_unusable: false, exclusive: true }
    }
}

/// An unusable table that was renamed within the file and replaced by an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplacedTable {
    /// The table's name.
    pub table: &'static str,
    /// Its new name in the file.
    pub kept: String,
    /// Why it is unusable.
    pub reason: String,
}

const LAYOUT_NAME: &str = "layout";

const fn name(counter: Counter) -> &'static str {
    match counter {
        Counter::Sequence => "sequence",
        Counter::Aside => "aside",
    }
}

/// The open parts of a table in a write transaction.
pub(super) struct Tables<'t> {
    action: &'static str,
    records: ::redb::Table<'t, &'static [u8], &'static [u8]>,
    aside: ::redb::Table<'t, u64, &'static [u8]>,
    numbers: ::redb::Table<'t, &'static str, u64>,
    totals: Totals,
}

impl<'t> Tables<'t> {
    /// Opens the parts. Counts the totals if they are unknown.
    pub(super) fn open(
        transaction: &'t WriteTransaction,
        names: &Names,
        totals: Option<Totals>,
        action: &'static str,
    ) -> Result<Self, StoreError> {
        let mut tables = Self {
            action,
            records: transaction.open_table(names.records()).map_err(failed(action))?,
            aside: transaction.open_table(names.aside()).map_err(failed(action))?,
            numbers: transaction.open_table(names.numbers()).map_err(failed(action))?,
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
        outcome.map_err(failed(self.action))
    }
}

impl Rows for Tables<'_> {
    fn record(&self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.during(self.records.get(row))?.map(|bytes| bytes.value().to_vec()))
    }

    fn set_record(&mut self, row: &[u8], bytes: Option<&[u8]>) -> Result<(), StoreError> {
        let old = match bytes {
            Some(bytes) => self.records.insert(row, bytes),
            None => self.records.remove(row),
        };
        let old = old.map(|old| old.map(|old| old.value().len())).map_err(failed(self.action))?;
        self.totals.records.change(old, bytes.map(<[u8]>::len));
        Ok(())
    }

    fn aside(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.during(self.aside.get(number))?.map(|bytes| bytes.value().to_vec()))
    }

    fn set_aside(&mut self, number: u64, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        let old = match bytes {
            Some(bytes) => self.aside.insert(number, bytes),
            None => self.aside.remove(number),
        };
        let old = old.map(|old| old.map(|old| old.value().len())).map_err(failed(self.action))?;
        self.totals.aside.change(old, bytes.map(<[u8]>::len));
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

/// Creates the tables of a new file.
pub(super) fn make(database: &Database, layout: &Layout) -> Result<(), ::redb::Error> {
    let transaction = begin(database)?;
    for table in &layout.tables {
        make_table(&transaction, &table.names())?;
    }
    Ok(transaction.commit()?)
}

fn make_table(transaction: &WriteTransaction, names: &Names) -> Result<(), ::redb::Error> {
    transaction.open_table(names.records())?;
    transaction.open_table(names.aside())?;
    transaction.open_table(names.numbers())?.insert(LAYOUT_NAME, LAYOUT)?;
    Ok(())
}

/// The state of a table in the file.
enum Found {
    Usable,
    Missing,
    Newer(u64),
    Unusable(String),
}

/// Checks that the tables have a supported layout. Creates missing ones, and replaces unusable ones if the layout allows it.
pub(super) fn check(
    database: &Database,
    layout: &Layout,
    path: &Path,
) -> Result<Vec<ReplacedTable>, OpenError> {
    let foreign = |what: String| OpenError::Foreign { path: path.into(), what };
    let transaction = database.begin_read().map_err(|error| open_error(path)(error.into()))?;
    let existing = names_in(&transaction).map_err(open_error(path))?;
    let mut missing = Vec::new();
    let mut unusable = Vec::new();
    for table in &layout.tables {
        let names = table.names();
        match inspect(&transaction, &names, &existing).map_err(open_error(path))? {
            Found::Usable => {}
            Found::Missing => missing.push(names),
            Found::Newer(found) if !layout.replace_unusable => {
                return Err(OpenError::Newer { path: path.into(), found, supported: LAYOUT });
            }
            Found::Newer(found) => {
                let reason = format!("it has layout {found}; this version supports up to {LAYOUT}");
                unusable.push((table.name, names, reason));
            }
            Found::Unusable(reason) if !layout.replace_unusable => return Err(foreign(reason)),
            Found::Unusable(reason) => unusable.push((table.name, names, reason)),
        }
    }
    drop(transaction);
    if missing.len() == layout.tables.len() {
        return Err(foreign(format!("it is a redb database with other tables: {existing:?}")));
    }
    let expected: Vec<Names> = layout.tables.iter().map(|table| table.names()).collect();
    let is_expected = |name: &&String| expected.iter().any(|names| names.all().contains(&name.as_str()));
    match existing.iter().find(|name| !is_expected(name)) {
        Some(name) if layout.exclusive => {
            return Err(foreign(format!("it has the unknown table {name:?}")));
        }
        _ if missing.is_empty() && unusable.is_empty() => return Ok(Vec::new()),
        _ => {}
    }
    replace(database, &existing, &missing, unusable).map_err(open_error(path))
}

fn names_in(transaction: &ReadTransaction) -> Result<Vec<String>, ::redb::Error> {
    let mut names: Vec<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    let tables = transaction.list_multimap_tables()?;
    names.extend(tables.map(|table| MultimapTableHandle::name(&table).to_owned()));
    Ok(names)
}

/// Returns the state of a table, or an error of the disk or of the whole file.
fn inspect(
    transaction: &ReadTransaction,
    names: &Names,
    existing: &[String],
) -> Result<Found, ::redb::Error> {
    let parts = names.all().map(|name| existing.iter().any(|existing| existing == name));
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
        None => return Ok(Found::Unusable("it has no layout version".to_owned())),
    }
    let types =
        [transaction.open_table(names.records()).map(drop), transaction.open_table(names.aside()).map(drop)];
    match types.into_iter().find_map(Result::err) {
        Some(TableError::Storage(error)) => Err(error.into()),
        Some(error) => Ok(Found::Unusable(error.to_string())),
        None => Ok(Found::Usable),
    }
}

/// Creates missing tables, and renames and replaces unusable ones, in one commit.
fn replace(
    database: &Database,
    existing: &[String],
    missing: &[Names],
    unusable: Vec<(&'static str, Names, String)>,
) -> Result<Vec<ReplacedTable>, ::redb::Error> {
    let transaction = begin(database)?;
    let mut replaced = Vec::new();
    for (table, names, reason) in unusable {
        let suffix = |number: u32| format!(".set-aside-{number}");
        let is_free = |number: &u32| !existing.iter().any(|name| name.ends_with(&suffix(*number)));
        let suffix = suffix((1..u32::MAX).find(is_free).unwrap_or(u32::MAX));
        for part in names.all().into_iter().filter(|name| existing.iter().any(|existing| existing == name)) {
            let kept = format!("{part}{suffix}");
            // The types do not matter for a rename.
            let (old, new) =
                (TableDefinition::<u64, u64>::new(part), TableDefinition::<u64, u64>::new(&kept));
            transaction.rename_table(old, new)?;
        }
        make_table(&transaction, &names)?;
        replaced.push(ReplacedTable { table, kept: format!("{table}{suffix}"), reason });
    }
    for names in missing {
        make_table(&transaction, names)?;
    }
    transaction.commit()?;
    Ok(replaced)
}

/// Converts an error of redb, with the action that failed.
pub(super) fn failed<E: Into<::redb::Error>>(action: &'static str) -> impl Fn(E) -> StoreError {
    move |error| match Failure::from(error.into()) {
        Failure::Disk(source) => StoreError::disk(action, source),
        Failure::InUse => StoreError::disk(action, io::Error::other("another process has it open")),
        Failure::Damaged(what) => StoreError::Damaged { action, what },
    }
}

/// Converts an error of redb during the opening of a file, with its path.
pub(super) fn open_error(path: &Path) -> impl Fn(::redb::Error) -> OpenError {
    move |error| match Failure::from(error) {
        Failure::Disk(source) => OpenError::disk(path)(source),
        Failure::InUse => OpenError::InUse { path: path.into() },
        Failure::Damaged(what) => OpenError::Damaged { path: path.into(), what },
    }
}

/// The class of an error of redb.
enum Failure {
    Disk(io::Error),
    InUse,
    Damaged(String),
}

impl From<::redb::Error> for Failure {
    fn from(error: ::redb::Error) -> Self {
        use ::redb::Error;
        match error {
            // redb reports a truncated file as an unexpected end of file.
            Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it is truncated".into())
            }
            Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Damaged(error.to_string())
            }
            Error::Io(error) => Self::Disk(error),
            Error::Corrupted(what) => Self::Damaged(what),
            Error::DatabaseAlreadyOpen | Error::LockProtocolMismatch => Self::InUse,
            Error::RepairAborted
            | Error::UpgradeRequired(_)
            | Error::TableTypeMismatch { .. }
            | Error::TableIsMultimap(_)
            | Error::TableIsNotMultimap(_)
            | Error::TypeDefinitionChanged { .. }
            | Error::TableDoesNotExist(_)
            | Error::TableExists(_)
            | Error::TableAlreadyOpen(..) => Self::Damaged(error.to_string()),
            other => Self::Disk(io::Error::other(other.to_string())),
        }
    }
}
