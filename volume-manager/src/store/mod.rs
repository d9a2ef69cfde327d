//! Records that are right after every power cut: keys and bytes, and nothing of what they mean.
//!
//! A [`Store`] holds one record a key. A commit is a group of [`Change`]s that is on the disk as a whole when it
//! returns, or not there at all. Its cost is that of its syncs, whether it has one change or a thousand, so a caller
//! with many records to write does well to write them in one commit. Writing down an intent before its effect is the
//! caller's part too.
//!
//! What a store promises, checked by `conformance` (feature `testing`) for every implementation:
//!
//! - What is acknowledged is there after a crash; a commit that is not is there as a whole or not at all.
//! - What [`Store::load`] returned is durable too, so a caller may act on it.
//! - Each record is in an [`envelope`] with a checksum over its key. One that is damaged, belongs to another key, or
//!   was written by a newer version is *quarantined*: reported, never fatal, never deleted but by [`Store::discard`].
//!   A change to its key moves the old bytes aside in the same commit.
//! - After a failed write a store accepts nothing more, until [`Store::reopen`] has read again what is really there.
//!
//! | Implementation | For |
//! |---|---|
//! | `redb::RedbStore` (feature `redb`) | devices: one database file |
//! | `memory::MemoryStore` (feature `testing`) | tests, with restarts and damaged records |
//! | `faulty::FaultyStore` (feature `testing`) | tests: any store, failing on purpose |
//!
//! All calls block; call them from a thread that may.
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
    allow(dead_code, reason = "what stores have in common, and none is in this build")
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
pub use error::{OpenError, StoreError, Trouble};
pub use key::{InvalidRecordKey, RecordKey, RecordKind};
#[cfg(feature = "testing")]
pub use testing::{conformance, faulty, memory};

/// The most bytes of a record's payload.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// The most records of a store, those in quarantine that have kept their key among them.
pub const MAX_RECORDS: u64 = 100_000;

/// The most bytes of all records in their envelopes (64 MiB), which is about what [`Store::load`] takes of memory.
pub const MAX_BYTES: u64 = 64 << 20;

/// The most quarantined records whose bytes were moved aside.
pub const MAX_ASIDE: u64 = 10_000;

/// The most bytes that were moved aside (64 MiB). They are not loaded.
pub const MAX_ASIDE_BYTES: u64 = 64 << 20;

/// Where records are kept. See the [module](self) for what is promised.
pub trait Store: Send {
    /// Everything that is there, in order of the keys. What it returns is durable.
    ///
    /// # Errors
    /// If the disk cannot be read, or more is there than the bounds allow; never because of a single record.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Makes the changes, in their order, and returns when all of them are on the disk. No change is made if one is
    /// refused.
    ///
    /// # Errors
    /// If a bound is exceeded, then nothing is written and the store goes on; [`StoreError::refused`] names the record
    /// that is to be left out. If the disk fails: it is open then whether the changes are there, all or none, and the
    /// store is stopped until [`Store::reopen`].
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Opens the store again, which ends its being stopped. [`Store::load`] tells what is there.
    ///
    /// # Errors
    /// If it cannot be opened. It is stopped then, and may be reopened later.
    fn reopen(&mut self) -> Result<(), StoreError>;

    /// The bytes of a quarantined record, to look at or to keep elsewhere.
    ///
    /// # Errors
    /// If there is no such record, or the disk cannot be read.
    fn quarantined(&mut self, id: &QuarantineId) -> Result<Vec<u8>, StoreError>;

    /// Takes a quarantined record back as a live one, if it can be read by now and its key is free.
    ///
    /// # Errors
    /// As [`Store::commit`]; or if it cannot be read, or its key has a record.
    fn release(&mut self, id: &QuarantineId) -> Result<(), StoreError>;

    /// Deletes a quarantined record for good.
    ///
    /// # Errors
    /// As [`Store::commit`], or if there is no such record.
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

/// A change to one record. Its `Debug` has the payload's length only, since there may be secrets in it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Writes a record of up to [`MAX_PAYLOAD_BYTES`] bytes, over the one of the same key.
    Put(RecordKey, Vec<u8>),
    /// Deletes a record. There need be none.
    Remove(RecordKey),
    /// Puts a record into quarantine, such as one whose payload its owner cannot read. There need be none.
    SetAside(RecordKey),
}

impl Change {
    /// The key of the record.
    #[must_use]
    pub const fn key(&self) -> &RecordKey {
        match self {
            Self::Put(key, _) | Self::Remove(key) | Self::SetAside(key) => key,
        }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(key, payload) => write!(f, "Put({key}, {} bytes)", payload.len()),
            Self::Remove(key) => write!(f, "Remove({key})"),
            Self::SetAside(key) => write!(f, "SetAside({key})"),
        }
    }
}

/// What is in a store. Its `Debug` has the payloads' lengths only, since there may be secrets in them.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// The records with their payloads, in order of the keys.
    pub records: Vec<(RecordKey, Vec<u8>)>,
    /// What could not be taken for a record.
    pub quarantined: Vec<Quarantined>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records: Vec<_> = self.records.iter().map(|(key, payload)| (key, payload.len())).collect();
        f.debug_struct("Loaded").field("records", &records).field("quarantined", &self.quarantined).finish()
    }
}

/// Bytes that are kept, but are no record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// What to call it.
    pub id: QuarantineId,
    /// The key that it is, or was, stored under, if that is one. A record that was moved aside leaves its key free, so
    /// that several may have been under one.
    pub key: Option<RecordKey>,
    /// What is wrong with it.
    pub reason: Defect,
    /// How many bytes there are.
    pub bytes: usize,
}

/// Names one quarantined record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuarantineId(Place);

/// Where the bytes are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    /// Still in the row of the record.
    Row(Box<[u8]>),
    /// Moved aside under this number.
    Aside(u64),
}

impl QuarantineId {
    /// Whether the bytes are still where the record was, so that what is recorded lacks it since then.
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
    fn no_payload_is_in_what_is_printed_for_a_log() {
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
            // Neither as text nor as a list of numbers.
            assert!(!text.contains("s3cret") && !text.contains("112"), "{text}");
        }
    }
}

/// What became of the salvaged records of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TakenBack {
    /// How many are live again.
    pub released: usize,
    /// How many are still aside: several were found under their key and none can be told to be the last, or the key has a
    /// newer record by now.
    pub left: usize,
}

/// Makes the records live again that were [salvaged](Defect::Salvaged) from a damaged file, each of which may be out of date.
///
/// For who compares them afterwards with something that was not damaged, such as a desired set of their own: a volume that
/// was removed shortly before the damage may be among them. To be called at every start with what was loaded, since one
/// that is cut off leaves the rest aside. Costs nothing if there is nothing to take back, else a commit for each record;
/// load again after it.
///
/// # Errors
/// As [`Store::release`]. What was released before stays so.
pub fn take_back_salvaged(
    store: &mut (impl Store + ?Sized),
    loaded: &Loaded,
) -> Result<TakenBack, StoreError> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for record in loaded.quarantined.iter().filter(|record| record.reason == Defect::Salvaged) {
        found.entry(record.key.as_ref()).or_default().push(&record.id);
    }
    let mut taken = TakenBack::default();
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
