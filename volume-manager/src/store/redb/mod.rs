//! The store on disk: a table in a redb database file of mode 0600. A file has one table, or several for several stores (see
//! [`open_tables`](crate::advanced::store::open_tables)). Each table has its own layout version and quarantine, so that a defect
//! of one does not affect the others.
//!
//! A commit costs two syncs of the file, whatever its size: redb writes the new pages beside the old ones, syncs, switches one
//! byte of the header to them, and syncs again. An interrupted commit can thus never lose an earlier one.
//!
//! Opening reads the whole file and verifies the checksum of every page, so that corruption is an [`OpenStoreError`] and not
//! found later, and then commits, so that the loaded state is on the disk and not only in a cache. The directory is synced too,
//! so that the file's name is durable. A file with a corrupt structure or another format is left unchanged;
//! [`open_or_recreate`] salvages the records of a corrupt one into a new store.
//!
//! Assumptions about the system: a successful sync makes the file's bytes durable, and a sync of the directory its names.
//! Neither the order nor the atomicity of writes before a sync is assumed.

mod file;
mod recreate;
mod rows;
pub(crate) mod salvage;
pub(crate) mod several;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ::redb::{Builder, Database, StorageBackend, WriteTransaction};

use self::rows::RedbRows;
use self::tables::{Layout, Table};
use super::{OpenStoreError, Store, StoreError};

pub use recreate::{Recreated, open_or_recreate};

/// The size of redb's cache: the whole file, except on a node with thousands of volumes.
const CACHE_BYTES: usize = 4 << 20;

/// Opens the store at a path, and creates it if the file is missing. The directory must exist. One process at a time has the file
/// open.
///
/// # Errors
/// If the file cannot be opened, is in use, is not a store, or is corrupt. An empty file is corrupt: a new
/// store gets its name only when it is complete. A missing file counts as corrupt while a corrupt one that
/// [`open_or_recreate`] has renamed is beside it: to create a new store, move the renamed file away.
pub fn open(path: impl Into<PathBuf>) -> Result<Store, OpenStoreError> {
    let (path, layout) = (path.into(), Layout::only());
    let (database, _) = file::open_or_create(&path, &layout)?;
    Ok(store(path, database))
}

/// The database of a file, shared by the stores of its tables, one at a time.
struct OpenFile {
    /// Opens the file again.
    open: Box<dyn FnMut() -> Result<Database, OpenStoreError> + Send>,
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

/// Creates the store of a file with a single table.
fn store(path: PathBuf, database: Database) -> Store {
    Store::new(RedbRows::new(Table::ONLY.names(), OpenFile::new(path, Layout::only(), database)))
}

/// Begins a transaction with two-phase commit, which quick repair implies: with one phase, redb would take a corrupt last commit
/// for an interrupted one, and silently roll back.
fn begin(database: &Database) -> Result<WriteTransaction, ::redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Opens or creates the database in a backend, and verifies it completely.
fn open_backend(backend: impl StorageBackend) -> Result<Database, ::redb::Error> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(backend)?)
}
