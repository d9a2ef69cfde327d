//! The tables of a file, and the parts of each.

use std::io;
use std::path::Path;

use ::redb::{
    Database, MultimapTableHandle, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, TableHandle, WriteTransaction,
};

use super::{LAYOUT, begin};
use crate::store::rows::{Counter, Rows, Totals};
use crate::store::{OpenError, RecordKind, StoreError};

/// A table of a database file: where one store has its records.
///
/// Each has a layout's number of its own, and what is quarantined of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The kind of its records, if the file has several tables: what is salvaged of a damaged file finds its table by it.
    pub kind: RecordKind,
}

impl Table {
    /// The only table of a file that has one, for records of any kind.
    pub(super) const ONLY: Self = Self::new("records", RecordKind(0));

    /// A table for records of this kind, which no other table of the file has. The name has no dot.
    #[must_use]
    pub const fn new(name: &'static str, kind: RecordKind) -> Self {
        Self { name, kind }
    }

    pub(super) fn names(self) -> Names {
        let part = |part: &str| format!("{}.{part}", self.name);
        Names { records: self.name.to_owned(), aside: part("aside"), numbers: part("numbers") }
    }
}

/// What the parts of a table are called in the file.
#[derive(Debug, Clone)]
pub(super) struct Names {
    records: String,
    aside: String,
    numbers: String,
}

impl Names {
    /// All of them.
    pub(super) fn all(&self) -> [&str; 3] {
        [&self.records, &self.aside, &self.numbers]
    }

    /// Records in their envelopes, by the row of their key.
    pub(super) fn records(&self) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
        TableDefinition::new(&self.records)
    }

    /// What was moved aside, packed, by number.
    pub(super) fn aside(&self) -> TableDefinition<'_, u64, &'static [u8]> {
        TableDefinition::new(&self.aside)
    }

    /// The layout's number and the counters.
    pub(super) fn numbers(&self) -> TableDefinition<'_, &'static str, u64> {
        TableDefinition::new(&self.numbers)
    }
}

/// How the tables of a file are opened.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) tables: Vec<Table>,
    /// Whether a table that cannot be used is set aside. If not, that is an error.
    pub(super) sets_aside: bool,
    /// Whether another table in the file is an error. If not, it is left alone.
    pub(super) is_all: bool,
}

impl Layout {
    /// A file that has one table and nothing else.
    pub(super) fn only() -> Self {
        Self { tables: vec![Table::ONLY], sets_aside: false, is_all: true }
    }
}

/// A table that could not be used. It is kept in the file, and an empty one is in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSetAside {
    /// Its name.
    pub table: &'static str,
    /// What it is called in the file now.
    pub kept: String,
    /// Why.
    pub reason: String,
}

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
    records: ::redb::Table<'t, &'static [u8], &'static [u8]>,
    aside: ::redb::Table<'t, u64, &'static [u8]>,
    numbers: ::redb::Table<'t, &'static str, u64>,
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

/// Makes the tables of a new file.
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
    let transaction = database.begin_read().map_err(|error| unopened(path)(error.into()))?;
    let there = names_in(&transaction).map_err(unopened(path))?;
    let mut missing = Vec::new();
    let mut unusable = Vec::new();
    for table in &layout.tables {
        let names = table.names();
        match look_at(&transaction, &names, &there).map_err(unopened(path))? {
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
    replace(database, &there, &missing, unusable).map_err(unopened(path))
}

fn names_in(transaction: &ReadTransaction) -> Result<Vec<String>, ::redb::Error> {
    let mut names: Vec<String> = transaction.list_tables()?.map(|table| table.name().to_owned()).collect();
    let tables = transaction.list_multimap_tables()?;
    names.extend(tables.map(|table| MultimapTableHandle::name(&table).to_owned()));
    Ok(names)
}

/// Looks at a table. The error is the disk's or that of the whole file.
fn look_at(transaction: &ReadTransaction, names: &Names, there: &[String]) -> Result<Found, ::redb::Error> {
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
) -> Result<Vec<TableSetAside>, ::redb::Error> {
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

/// Names what was under way when redb failed.
pub(super) fn failed<E: Into<::redb::Error>>(action: &'static str) -> impl Fn(E) -> StoreError {
    move |error| match Failure::from(error.into()) {
        Failure::Disk(source) => StoreError::disk(action, source),
        Failure::InUse => StoreError::disk(action, io::Error::other("another process has it open")),
        Failure::Damaged(what) => StoreError::Damaged { action, what },
    }
}

/// Names the file that redb could not open.
pub(super) fn unopened(path: &Path) -> impl Fn(::redb::Error) -> OpenError {
    move |error| match Failure::from(error) {
        Failure::Disk(source) => OpenError::disk(path)(source),
        Failure::InUse => OpenError::InUse { path: path.into() },
        Failure::Damaged(what) => OpenError::Damaged { path: path.into(), what },
    }
}

/// Why redb did not do something.
enum Failure {
    Disk(io::Error),
    InUse,
    Damaged(String),
}

impl From<::redb::Error> for Failure {
    fn from(error: ::redb::Error) -> Self {
        use ::redb::Error;
        match error {
            // A file that ends too early is how truncation shows.
            Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it ends too early".into())
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
