//! The store on disk: one redb database file, of mode 0600.
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
mod rows;
mod salvage;
mod start_over;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ::redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, WriteTransaction};

use self::rows::{Failure, Tables};
use super::error::Stop;
use super::rows::{self as contents, Loading, Plan, Rows as _, Totals};
use super::{Change, Loaded, OpenError, QuarantineId, Store, StoreError};

pub use salvage::{MAX_SALVAGED_BYTES, Salvage, Salvaged, salvage};
pub use start_over::{StartedOver, open_or_start_over};

/// The layout of the tables that is written.
pub const LAYOUT: u64 = 1;

/// How a [`RedbStore`] is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The most bytes of the file that are kept in memory.
    pub cache_bytes: usize,
}

impl Settings {
    /// Sets the most bytes of the file that are kept in memory.
    #[must_use]
    pub const fn with_cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }
}

impl Default for Settings {
    /// A cache of 4 MiB: all of the file, but on a node of thousands of volumes.
    fn default() -> Self {
        Self { cache_bytes: 4 << 20 }
    }
}

/// Opens what a store keeps its bytes in, anew each time.
type Source = Box<dyn FnMut(Settings) -> Result<Database, OpenError> + Send>;

/// A store in a redb database file. One process at a time has it open.
pub struct RedbStore {
    path: PathBuf,
    settings: Settings,
    source: Source,
    /// Gone while the store is stopped.
    database: Result<Database, Stop>,
    /// How much the database holds, once that is known.
    totals: Option<Totals>,
}

impl RedbStore {
    /// Opens the store at a path, and makes it if there is no file. The directory must be there.
    ///
    /// # Errors
    /// If the file cannot be opened, is in use, is not a store, or is damaged. An empty file is damaged: a new store
    /// gets its name only when it is whole. So is one that is not there, while a damaged one of
    /// [`open_or_start_over`] is kept beside it: to begin anew, take that elsewhere too.
    pub fn open(path: impl Into<PathBuf>, settings: Settings) -> Result<Self, OpenError> {
        let path = path.into();
        let database = file::open_or_create(&path, settings)?;
        Ok(Self::of_file(path, settings, database))
    }

    fn of_file(path: PathBuf, settings: Settings, database: Database) -> Self {
        let reopened = path.clone();
        // A file that was there and is gone is not made again: its records would be forgotten without a word.
        let source = Box::new(move |settings| file::open(&reopened, settings));
        Self::new(path, settings, source, database)
    }

    fn new(path: PathBuf, settings: Settings, source: Source, database: Database) -> Self {
        Self { path, settings, source, database: Ok(database), totals: None }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn database(&self) -> Result<&Database, StoreError> {
        self.database.as_ref().map_err(StoreError::from)
    }

    /// Stops the store if the failure is the disk's.
    fn noted<T>(&mut self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &outcome
            && error.is_stopped()
            && self.database.is_ok()
        {
            self.database = Err(error.stop());
        }
        outcome
    }

    /// Runs `write` in a transaction, which is committed if it says so.
    fn transact<T>(
        &mut self,
        write: impl FnOnce(&mut Tables<'_>) -> Result<(T, bool), StoreError>,
    ) -> Result<T, StoreError> {
        let outcome = self.database().and_then(|database| {
            let transaction = begin(database).map_err(failed("the commit"))?;
            let mut tables = Tables::open(&transaction, self.totals, "the commit")?;
            let before = tables.totals();
            let written = write(&mut tables);
            let after = tables.totals();
            drop(tables);
            let (result, changed) = match written {
                Ok(written) => written,
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
        let outcome = outcome.and_then(|(result, totals)| {
            self.totals = Some(totals);
            result
        });
        self.noted(outcome)
    }
}

/// A transaction that is committed in two phases, which quick repair implies: with one, redb would take a damaged last
/// commit for one that was cut off, and go back to the one before without a word.
fn begin(database: &Database) -> Result<WriteTransaction, Failure> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Names what was under way.
fn failed<E: Into<Failure>>(action: &'static str) -> impl FnOnce(E) -> StoreError {
    move |error| error.into().during(action)
}

impl Store for RedbStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        const ACTION: &str = "the load";
        let outcome = self.database().and_then(|database| {
            let transaction = database.begin_read().map_err(failed(ACTION))?;
            let mut loading = Loading::default();
            let records = transaction.open_table(rows::RECORDS).map_err(failed(ACTION))?;
            for row in records.iter().map_err(failed(ACTION))? {
                let (row, bytes) = row.map_err(failed(ACTION))?;
                loading.add_record(row.value(), bytes.value())?;
            }
            let aside = transaction.open_table(rows::ASIDE).map_err(failed(ACTION))?;
            for row in aside.iter().map_err(failed(ACTION))? {
                let (number, packed) = row.map_err(failed(ACTION))?;
                loading.add_aside(number.value(), packed.value())?;
            }
            Ok(loading.finish())
        });
        self.noted(outcome)
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
        // The old one must have let go of its lock before.
        self.database = Err(StoreError::disk("reopening", io::Error::other("not done yet")).stop());
        let opened = (self.source)(self.settings).map_err(StoreError::from);
        match opened {
            Ok(database) => {
                self.database = Ok(database);
                Ok(())
            }
            Err(error) => {
                self.database = Err(error.stop());
                Err(error)
            }
        }
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.transact(|tables| Ok((contents::quarantined(tables, id)?, false)))
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.transact(|tables| Ok((contents::release(tables, id)?, true)))
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.transact(|tables| Ok((contents::discard(tables, id)?, true)))
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("path", &self.path)
            .field("settings", &self.settings)
            .field("stopped", &self.database.as_ref().err())
            .finish_non_exhaustive()
    }
}

/// Opens the database in a backend, whose bytes are a database or none, and verifies all of it.
fn start(backend: impl StorageBackend, settings: Settings) -> Result<Database, Failure> {
    let mut builder = Builder::new();
    builder.set_cache_size(settings.cache_bytes).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(backend)?)
}
