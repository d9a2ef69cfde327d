//! An in-memory medium. A [`MemoryDisk`] outlives its stores, as a disk outlives a process.
//!
//! ```
//! use volume_manager::store::{Change, Defect, RecordKey, RecordKind, Store};
//! use volume_manager::store::memory::MemoryDisk;
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

use crate::store::{RowTable, RowWrite, Rows, Store, StoreError};

type Contents = BTreeMap<(RowTable, Vec<u8>), Vec<u8>>;

/// A disk in memory. Cheap to clone; clones share the disk. It never fails; [wrap](super::faulty::wrap) a store of it for faults.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Contents>>);

impl MemoryDisk {
    /// Opens a store on this disk.
    #[must_use]
    pub fn open(&self) -> Store {
        Store::new(self.clone())
    }

    /// Returns the bytes of a record's row on the disk: the record in its envelope.
    #[must_use]
    pub fn row(&self, row: &[u8]) -> Option<Vec<u8>> {
        self.contents().get(&(RowTable::Records, row.to_vec())).cloned()
    }

    /// Overwrites a record's row without checks, as a failing disk may.
    pub fn overwrite(&self, row: &[u8], bytes: &[u8]) {
        self.contents().insert((RowTable::Records, row.to_vec()), bytes.to_vec());
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows for MemoryDisk {
    fn get(&mut self, table: RowTable, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.contents().get(&(table, key.to_vec())).cloned())
    }

    fn scan(&mut self, table: RowTable, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.contents()
            .iter()
            .filter(|((of, _), _)| *of == table)
            .for_each(|((_, key), value)| visit(key, value));
        Ok(())
    }

    fn write(&mut self, batch: &[RowWrite]) -> Result<(), StoreError> {
        let mut contents = self.contents();
        for RowWrite { table, key, value } in batch {
            match value {
                Some(value) => contents.insert((*table, key.clone()), value.clone()),
                None => contents.remove(&(*table, key.clone())),
            };
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDisk").field("rows", &self.contents().len()).finish()
    }
}
