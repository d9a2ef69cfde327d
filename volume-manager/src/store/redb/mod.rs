//! The store on disk: a table in a redb database file of mode 0600. A file has one table, or several for several stores (see
//! [`open_tables`]). Each table has its own layout version and quarantine, so that a defect of one does not affect the others.
//!
//! A commit costs two syncs of the file, whatever its size: redb writes the new pages beside the old ones, syncs, switches one
//! byte of the header to them, and syncs again. An interrupted commit can thus never lose an earlier one.
//!
//! Opening reads the whole file and verifies the checksum of every page, so that corruption is an [`OpenError`] and not found
//! later, and then commits, so that the loaded state is on the disk and not only in a cache. The directory is synced too, so
//! that the file's name is durable. A file with a corrupt structure or another format is left unchanged; [`open_or_recreate`]
//! [salvages](salvage) the records of a corrupt one into a new store.
//!
//! Assumptions about the system: a successful sync makes the file's bytes durable, and a sync of the directory its names.
//! Neither the order nor the atomicity of writes before a sync is assumed.

mod file;
mod recreate;
mod salvage;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ::redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction};

use self::recreate::OpenedFile;
use self::tables::{Layout, Names, Tables, failed};
use super::quarantine;
use super::rows::{Loading, Plan, Rows as _, Totals};
use super::{Change, Loaded, OpenError, QuarantineId, Store, StoreError};

pub use recreate::{Recreated, open_or_recreate};
pub use salvage::{MAX_SALVAGED_BYTES, Salvage, Salvaged, salvage};
pub use tables::{ReplacedTable, Table};

/// The layout version of tables that is written.
pub const LAYOUT: u64 = 1;

/// The size of redb's cache: the whole file, except on a node with thousands of volumes.
const CACHE_BYTES: usize = 4 << 20;

/// Opens a file of several tables for inspection: unlike with [`open_tables`], a corrupt file or an unusable table is an error,
/// and left unchanged.
///
/// # Errors
/// As [`open_tables`], and if the file is corrupt or one of the tables is unusable.
pub fn open_intact_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<Vec<RedbStore>, OpenError> {
    let (path, layout) =
        (path.into(), Layout { tables: tables.to_vec(), replace_unusable: false, exclusive: false });
    let (database, _) = file::open_or_create(&path, &layout)?;
    Ok(RedbStore::new_per_table(path, layout, database))
}

/// A store in a table of a redb database file. One process at a time has the file open.
pub struct RedbStore {
    names: Names,
    file: Arc<Mutex<OpenFile>>,
    /// Why the store is stopped. Stores of other tables may still be running.
    stop: Option<StoreError>,
    /// The table's totals, once counted.
    totals: Option<Totals>,
}

/// The result of [`open_tables`].
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenedTables {
    /// A store for each table, in the requested order.
    pub stores: Vec<RedbStore>,
    /// The report about a corrupt file that was recreated.
    pub recreated: Option<Recreated>,
    /// The unusable tables. Each was replaced by an empty one.
    pub replaced: Vec<ReplacedTable>,
}

/// Opens a file of several tables, and creates the file and missing tables. The directory must exist.
///
/// A table with a newer layout, or with missing or invalid parts, is renamed and replaced by an empty one. A file with a corrupt
/// structure is renamed and recreated as by [`open_or_recreate`]; salvaged records are in the quarantine of the table of their
/// kind.
///
/// A commit to one table is durable before one to another starts. A disk failure stops the store that noticed it,
/// and every other store of the file that is used before one of them was reopened.
///
/// # Errors
/// If the file cannot be opened, is in use or is not a store, or a corrupt file cannot be renamed.
pub fn open_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<OpenedTables, OpenError> {
    let (path, layout) =
        (path.into(), Layout { tables: tables.to_vec(), replace_unusable: true, exclusive: false });
    let OpenedFile { database, recreated, replaced } = recreate::open_file(&path, &layout)?;
    let stores = RedbStore::new_per_table(path, layout, database);
    Ok(OpenedTables { stores, recreated, replaced })
}

/// The database of a file, shared by the stores of its tables, one at a time.
struct OpenFile {
    /// Opens the file again.
    open: Box<dyn FnMut() -> Result<Database, OpenError> + Send>,
    /// The open database. After a disk failure, the error until the file is reopened, since redb cannot continue.
    database: Result<Database, StoreError>,
}

impl OpenFile {
    fn new(path: PathBuf, layout: Layout, database: Database) -> Arc<Mutex<Self>> {
        // Reopening never creates a missing file: its records would be lost silently.
        let open = move || file::open(&path, &layout).map(|(database, _)| database);
        Arc::new(Mutex::new(Self { open: Box::new(open), database: Ok(database) }))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        // Drop the old database first, since it holds the file lock.
        self.database = Err(StoreError::disk("reopening", io::Error::other("in progress")).stopped());
        match (self.open)().map_err(StoreError::from) {
            Ok(database) => {
                self.database = Ok(database);
                Ok(())
            }
            Err(error) => {
                self.database = Err(error.stopped());
                Err(error)
            }
        }
    }
}

impl RedbStore {
    /// Opens the store at a path, and creates it if the file is missing. The directory must exist.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, is not a store, or is corrupt. An empty file is corrupt: a new
    /// store gets its name only when it is complete. A missing file counts as corrupt while a corrupt one that
    /// [`open_or_recreate`] has renamed is beside it: to create a new store, move the renamed file away.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let (path, layout) = (path.into(), Layout::only());
        let (database, _) = file::open_or_create(&path, &layout)?;
        Ok(Self::new_single(path, database))
    }

    /// Creates the store of a file with a single table.
    fn new_single(path: PathBuf, database: Database) -> Self {
        Self::new(Table::ONLY, &OpenFile::new(path, Layout::only(), database))
    }

    /// Creates a store for each table of a file.
    fn new_per_table(path: PathBuf, layout: Layout, database: Database) -> Vec<Self> {
        let tables = layout.tables.clone();
        let file = OpenFile::new(path, layout, database);
        tables.into_iter().map(|table| Self::new(table, &file)).collect()
    }

    fn new(table: Table, file: &Arc<Mutex<OpenFile>>) -> Self {
        Self { names: table.names(), file: Arc::clone(file), stop: None, totals: None }
    }

    /// Runs `access` on the database, and stops the store if the disk fails.
    fn with_database<T>(
        &mut self,
        access: impl FnOnce(&Database, &Names, Option<Totals>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(stop) = &self.stop {
            return Err(stop.clone());
        }
        // A transaction that panicked was not committed.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let database = file.database.as_ref().map_err(Clone::clone);
        let outcome = database.and_then(|database| access(database, &self.names, self.totals));
        if let Err(error) = &outcome
            && error.is_stopped()
        {
            self.stop = Some(error.stopped());
            if file.database.is_ok() {
                file.database = Err(error.stopped());
            }
        }
        outcome
    }

    /// Runs `write` in a transaction, and commits if it returns true.
    fn transact<T>(
        &mut self,
        write: impl FnOnce(&mut Tables<'_>) -> Result<(T, bool), StoreError>,
    ) -> Result<T, StoreError> {
        let outcome = self.with_database(|database, names, totals| {
            let transaction = begin(database).map_err(failed("the commit"))?;
            let mut tables = Tables::open(&transaction, names, totals, "the commit")?;
            let before = tables.totals();
            let written = write(&mut tables);
            let after = tables.totals();
            drop(tables);
            let (result, changed) = match written {
                Ok(written) => written,
                Err(error) if error.is_stopped() => return Err(error),
                // Nothing was written; the counted totals remain valid.
                Err(error) => return Ok((Err(error), before)),
            };
            if changed {
                transaction.commit().map_err(failed("the commit"))?;
            } else {
                transaction.abort().map_err(failed("the commit"))?;
            }
            Ok((Ok(result), if changed { after } else { before }))
        });
        let (result, totals) = outcome?;
        self.totals = Some(totals);
        result
    }
}

/// Begins a transaction with two-phase commit, which quick repair implies: with one phase, redb would take a corrupt last commit
/// for an interrupted one, and silently roll back.
fn begin(database: &Database) -> Result<WriteTransaction, ::redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        const ACTION: &str = "the load";
        self.with_database(|database, names, _| {
            let transaction = database.begin_read().map_err(failed(ACTION))?;
            let mut loading = Loading::default();
            let records = transaction.open_table(names.records()).map_err(failed(ACTION))?;
            for row in records.iter().map_err(failed(ACTION))? {
                let (row, bytes) = row.map_err(failed(ACTION))?;
                loading.add_record(row.value(), bytes.value())?;
            }
            let aside = transaction.open_table(names.aside()).map_err(failed(ACTION))?;
            for row in aside.iter().map_err(failed(ACTION))? {
                let (number, packed) = row.map_err(failed(ACTION))?;
                loading.add_aside(number.value(), packed.value())?;
            }
            Ok(loading.finish())
        })
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.transact(|tables| {
            let plan = Plan::new(tables, changes)?;
            if plan.is_empty() {
                return Ok(((), false));
            }
            plan.write(tables)?;
            Ok(((), true))
        })
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.totals = None;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // The store of another table may have opened the file again since this one was stopped.
        let outcome = match (&self.stop, &file.database) {
            (Some(_), Ok(_)) => Ok(()),
            _ => file.reopen(),
        };
        self.stop = outcome.as_ref().err().map(StoreError::stopped);
        outcome
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.transact(|tables| Ok((quarantine::quarantined(tables, id)?, false)))
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.transact(|tables| Ok((quarantine::release(tables, id)?, true)))
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.transact(|tables| Ok((quarantine::discard(tables, id)?, true)))
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("table", &self.names)
            .field("stopped", &self.stop)
            .finish_non_exhaustive()
    }
}

/// Opens or creates the database in a backend, and verifies it completely.
fn open_backend(backend: impl StorageBackend) -> Result<Database, ::redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(backend)?)
}
