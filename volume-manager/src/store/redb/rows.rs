//! The rows of a store in a table of the file.

use std::sync::{Arc, Mutex, PoisonError};

use ::redb::{Database, ReadableDatabase};

use super::OpenFile;
use super::tables::{self, Names, failed};
use crate::store::{RowTable, RowWrite, Rows, StoreError};

/// The rows in one table of a file. The rows of the other tables share the file.
pub(super) struct RedbRows {
    names: Names,
    file: Arc<Mutex<OpenFile>>,
    /// Whether an access failed since the file was opened. Rows of other tables may have opened it again.
    failed: bool,
}

impl RedbRows {
    pub(super) fn new(names: Names, file: Arc<Mutex<OpenFile>>) -> Self {
        Self { names, file, failed: false }
    }

    /// Runs `access` on the database. After a failure the file is closed to all its tables.
    fn access<T>(
        &mut self,
        action: &'static str,
        access: impl FnOnce(&Database, &Names) -> Result<T, ::redb::Error>,
    ) -> Result<T, StoreError> {
        // A transaction that panicked was not committed.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match &file.database {
            Ok(database) => access(database, &self.names).map_err(failed(action)),
            Err(stop) => Err(stop.clone()),
        };
        if let Err(error) = &outcome {
            self.failed = true;
            if file.database.is_ok() {
                file.database = Err(error.stopped());
            }
        }
        outcome
    }
}

impl Rows for RedbRows {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.access("the read", |database, names| tables::get(&database.begin_read()?, names, table, key))
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.access("the load", |database, names| tables::scan(&database.begin_read()?, names, table, visit))
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        self.access("the commit", |database, names| tables::write(database, names, batch))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match &file.database {
            Ok(_) if self.failed => Ok(()),
            _ => file.reopen(),
        };
        self.failed = outcome.is_err();
        outcome
    }
}
