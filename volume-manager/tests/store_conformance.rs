//! Runs the conformance suite of stores.
#![allow(clippy::unwrap_used, reason = "a failed step is the failure of its test")]

use volume_manager::store::conformance::{self, Medium};
use volume_manager::store::memory::{MemoryDisk, MemoryStore};
use volume_manager::store::{Change, Loaded, QuarantineId, Store, StoreError, faulty};

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

/// A violation of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A commit is written with the next call only.
    CommitsLate,
    /// The changes of a commit are committed one by one.
    CommitsPieceByPiece,
    /// The last change of a commit is made first.
    CommitsBackwards,
    /// A quarantined record is deleted by the next change to its key.
    WritesOverTheQuarantined,
    /// Quarantined records are deleted by the next load.
    LoadsTheQuarantinedAway,
    /// A quarantine by the owner deletes the record.
    DeletesInsteadOfQuarantine,
    /// A discard deletes nothing.
    DiscardsNothing,
}

struct Flawed {
    flaw: Flaw,
    inner: MemoryStore,
    late: Vec<Change>,
}

impl Flawed {
    /// Deletes the quarantined records of these changes, or all.
    fn delete_quarantined(&mut self, of: Option<&[Change]>) -> Result<(), StoreError> {
        for quarantined in self.inner.load()?.quarantined {
            let is_changed = |change: &Change| Some(change.key()) == quarantined.key.as_ref();
            if of.is_none_or(|changes| changes.iter().any(is_changed)) {
                self.inner.discard(&quarantined.id)?;
            }
        }
        Ok(())
    }

    fn catch_up(&mut self) -> Result<(), StoreError> {
        self.inner.commit(&std::mem::take(&mut self.late))
    }
}

impl Store for Flawed {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.catch_up()?;
        let loaded = self.inner.load();
        if self.flaw == Flaw::LoadsTheQuarantinedAway {
            self.delete_quarantined(None)?;
        }
        loaded
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.catch_up()?;
        match self.flaw {
            Flaw::CommitsLate => self.late = changes.to_vec(),
            Flaw::CommitsPieceByPiece => {
                changes.iter().try_for_each(|change| self.inner.commit(std::slice::from_ref(change)))?;
            }
            Flaw::CommitsBackwards => {
                let changes: Vec<_> = changes.iter().rev().cloned().collect();
                self.inner.commit(&changes)?;
            }
            Flaw::WritesOverTheQuarantined => {
                self.delete_quarantined(Some(changes))?;
                self.inner.commit(changes)?;
            }
            Flaw::DeletesInsteadOfQuarantine => {
                self.inner.commit(changes)?;
                let aside: Vec<_> = changes
                    .iter()
                    .filter(|change| matches!(change, Change::Quarantine(_)))
                    .cloned()
                    .collect();
                self.delete_quarantined(Some(&aside))?;
            }
            Flaw::LoadsTheQuarantinedAway | Flaw::DiscardsNothing => self.inner.commit(changes)?,
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.inner.reopen()
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        self.inner.quarantined(id)
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        self.inner.release(id)
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        if self.flaw == Flaw::DiscardsNothing { Ok(()) } else { self.inner.discard(id) }
    }
}

struct FlawedMedium(Flaw, MemoryDisk);

impl Medium for FlawedMedium {
    fn open(&mut self) -> Result<Box<dyn Store>, String> {
        Ok(Box::new(Flawed { flaw: self.0, inner: self.1.open(), late: Vec::new() }))
    }

    fn overwrite(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), String> {
        self.1.overwrite(row, bytes);
        Ok(())
    }
}

#[test]
fn suite_names_the_violated_rule() {
    let flaws = [
        (Flaw::CommitsLate, "names and payloads of every size"),
        (Flaw::CommitsPieceByPiece, "a rejected commit changes nothing"),
        (Flaw::CommitsBackwards, "the changes of a commit are made in order"),
        (Flaw::WritesOverTheQuarantined, "a change to the key of a damaged record moves the old bytes"),
        (Flaw::LoadsTheQuarantinedAway, "a damaged record is quarantined"),
        (Flaw::DeletesInsteadOfQuarantine, "a quarantined record can be released"),
        (Flaw::DiscardsNothing, "only a discard deletes from the quarantine"),
    ];
    for (flaw, rule) in flaws {
        let violation = conformance::run(|| Ok(FlawedMedium(flaw, MemoryDisk::default()))).unwrap_err();
        assert!(violation.case.starts_with(rule), "{flaw:?}: {violation}");
    }
}

#[cfg(feature = "redb")]
mod redb_file {
    use redb::{Database, TableDefinition};
    use tempfile::TempDir;
    use volume_manager::store::redb::RedbStore;

    use super::*;

    const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

    struct File(TempDir);

    impl Medium for File {
        fn open(&mut self) -> Result<Box<dyn Store>, String> {
            let store = RedbStore::open(self.0.path().join("volumes"));
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
}
