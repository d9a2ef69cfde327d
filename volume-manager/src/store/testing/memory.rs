//! An in-memory store. Its [`MemoryDisk`] outlives it, as a disk outlives a process.
//!
//! ```
//! use volume_manager::store::{Change, Defect, RecordKey, RecordKind, Store, memory::MemoryDisk};
//!
//! let disk = MemoryDisk::default();
//! let key = RecordKey::new(RecordKind(1), "vol-1")?;
//! disk.open().commit(&[Change::Put(key.clone(), b"state".to_vec())])?;
//! disk.overwrite(key.as_row(), b"");
//! assert_eq!(disk.open().load()?.quarantined[0].reason, Defect::Empty);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::quarantine;
use crate::store::rows::{Counter, Loading, Plan, Rows, Totals};
use crate::store::{Change, Loaded, QuarantineId, Store, StoreError};

/// The disk of [`MemoryStore`]s. Cheap to clone; clones share the disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Contents>>);

impl MemoryDisk {
    /// Opens a store on this disk.
    #[must_use]
    pub fn open(&self) -> MemoryStore {
        MemoryStore { disk: self.clone() }
    }

    /// Returns the bytes of a row on the disk: a record in its [envelope](crate::store::envelope).
    #[must_use]
    pub fn row(&self, row: &[u8]) -> Option<Vec<u8>> {
        self.contents().records.get(row).cloned()
    }

    /// Overwrites a row without checks, as a failing disk may.
    pub fn overwrite(&self, row: &[u8], bytes: &[u8]) {
        // Writing a row in memory cannot fail.
        let _ = self.contents().set_record(row, Some(bytes));
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = self.contents();
        f.debug_struct("MemoryDisk")
            .field("records", &contents.records.len())
            .field("aside", &contents.aside.len())
            .finish()
    }
}

/// An in-memory store. It never fails; wrap it in a [`FaultyStore`](super::faulty::FaultyStore) for faults.
#[derive(Debug, Default)]
pub struct MemoryStore {
    disk: MemoryDisk,
}

impl MemoryStore {
    /// The disk, on which another store can be opened later.
    #[must_use]
    pub fn disk(&self) -> MemoryDisk {
        self.disk.clone()
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let contents = self.disk.contents();
        let mut loading = Loading::default();
        contents.records.iter().try_for_each(|(row, bytes)| loading.add_record(row, bytes))?;
        contents.aside.iter().try_for_each(|(number, packed)| loading.add_aside(*number, packed))?;
        Ok(loading.finish())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let mut contents = self.disk.contents();
        let plan = Plan::new(&*contents, changes)?;
        if plan.is_empty() { Ok(()) } else { plan.write(&mut *contents) }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        quarantine::quarantined(&*self.disk.contents(), id)
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        quarantine::release(&mut *self.disk.contents(), id)
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        quarantine::discard(&mut *self.disk.contents(), id)
    }
}

#[derive(Default)]
struct Contents {
    records: BTreeMap<Box<[u8]>, Vec<u8>>,
    aside: BTreeMap<u64, Vec<u8>>,
    counters: BTreeMap<Counter, u64>,
    totals: Totals,
}

impl Rows for Contents {
    fn record(&self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.records.get(row).cloned())
    }

    fn set_record(&mut self, row: &[u8], bytes: Option<&[u8]>) -> Result<(), StoreError> {
        let old = match bytes {
            Some(bytes) => self.records.insert(row.into(), bytes.to_vec()),
            None => self.records.remove(row),
        };
        self.totals.records.change(old.map(|bytes| bytes.len()), bytes.map(<[u8]>::len));
        Ok(())
    }

    fn aside(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.aside.get(&number).cloned())
    }

    fn set_aside(&mut self, number: u64, bytes: Option<&[u8]>) -> Result<(), StoreError> {
        let old = match bytes {
            Some(bytes) => self.aside.insert(number, bytes.to_vec()),
            None => self.aside.remove(&number),
        };
        self.totals.aside.change(old.map(|bytes| bytes.len()), bytes.map(<[u8]>::len));
        Ok(())
    }

    fn counter(&self, counter: Counter) -> Result<u64, StoreError> {
        Ok(self.counters.get(&counter).copied().unwrap_or_default())
    }

    fn set_counter(&mut self, counter: Counter, number: u64) -> Result<(), StoreError> {
        self.counters.insert(counter, number);
        Ok(())
    }

    fn totals(&self) -> Totals {
        self.totals
    }
}
