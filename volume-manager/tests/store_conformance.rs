//! Runs the conformance suite of stores.
#![allow(clippy::unwrap_used, reason = "a failed step is the failure of its test")]

use volume_manager::store::memory::MemoryDisk;
use volume_manager::store::{RowTable, RowWrite, Rows, StoreError, conformance, faulty};

#[test]
fn memory_stores_conform() {
    conformance::run(|| {
        let disk = MemoryDisk::default();
        move || Ok::<_, StoreError>(disk.clone())
    })
    .unwrap();
}

#[test]
fn faulty_stores_without_faults_conform() {
    conformance::run(|| {
        let disk = MemoryDisk::default();
        move || Ok::<_, StoreError>(faulty::wrap(disk.open(), faulty::Plan::new(1)).0.into_rows())
    })
    .unwrap();
}

/// A violation of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A batch is written with the next one only.
    WritesLate,
    /// Only the last row of a batch is written.
    WritesTheLastRow,
    /// A removed row stays.
    KeepsTheRemoved,
    /// A row with an empty value is missing.
    ForgetsEmptyValues,
    /// Equal keys of two tables are one row.
    MixesTables,
    /// Keys are text, and other bytes are replaced.
    KeepsTextKeys,
    /// A scan misses a row.
    ScansTooFew,
    /// A scan visits a row twice.
    ScansTwice,
    /// A reopening loses rows.
    ReopensEmpty,
    /// A value is cut.
    CutsValues,
}

struct Flawed {
    flaw: Flaw,
    inner: MemoryDisk,
    late: Vec<RowWrite>,
}

impl Flawed {
    fn place(&self, table: RowTable, key: &[u8]) -> (RowTable, Vec<u8>) {
        match self.flaw {
            Flaw::MixesTables => (RowTable::Records, key.to_vec()),
            Flaw::KeepsTextKeys => (table, String::from_utf8_lossy(key).into_owned().into_bytes()),
            _ => (table, key.to_vec()),
        }
    }
}

impl Rows for Flawed {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let (table, key) = self.place(table, key);
        let found = self.inner.get(table, &key)?;
        Ok(found.filter(|value| self.flaw != Flaw::ForgetsEmptyValues || !value.is_empty()))
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let table = self.place(table, b"").0;
        let mut rows = Vec::new();
        self.inner.scan(table, &mut |key, value| rows.push((key.to_vec(), value.to_vec())))?;
        match self.flaw {
            Flaw::ScansTooFew => drop(rows.pop()),
            Flaw::ScansTwice => rows.extend(rows.first().cloned()),
            _ => {}
        }
        rows.iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        let mut batch = batch.to_vec();
        for write in &mut batch {
            (write.table, write.key) = self.place(write.table, &write.key);
            if let (Flaw::CutsValues, Some(value)) = (self.flaw, &mut write.value) {
                value.truncate(65_536);
            }
        }
        match self.flaw {
            Flaw::WritesLate => batch = std::mem::replace(&mut self.late, batch),
            Flaw::WritesTheLastRow => drop(batch.drain(..batch.len().saturating_sub(1))),
            Flaw::KeepsTheRemoved => batch.retain(|write| write.value.is_some()),
            _ => {}
        }
        self.inner.write(&batch)
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        if self.flaw == Flaw::ReopensEmpty {
            self.inner = MemoryDisk::default();
        }
        self.inner.reopen()
    }
}

#[test]
fn suite_names_the_violated_rule() {
    let flaws = [
        (Flaw::WritesLate, "a row has the bytes that were written"),
        (Flaw::WritesTheLastRow, "a batch writes and removes all its rows"),
        (Flaw::KeepsTheRemoved, "a batch writes and removes all its rows"),
        (Flaw::ForgetsEmptyValues, "a row has the bytes that were written"),
        (Flaw::MixesTables, "a batch writes and removes all its rows"),
        (Flaw::KeepsTextKeys, "a batch writes and removes all its rows"),
        (Flaw::ScansTooFew, "a batch writes and removes all its rows"),
        (Flaw::ScansTwice, "a batch writes and removes all its rows"),
        (Flaw::ReopensEmpty, "rows survive a restart and a reopening"),
        (Flaw::CutsValues, "a row has the bytes that were written"),
    ];
    for (flaw, rule) in flaws {
        let violation = conformance::run(|| {
            let disk = MemoryDisk::default();
            move || Ok::<_, StoreError>(Flawed { flaw, inner: disk.clone(), late: Vec::new() })
        });
        let violation = violation.unwrap_err();
        assert!(violation.case.starts_with(rule), "{flaw:?}: {violation}");
    }
}

#[cfg(feature = "redb")]
#[test]
fn redb_stores_conform() {
    conformance::run(|| {
        let directory = tempfile::tempdir().unwrap();
        move || {
            let store = volume_manager::store::redb::open(directory.path().join("volumes"));
            store.map(volume_manager::store::Store::into_rows)
        }
    })
    .unwrap();
}
