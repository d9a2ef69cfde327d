//! The database of a file, which the stores of its tables have in common.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redb::Database;

use super::Settings;
use crate::store::error::Stop;
use crate::store::{OpenError, StoreError};

/// Opens what the tables keep their bytes in, anew each time.
pub(super) type Source = Box<dyn FnMut(Settings) -> Result<Database, OpenError> + Send>;

/// A database that one store at a time uses. Clones are the same.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Open>>);

pub(super) struct Open {
    settings: Settings,
    source: Source,
    /// Gone from a failure of the disk until it is opened again.
    database: Result<Database, Stop>,
}

impl Shared {
    pub(super) fn new(settings: Settings, source: Source, database: Database) -> Self {
        Self(Arc::new(Mutex::new(Open { settings, source, database: Ok(database) })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Open> {
        // A transaction that was begun and panicked is no part of the database.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    pub(super) fn database(&self) -> Result<&Database, StoreError> {
        self.database.as_ref().map_err(StoreError::from)
    }

    /// Closes the database, which redb cannot use after a failure of the disk.
    pub(super) fn stop(&mut self, stop: &Stop) {
        if self.database.is_ok() {
            self.database = Err(stop.clone());
        }
    }

    /// Opens the database again.
    pub(super) fn reopen(&mut self) -> Result<(), StoreError> {
        // The old one must have let go of its lock before.
        self.database = Err(StoreError::disk("reopening", io::Error::other("not done yet")).stop());
        match (self.source)(self.settings).map_err(StoreError::from) {
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
}
