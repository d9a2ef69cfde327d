//! A value that is replaced atomically, in a table of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use volume_manager::store::{Change, InvalidRecordKey, RecordKey, RecordKind, Store};

use super::{TableError, with_reopen};

/// The maximum size of a record in bytes: with its overhead, the record fits into a database page of 64 KiB.
const PART_BYTES: usize = 60 << 10;

/// The name of the record with the length of the value.
const HEAD: &str = "length";

/// The content of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Content {
    /// Nothing was saved yet.
    Nothing,
    /// The value that was saved last.
    Bytes(Vec<u8>),
    /// The value is incomplete or unreadable. Its records stay until the next save or [`Document::quarantine`].
    Damaged(String),
}

/// A value in a table of its own. Clones share the table.
#[derive(Clone)]
pub(in super::super) struct Document(Arc<Mutex<Inner>>);

struct Inner {
    store: Store,
    kind: RecordKind,
    /// The keys of the records in the table; `None` until the table is read.
    records: Option<BTreeSet<RecordKey>>,
}

impl Document {
    /// Creates the document in a table with records of this kind.
    pub(super) fn new(store: Store, kind: RecordKind) -> Self {
        Self(Arc::new(Mutex::new(Inner { store, kind, records: None })))
    }

    /// Reads the saved value without changes. Blocks.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(in super::super) fn read(&self) -> Result<Content, TableError> {
        self.lock().attempt(Inner::read)
    }

    /// Reads and decodes the saved value. A damaged value is quarantined, and logged with its consequence, `lost`.
    /// Blocks.
    ///
    /// # Errors
    /// If the disk cannot be read or written.
    pub(in super::super) fn load<T>(
        &self,
        lost: &str,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, TableError> {
        let damage = match self.read()? {
            Content::Nothing => return Ok(None),
            Content::Bytes(bytes) => match decode(&bytes) {
                Ok(value) => return Ok(Some(value)),
                Err(reason) => reason,
            },
            Content::Damaged(reason) => reason,
        };
        tracing::error!("--state-dir: {lost}: {damage}");
        self.quarantine()?;
        Ok(None)
    }

    /// Replaces the saved value. The value is on the disk when this returns. Blocks.
    ///
    /// # Errors
    /// If the write fails: the table then has the old or the new value.
    pub(in super::super) fn save(&self, bytes: &[u8]) -> Result<(), TableError> {
        self.lock().attempt(|inner| inner.save(bytes))
    }

    /// Replaces the saved value, on a thread that may block.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub(in super::super) async fn save_from(
        &self,
        bytes: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<(), TableError> {
        let document = self.clone();
        tokio::task::spawn_blocking(move || document.save(&bytes())).await?
    }

    /// Moves the records to the table's quarantine, and discards the older ones there. The next read finds
    /// nothing. Blocks.
    ///
    /// # Errors
    /// If the write fails.
    pub(in super::super) fn quarantine(&self) -> Result<(), TableError> {
        self.lock().attempt(Inner::quarantine)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A failed operation resets the cached keys.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the lock, which a thread holds while the disk hangs.
        f.debug_struct("Document").finish_non_exhaustive()
    }
}

impl Inner {
    fn attempt<T>(
        &mut self,
        attempt: impl FnOnce(&mut Self) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        attempt(self).inspect_err(|_| self.records = None)
    }

    fn head(&self) -> Result<RecordKey, InvalidRecordKey> {
        RecordKey::new(self.kind, HEAD)
    }

    /// Returns the key of a part; the first part has number 0.
    fn part(&self, number: usize) -> Result<RecordKey, InvalidRecordKey> {
        RecordKey::new(self.kind, format!("part {number:06}"))
    }

    fn read(&mut self) -> Result<Content, TableError> {
        let loaded = with_reopen(&mut self.store, Store::load)?;
        self.records = Some(loaded.records.iter().map(|(key, _)| key.clone()).collect());
        if let Some(unreadable) = loaded.quarantined.iter().find(|one| one.id.is_in_place()) {
            return Ok(Content::Damaged(format!("{}: {}", unreadable.id, unreadable.reason)));
        }
        if loaded.records.is_empty() {
            return Ok(Content::Nothing);
        }
        let head = self.head()?;
        let length = loaded.records.iter().find(|(key, _)| *key == head);
        let length =
            length.and_then(|(_, bytes)| Some(u64::from_be_bytes(bytes.as_slice().try_into().ok()?)));
        // Records are sorted by key, and so by the number of the part.
        let parts: Vec<u8> =
            loaded.records.into_iter().filter(|(key, _)| *key != head).flat_map(|(_, bytes)| bytes).collect();
        Ok(match length {
            Some(length) if u64::try_from(parts.len()) == Ok(length) => Content::Bytes(parts),
            Some(length) => Content::Damaged(format!("found {} of {length} bytes", parts.len())),
            None => Content::Damaged("the record with the length is missing".to_owned()),
        })
    }

    fn save(&mut self, bytes: &[u8]) -> Result<(), TableError> {
        if self.records.is_none() {
            self.read()?;
        }
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut changes = vec![Change::Put(self.head()?, length.to_be_bytes().to_vec())];
        for (number, part) in bytes.chunks(PART_BYTES).enumerate() {
            changes.push(Change::Put(self.part(number)?, part.to_vec()));
        }
        let now: BTreeSet<RecordKey> = changes.iter().map(|change| change.key().clone()).collect();
        let before = self.records.take().unwrap_or_default();
        changes.extend(before.difference(&now).cloned().map(Change::Remove));
        with_reopen(&mut self.store, |store| store.commit(&changes))?;
        self.records = Some(now);
        Ok(())
    }

    fn quarantine(&mut self) -> Result<(), TableError> {
        let loaded = with_reopen(&mut self.store, Store::load)?;
        for older in loaded.quarantined.iter().filter(|one| !one.id.is_in_place()) {
            self.store.discard(&older.id)?;
        }
        let unreadable = loaded.quarantined.into_iter().filter(|one| one.id.is_in_place());
        let keys = loaded.records.into_iter().map(|(key, _)| key).chain(unreadable.filter_map(|one| one.key));
        let changes: Vec<Change> = keys.map(Change::Quarantine).collect();
        self.store.commit(&changes)?;
        self.records = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use volume_manager::advanced::store::envelope;
    use volume_manager::store::DiskErrorKind;
    use volume_manager::store::faulty::{self, CommitFault};
    use volume_manager::store::memory::MemoryDisk;

    use super::*;

    const KIND: RecordKind = RecordKind(3);

    fn long(last: u8) -> Vec<u8> {
        let mut bytes = vec![7; 3 * PART_BYTES];
        bytes.push(last);
        bytes
    }

    #[test]
    fn loads_the_last_saved_value() {
        let document = Document::new(MemoryDisk::default().open(), KIND);
        assert_eq!(document.read().unwrap(), Content::Nothing);
        for bytes in [vec![], vec![1], long(1), vec![2; PART_BYTES], vec![], long(2)] {
            document.save(&bytes).unwrap();
            assert_eq!(document.read().unwrap(), Content::Bytes(bytes));
        }
    }

    #[test]
    fn failed_save_is_atomic_and_the_next_one_succeeds() {
        let faults = [
            (CommitFault::Refused(DiskErrorKind::NoSpace), false),
            (CommitFault::Written(DiskErrorKind::Device), true),
        ];
        for (fault, is_there) in faults {
            let (store, handle) = faulty::wrap(MemoryDisk::default().open(), faulty::Plan::default());
            let document = Document::new(store, KIND);
            document.save(&long(1)).unwrap();
            handle.fail_next_commit(fault);
            assert!(document.save(b"short").unwrap_err().to_string().contains("reopen"));
            let expected = if is_there { b"short".to_vec() } else { long(1) };
            assert_eq!(document.read().unwrap(), Content::Bytes(expected));
            document.save(b"later").unwrap();
            assert_eq!(document.read().unwrap(), Content::Bytes(b"later".to_vec()));
        }
    }

    #[test]
    fn detects_damaged_records_and_keeps_them() {
        for damaged in 0..5 {
            let disk = MemoryDisk::default();
            Document::new(disk.open(), KIND).save(&long(1)).unwrap();
            let mut store = disk.open();
            let loaded = store.load().unwrap();
            let (key, payload) = &loaded.records[damaged];
            let mut sealed = envelope::seal(key, 1, payload);
            *sealed.last_mut().unwrap() ^= 4;
            disk.overwrite(key.as_row(), &sealed);
            let document = Document::new(disk.open(), KIND);
            assert!(matches!(document.read().unwrap(), Content::Damaged(_)), "{damaged}");
            assert!(matches!(document.read().unwrap(), Content::Damaged(_)), "reading changes nothing");
            document.quarantine().unwrap();
            assert_eq!(document.read().unwrap(), Content::Nothing);
            assert_eq!(store.load().unwrap().quarantined.len(), 5);
            document.save(b"new").unwrap();
            assert_eq!(document.read().unwrap(), Content::Bytes(b"new".to_vec()));
            // The quarantine has only the value that was damaged last.
            document.quarantine().unwrap();
            assert_eq!(store.load().unwrap().quarantined.len(), 2);
        }
    }

    #[test]
    fn missing_record_is_damage() {
        for missing in 0..5 {
            let disk = MemoryDisk::default();
            Document::new(disk.open(), KIND).save(&long(1)).unwrap();
            let mut store = disk.open();
            let key = store.load().unwrap().records[missing].0.clone();
            store.commit(&[Change::Remove(key)]).unwrap();
            let document = Document::new(disk.open(), KIND);
            assert!(matches!(document.read().unwrap(), Content::Damaged(_)), "{missing}");
            document.save(b"new").unwrap();
            assert_eq!(document.read().unwrap(), Content::Bytes(b"new".to_vec()));
        }
    }
}
