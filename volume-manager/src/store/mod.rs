//! A crash-safe store of records: keys with opaque payloads.
//!
//! A [`Store`] holds one record per key, on the [`Rows`] of a medium. A commit is a group of [`Change`]s that is durable as a
//! whole when it returns, or absent as a whole. Its cost is that of its syncs, with one change or a thousand, so a caller with
//! many records should write them in one commit. The caller also records an intent before its effect.
//!
//! The contract:
//!
//! - An acknowledged commit survives a crash; an unacknowledged one is present as a whole or absent as a whole.
//! - What [`Store::load`] returned is durable too, so a caller may act on it.
//! - Each record is in an envelope with a checksum that covers the key. A record that is damaged, belongs to another key,
//!   or was written by a newer version is *quarantined*: reported, never fatal, and deleted only by [`Store::discard`]. A
//!   change to its key moves the old bytes aside in the same commit.
//! - After a failed write a store is stopped until [`Store::reopen`] has read the actual state again.
//!
//! The medium is one of these, or your own: implement [`Rows`], four methods over bytes, and check them with `conformance`
//! (feature `testing`). Records, checksums, limits and the quarantine are the same on each.
//!
//! | Medium | For |
//! |---|---|
//! | `redb::open` (feature `redb`) | devices: one database file |
//! | `memory::MemoryDisk` (feature `testing`) | tests, with restarts and damaged records |
//! | `faulty::wrap` (feature `testing`) | tests: fault injection for any store |
//!
//! All calls block; call them from a thread that may block.
//!
//! ```
//! use volume_manager::store::{Change, RecordKey, RecordKind, Store};
//! use volume_manager::store::memory::MemoryDisk;
//!
//! let mut store = Store::new(MemoryDisk::default());
//! let key = RecordKey::new(RecordKind(1), "hostpath.csi.k8s.io/vol-1")?;
//! store.commit(&[Change::Put(key.clone(), b"state".to_vec())])?;
//! assert_eq!(store.load()?.records, [(key, b"state".to_vec())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(feature = "redb"), allow(dead_code, reason = "some parts are for the store on disk only"))]

mod batch;
mod boot;
pub(crate) mod envelope;
mod error;
mod key;
mod plan;
mod quarantine;
mod records;
#[cfg(feature = "redb")]
pub mod redb;
mod rows;
pub(crate) mod salvaged;
#[cfg(feature = "testing")]
mod testing;

use std::fmt;

pub use boot::{BootId, BootIdError, InvalidBootId};
pub use envelope::Defect;
pub use error::{DiskErrorKind, OpenStoreError, StoreError};
pub use key::{InvalidRecordKey, RecordKey, RecordKind};
pub use records::Store;
pub use rows::{RowTable, RowWrite, Rows};
#[cfg(feature = "testing")]
pub use testing::{conformance, faulty, memory};

/// The maximum size of a record's payload in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// The maximum size of a row that is written, in bytes: a record of the maximum size, moved aside with its key and its envelope.
/// A larger row is one that the medium had, moved aside as it was found.
pub const MAX_ROW_BYTES: usize =
    4 + (RecordKey::MAX_NAME_BYTES + 1) * 2 + envelope::HEADER_BYTES + MAX_PAYLOAD_BYTES;

/// The maximum number of records of a store, including quarantined ones that were not moved aside.
pub const MAX_RECORDS: u64 = 100_000;

/// The maximum size of all records in their envelopes (64 MiB), about the memory that [`Store::load`] needs.
pub const MAX_BYTES: u64 = 64 << 20;

/// The maximum number of quarantined records whose bytes were moved aside.
pub const MAX_ASIDE: u64 = 10_000;

/// The maximum size of all records that were moved aside (64 MiB). They are not loaded.
pub const MAX_ASIDE_BYTES: u64 = 64 << 20;

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
            format!("{:?}", redb::salvage::Salvaged { key, sequence: 1, payload }),
        ];
        for text in printed {
            assert!(text.contains("1:vol-1") && text.contains("15"), "{text}");
            // The payload is printed neither as text nor as a list of numbers.
            assert!(!text.contains("s3cret") && !text.contains("112"), "{text}");
        }
    }
}
