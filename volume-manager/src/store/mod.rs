//! A crash-safe store of records: keys with opaque payloads.
//!
//! A [`Store`] holds one record per key. A commit is a group of [`Change`]s that is durable as a whole when it returns, or
//! absent as a whole. Its cost is that of its syncs, with one change or a thousand, so a caller with many records should write
//! them in one commit. The caller also records an intent before its effect.
//!
//! The contract of every implementation, checked by `conformance` (feature `testing`):
//!
//! - An acknowledged commit survives a crash; an unacknowledged one is present as a whole or absent as a whole.
//! - What [`Store::load`] returned is durable too, so a caller may act on it.
//! - Each record is in an [`envelope`] with a checksum that covers the key. A record that is damaged, belongs to another key,
//!   or was written by a newer version is *quarantined*: reported, never fatal, and deleted only by [`Store::discard`]. A
//!   change to its key moves the old bytes aside in the same commit.
//! - After a failed write a store is stopped until [`Store::reopen`] has read the actual state again.
//!
//! | Implementation | For |
//! |---|---|
//! | `redb::RedbStore` (feature `redb`) | devices: one database file |
//! | `memory::MemoryStore` (feature `testing`) | tests, with restarts and damaged records |
//! | `faulty::FaultyStore` (feature `testing`) | tests: fault injection for any store |
//!
//! All calls block; call them from a thread that may block.
//!
//! ```
//! use volume_manager::store::{Change, RecordKey, RecordKind, Store, memory::MemoryStore};
//!
//! let mut store = MemoryStore::default();
//! let key = RecordKey::new(RecordKind(1), "hostpath.csi.k8s.io/vol-1")?;
//! store.commit(&[Change::Put(key.clone(), b"state".to_vec())])?;
//! assert_eq!(store.load()?.records, [(key, b"state".to_vec())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(
    not(any(feature = "redb", feature = "testing")),
    allow(dead_code, reason = "shared by the stores; this build has none of them")
)]

pub mod boot;
pub mod envelope;
mod error;
mod key;
mod quarantine;
#[cfg(feature = "redb")]
pub mod redb;
mod rows;
#[cfg(feature = "testing")]
mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use boot::BootId;
pub use envelope::Defect;
pub use error::{DiskErrorKind, OpenError, StoreError};
pub use key::{InvalidRecordKey, RecordKey, RecordKind};
#[cfg(feature = "testing")]
pub use testing::{conformance, faulty, memory};

/// The maximum size of a record's payload in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// The maximum number of records of a store, including quarantined ones that were not moved aside.
pub const MAX_RECORDS: u64 = 100_000;

/// The maximum size of all records in their envelopes (64 MiB), about the memory that [`Store::load`] needs.
pub const MAX_BYTES: u64 = 64 << 20;

/// The maximum number of quarantined records whose bytes were moved aside.
pub const MAX_ASIDE: u64 = 10_000;

/// The maximum size of all records that were moved aside (64 MiB). They are not loaded.
pub const MAX_ASIDE_BYTES: u64 = 64 << 20;

/// A store of records. See the [module](self) for its contract.
pub trait Store: Send {
    /// Loads all records, in order of the keys. The result is durable.
    ///
    /// # Errors
    /// If the disk cannot be read, or the store exceeds the limits; never because of a single record.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Applies the changes in order, and returns when all of them are durable. If one is rejected, none is
    /// applied.
    ///
    /// # Errors
    /// If a limit is exceeded: nothing is written, the store continues, and [`StoreError::rejected_record`] is the record to
    /// omit. If the disk fails: either all or none of the changes are durable, and the store is stopped until
    /// [`Store::reopen`].
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Reopens a stopped store. Load it again afterwards.
    ///
    /// # Errors
    /// If it cannot be opened. It remains stopped, and may be reopened later.
    fn reopen(&mut self) -> Result<(), StoreError>;

    /// Returns the bytes of a quarantined record.
    ///
    /// # Errors
    /// If the record does not exist, or the disk cannot be read.
    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError>;

    /// Releases a quarantined record, if it is readable now and its key is free.
    ///
    /// # Errors
    /// As [`Store::commit`]; or if it cannot be read, or its key has a newer record.
    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError>;

    /// Deletes a quarantined record permanently.
    ///
    /// # Errors
    /// As [`Store::commit`], or if the record does not exist.
    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        (**self).load()
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        (**self).commit(changes)
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        (**self).reopen()
    }

    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
        (**self).quarantined(id)
    }

    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        (**self).release(id)
    }

    fn discard(&mut self, id: &QuarantineId) -> Result<(), StoreError> {
        (**self).discard(id)
    }
}

/// A change to one record. Its `Debug` has only the length of the payload, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Writes a record of up to [`MAX_PAYLOAD_BYTES`] bytes, replacing the one of the same key.
    Put(RecordKey, Vec<u8>),
    /// Deletes a record, if it exists.
    Remove(RecordKey),
    /// Quarantines a record, if it exists, such as one whose payload its owner cannot decode.
    Quarantine(RecordKey),
}

impl Change {
    /// The key of the record.
    #[must_use]
    pub const fn key(&self) -> &RecordKey {
        match self {
            Self::Put(key, _) | Self::Remove(key) | Self::Quarantine(key) => key,
        }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, payload) => write!(f, "Put({key}, {} bytes)", payload.len()),
            Self::Remove(key) => write!(f, "Remove({key})"),
            Self::Quarantine(key) => write!(f, "Quarantine({key})"),
        }
    }
}

/// The content of a store. Its `Debug` has only the lengths of the payloads, which may contain secrets.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// The records with their payloads, in order of the keys.
    pub records: Vec<(RecordKey, Vec<u8>)>,
    /// The quarantined records.
    pub quarantined: Vec<Quarantined>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records: Vec<_> = self.records.iter().map(|(key, payload)| (key, payload.len())).collect();
        f.debug_struct("Loaded").field("records", &records).field("quarantined", &self.quarantined).finish()
    }
}

/// A quarantined record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// The id for [`Store::quarantined`], [`Store::release`] and [`Store::discard`].
    pub id: QuarantineId,
    /// The key under which it is or was stored, if that is valid. A record that was moved aside leaves its key free, so several
    /// may have the same key.
    pub key: Option<RecordKey>,
    /// The defect.
    pub reason: Defect,
    /// The size of the record in bytes.
    pub bytes: usize,
}

/// The id of a quarantined record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuarantineId(Place);

/// The location of a quarantined record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    /// In the row of its key.
    Row(Box<[u8]>),
    /// Moved aside under this number.
    Aside(u64),
}

impl QuarantineId {
    /// Whether the bytes are still in the row of their key, so that this key has no readable record.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Place::Row(_))
    }
}

impl fmt::Display for QuarantineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Row(row) => match RecordKey::from_row(row) {
                Ok(key) => write!(f, "in place {key}"),
                Err(_) => write!(f, "in place {}", row.escape_ascii()),
            },
            Place::Aside(number) => write!(f, "aside {number}"),
        }
    }
}

impl fmt::Debug for QuarantineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuarantineId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_payloads() {
        let key = RecordKey::new(RecordKind(1), "vol-1").unwrap();
        let payload = b"password=s3cret".to_vec();
        let sealed = envelope::seal(&key, 1, &payload);
        let loaded = Loaded { records: vec![(key.clone(), payload.clone())], quarantined: Vec::new() };
        let printed = [
            format!("{:?}", Change::Put(key.clone(), payload.clone())),
            format!("{:?}", envelope::open(key.as_row(), &sealed)),
            format!("{loaded:?}"),
            #[cfg(feature = "redb")]
            format!("{:?}", redb::Salvaged { key, sequence: 1, payload }),
        ];
        for text in printed {
            assert!(text.contains("1:vol-1") && text.contains("15"), "{text}");
            // The payload is printed neither as text nor as a list of numbers.
            assert!(!text.contains("s3cret") && !text.contains("112"), "{text}");
        }
    }
}

/// The result of [`release_salvaged`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReleased {
    /// The number of released records.
    pub released: usize,
    /// The number of records that remain in quarantine, since several of their key were found and the latest is unknown, or the
    /// key has a newer record.
    pub left: usize,
}

/// Releases the records that were [salvaged](Defect::Salvaged) from a corrupt file. Each of them may be outdated.
///
/// Intended for callers that then compare the records with an intact source, such as a desired set: a volume that
/// was removed shortly before the corruption may be among them. Call it at every start with the loaded records,
/// since an interrupted call leaves the rest in quarantine. It makes one commit per released record; load the
/// store again afterwards.
///
/// # Errors
/// As [`Store::release`]. Records that were already released remain so.
pub fn release_salvaged(
    store: &mut (impl Store + ?Sized),
    loaded: &Loaded,
) -> Result<SalvageReleased, StoreError> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for record in loaded.quarantined.iter().filter(|record| record.reason == Defect::Salvaged) {
        found.entry(record.key.as_ref()).or_default().push(&record.id);
    }
    let mut taken = SalvageReleased::default();
    if found.is_empty() {
        return Ok(taken);
    }
    let live: BTreeSet<_> = loaded.records.iter().map(|(key, _)| key).collect();
    for (key, ids) in found {
        let live = key.is_some_and(|key| live.contains(key));
        match (&ids[..], live) {
            ([only], false) => {
                store.release(only)?;
                taken.released += 1;
            }
            (several, _) => taken.left += several.len(),
        }
    }
    Ok(taken)
}
