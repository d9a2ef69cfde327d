//! Every store keeps every promise.
#![allow(clippy::unwrap_used, reason = "a failed step is the failure of its test")]

use volume_manager::store::conformance::{self, Medium};
use volume_manager::store::memory::MemoryDisk;
use volume_manager::store::{Store, faulty};

struct Memory {
    disk: MemoryDisk,
    faulty: bool,
}

impl Medium for Memory {
    fn open(&mut self) -> Result<Box<dyn Store>, String> {
        let store = self.disk.open();
        if !self.faulty {
            return Ok(Box::new(store));
        }
        Ok(Box::new(faulty::wrap(store, faulty::Plan::new(1)).0))
    }

    fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String> {
        self.disk.overwrite(row, bytes);
        Ok(())
    }
}

#[test]
fn memory_stores_conform() {
    conformance::run(|| Ok(Memory { disk: MemoryDisk::default(), faulty: false })).unwrap();
}

#[test]
fn faulty_stores_without_faults_conform() {
    conformance::run(|| Ok(Memory { disk: MemoryDisk::default(), faulty: true })).unwrap();
}

#[cfg(feature = "redb")]
mod redb_file {
    use redb::{Database, TableDefinition};
    use tempfile::TempDir;
    use volume_manager::store::redb::{RedbStore, Settings};

    use super::*;

    const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

    struct File(TempDir);

    impl Medium for File {
        fn open(&mut self) -> Result<Box<dyn Store>, String> {
            let store = RedbStore::open(self.0.path().join("volumes"), Settings::default());
            Ok(Box::new(store.map_err(|error| error.to_string())?))
        }

        fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String> {
            drop(self.open()?);
            let transaction = Database::open(self.0.path().join("volumes")).unwrap().begin_write().unwrap();
            transaction.open_table(RECORDS).unwrap().insert(row, bytes).unwrap();
            transaction.commit().map_err(|error| error.to_string())
        }
    }

    #[test]
    fn redb_stores_conform() {
        conformance::run(|| Ok(File(tempfile::tempdir().map_err(|error| error.to_string())?))).unwrap();
    }

    /// A store that breaks a promise: what was quarantined goes with the next write to its key.
    struct Forgetful(Memory);

    impl Medium for Forgetful {
        fn open(&mut self) -> Result<Box<dyn Store>, String> {
            self.0.open()
        }

        fn overwrite(&mut self, row: &[u8], _bytes: &[u8]) -> Result<(), String> {
            self.0.overwrite(row, b"")
        }
    }

    #[test]
    fn the_suite_names_the_promise_that_is_broken() {
        let make = || Ok(Forgetful(Memory { disk: MemoryDisk::default(), faulty: false }));
        let violation = conformance::run(make).unwrap_err();
        assert!(violation.case.contains("damaged record"), "{violation}");
    }
}
