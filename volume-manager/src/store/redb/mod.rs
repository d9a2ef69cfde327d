//! The store on disk: a table of a redb database file, of mode 0600. A file has one table, or several for several stores
//! (see [`open_tables`]): each has a layout's number and a quarantine of its own, so that what is wrong with one leaves the others
//! as they are.
//!
//! A commit costs two syncs of the file, whatever its size: redb writes the new pages beside the old ones, syncs,
//! turns one byte of the header to them, and syncs again. An earlier commit can thus never be lost to a later one
//! that was cut off.
//!
//! Opening reads the whole file and verifies the checksum of every page, so that damage is an [`OpenError`] and no
//! surprise later, and then commits, so that whatever is found is on the disk and not merely in a cache. The name of
//! the file is put on the disk too, whoever gave it. A file whose structure is damaged, or whose format is another, is
//! left alone; [`open_or_start_over`] puts what can be [salvaged](salvage) of a damaged one into a new store.
//!
//! What is assumed of the system: a sync that succeeds has put the file's bytes on the disk, a directory's sync its
//! names. Neither the order of writes before a sync nor their atomicity is.

mod file;
mod salvage;
mod start_over;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ::redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction};

use self::start_over::OpenedFile;
use self::tables::{Layout, Names, Tables, failed};
use super::quarantine;
use super::rows::{Loading, Plan, Rows as _, Totals};
use super::{Change, Loaded, OpenError, QuarantineId, Store, StoreError};

pub use salvage::{MAX_SALVAGED_BYTES, Salvage, Salvaged, salvage};
pub use start_over::{StartedOver, open_or_start_over};
pub use tables::{Table, TableSetAside};

/// The layout of a table that is written.
pub const LAYOUT: u64 = 1;

/// The most bytes of the file that are kept in memory: all of it, but on a node of thousands of volumes.
const CACHE_BYTES: usize = 4 << 20;

/// Opens a file of several tables as [`open_tables`] does, for who looks at it and is not to begin anything anew: what is
/// damaged, or cannot be used, is an error and left as it is.
///
/// # Errors
/// As [`open_tables`], and if the file or one of the tables cannot be used as it is.
pub fn open_intact_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<Vec<RedbStore>, OpenError> {
    let (path, layout) = (path.into(), Layout { tables: tables.to_vec(), sets_aside: false, is_all: false });
    let (database, _) = file::open_or_create(&path, &layout)?;
    Ok(RedbStore::of_file(path, layout, database))
}

/// A store in a table of a redb database file. One process at a time has the file open.
pub struct RedbStore {
    names: Names,
    file: Arc<Mutex<OpenFile>>,
    /// Why the store is stopped. The stores of other tables may not be.
    stop: Option<StoreError>,
    /// How much the table holds, once that is known.
    totals: Option<Totals>,
}

/// What [`open_tables`] has opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenedTables {
    /// A store for each table, in the order in which they were asked for.
    pub stores: Vec<RedbStore>,
    /// What became of the file, if it was damaged.
    pub started_over: Option<StartedOver>,
    /// The tables that could not be used, each of which is empty now.
    pub set_aside: Vec<TableSetAside>,
}

/// Opens a file of several tables, and makes the file or a table that is not there. The directory must be there.
///
/// A table of a newer layout, or of which a part is missing or is not what it should be, is kept under another name and begun
/// anew. A file of which the structure is damaged is kept and begun anew as by [`open_or_start_over`]: what can be salvaged
/// is in the quarantine of the table of its kind.
///
/// A commit to one table is on the disk before one to another begins. When the disk fails, the store that had to do with it is
/// stopped; so is each other one that is used before one of them was reopened.
///
/// # Errors
/// If the file cannot be opened, is in use or is no store's, or what is damaged cannot be kept.
pub fn open_tables(path: impl Into<PathBuf>, tables: &[Table]) -> Result<OpenedTables, OpenError> {
    let (path, layout) = (path.into(), Layout { tables: tables.to_vec(), sets_aside: true, is_all: false });
    let OpenedFile { database, started_over, set_aside } = start_over::open_file(&path, &layout)?;
    let stores = RedbStore::of_file(path, layout, database);
    Ok(OpenedTables { stores, started_over, set_aside })
}

/// The database of a file, which the stores of its tables have in common. One of them at a time uses it.
struct OpenFile {
    /// Opens the file again.
    open: Box<dyn FnMut() -> Result<Database, OpenError> + Send>,
    /// Closed from a failure of the disk, after which redb cannot use it, until it is opened again.
    database: Result<Database, StoreError>,
}

impl OpenFile {
    fn new(path: PathBuf, layout: Layout, database: Database) -> Arc<Mutex<Self>> {
        // A file that was there and is gone is not made again: its records would be forgotten without a word.
        let open = move || file::open(&path, &layout).map(|(database, _)| database);
        Arc::new(Mutex::new(Self { open: Box::new(open), database: Ok(database) }))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        // The old one must have let go of its lock before.
        self.database = Err(StoreError::disk("reopening", io::Error::other("not done yet")).stopped());
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
    /// Opens the store at a path, and makes it if there is no file. The directory must be there.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, is not a store, or is damaged. An empty file is damaged: a new store
    /// gets its name only when it is whole. So is one that is not there, while a damaged one of
    /// [`open_or_start_over`] is kept beside it: to begin anew, take that elsewhere too.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let (path, layout) = (path.into(), Layout::only());
        let (database, _) = file::open_or_create(&path, &layout)?;
        Ok(Self::only_of_file(path, database))
    }

    /// The store of the one table of a file.
    fn only_of_file(path: PathBuf, database: Database) -> Self {
        Self::new(Table::ONLY, &OpenFile::new(path, Layout::only(), database))
    }

    /// A store for each table of a file.
    fn of_file(path: PathBuf, layout: Layout, database: Database) -> Vec<Self> {
        let tables = layout.tables.clone();
        let file = OpenFile::new(path, layout, database);
        tables.into_iter().map(|table| Self::new(table, &file)).collect()
    }

    fn new(table: Table, file: &Arc<Mutex<OpenFile>>) -> Self {
        Self { names: table.names(), file: Arc::clone(file), stop: None, totals: None }
    }

    /// Uses the database, and stops the store if that fails for the disk's sake.
    fn using<T>(
        &mut self,
        use_it: impl FnOnce(&Database, &Names, Option<Totals>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Some(stop) = &self.stop {
            return Err(stop.clone());
        }
        // A transaction that was begun and panicked is no part of the database.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let database = file.database.as_ref().map_err(Clone::clone);
        let outcome = database.and_then(|database| use_it(database, &self.names, self.totals));
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

    /// Runs `write` in a transaction, which is committed if it says so.
    fn transact<T>(
        &mut self,
        write: impl FnOnce(&mut Tables<'_>) -> Result<(T, bool), StoreError>,
    ) -> Result<T, StoreError> {
        let outcome = self.using(|database, names, totals| {
            let transaction = begin(database).map_err(failed("the commit"))?;
            let mut tables = Tables::open(&transaction, names, totals, "the commit")?;
            let before = tables.totals();
            let written = write(&mut tables);
            let after = tables.totals();
            drop(tables);
            let (result, changed) = match written {
                Ok(written) => written,
                Err(error) if error.is_stopped() => return Err(error),
                // Nothing was written, and what was counted need not be counted again.
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

/// A transaction that is committed in two phases, which quick repair implies: with one, redb would take a damaged last
/// commit for one that was cut off, and go back to the one before without a word.
fn begin(database: &Database) -> Result<WriteTransaction, ::redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        const ACTION: &str = "the load";
        self.using(|database, names, _| {
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

/// Opens the database in a backend, whose bytes are a database or none, and verifies all of it.
fn start(backend: impl StorageBackend) -> Result<Database, ::redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(backend)?)
}
