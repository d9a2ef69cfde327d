//! The tables of a file and their parts.

use std::io;
use std::path::Path;

use ::redb::{
    AccessGuard, Database, MultimapTableHandle, ReadTransaction, ReadableDatabase, ReadableTable,
    TableDefinition, TableError, TableHandle, WriteTransaction,
};

use super::begin;
use crate::store::{OpenStoreError, RecordKind, RowTable, RowWrite, StoreError};

/// The layout version of tables that is written.
pub const LAYOUT: u64 = 1;

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

/// Returns the value of a row.
pub(super) fn get(
    transaction: &ReadTransaction,
    names: &Names,
    table: RowTable,
    key: &[u8],
) -> Result<Option<Vec<u8>>, ::redb::Error> {
    let bytes = |value: AccessGuard<'_, &'static [u8]>| value.value().to_vec();
    Ok(match table {
        RowTable::Records => transaction.open_table(names.records())?.get(key)?.map(bytes),
        RowTable::Aside => transaction.open_table(names.aside())?.get(number(key)?)?.map(bytes),
        RowTable::Counters => {
            let value = transaction.open_table(names.numbers())?.get(counter(key)?)?;
            value.map(|number| number.value().to_be_bytes().into())
        }
    })
}

/// Visits the rows of a table.
pub(super) fn scan(
    transaction: &ReadTransaction,
    names: &Names,
    table: RowTable,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), ::redb::Error> {
    match table {
        RowTable::Records => {
            for row in transaction.open_table(names.records())?.iter()? {
                let (row, bytes) = row?;
                visit(row.value(), bytes.value());
            }
        }
        RowTable::Aside => {
            for row in transaction.open_table(names.aside())?.iter()? {
                let (number, packed) = row?;
                visit(&number.value().to_be_bytes(), packed.value());
            }
        }
        RowTable::Counters => {
            for row in transaction.open_table(names.numbers())?.iter()? {
                let (name, number) = row?;
                if name.value() != LAYOUT_NAME {
                    visit(name.value().as_bytes(), &number.value().to_be_bytes());
                }
            }
        }
    }
    Ok(())
}

/// Writes rows in one transaction.
pub(super) fn write(database: &Database, names: &Names, batch: &[RowWrite]) -> Result<(), ::redb::Error> {
    let transaction = begin(database)?;
    {
        let mut records = transaction.open_table(names.records())?;
        let mut aside = transaction.open_table(names.aside())?;
        let mut numbers = transaction.open_table(names.numbers())?;
        for RowWrite { table, key, value } in batch {
            let (key, value) = (key.as_slice(), value.as_deref());
            match (table, value) {
                (RowTable::Records, Some(value)) => drop(records.insert(key, value)?),
                (RowTable::Records, None) => drop(records.remove(key)?),
                (RowTable::Aside, Some(value)) => drop(aside.insert(number(key)?, value)?),
                (RowTable::Aside, None) => drop(aside.remove(number(key)?)?),
                (RowTable::Counters, Some(value)) => drop(numbers.insert(counter(key)?, number(value)?)?),
                (RowTable::Counters, None) => drop(numbers.remove(counter(key)?)?),
            }
        }
    }
    Ok(transaction.commit()?)
}

/// Decodes a number of 8 bytes.
fn number(bytes: &[u8]) -> Result<u64, ::redb::Error> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| invalid("expected a number of 8 bytes"))
}

/// Decodes the name of a counter.
fn counter(key: &[u8]) -> Result<&str, ::redb::Error> {
    let name = str::from_utf8(key).ok().filter(|name| *name != LAYOUT_NAME);
    name.ok_or_else(|| invalid("expected the name of a counter"))
}

fn invalid(expected: &'static str) -> ::redb::Error {
    ::redb::Error::Io(io::Error::new(io::ErrorKind::InvalidInput, expected))
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
) -> Result<Vec<ReplacedTable>, OpenStoreError> {
    let foreign = |what: String| OpenStoreError::Foreign { path: path.into(), what };
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
                return Err(OpenStoreError::Newer { path: path.into(), found, supported: LAYOUT });
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
pub(super) fn open_error(path: &Path) -> impl Fn(::redb::Error) -> OpenStoreError {
    move |error| match Failure::from(error) {
        Failure::Disk(source) => OpenStoreError::disk(path)(source),
        Failure::InUse => OpenStoreError::InUse { path: path.into() },
        Failure::Damaged(what) => OpenStoreError::Damaged { path: path.into(), what },
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
