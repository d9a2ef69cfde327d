//! The on-disk format of a record, with a checksum.
//!
//! | Offset | Bytes | |
//! |---|---|---|
//! | 0 | 4 | the magic `VOLR` |
//! | 4 | 2 | the version of this format |
//! | 6 | 2 | length of the key |
//! | 8 | 4 | length of the payload |
//! | 12 | 8 | sequence number of the commit that wrote it |
//! | 20 | 4 | CRC-32 over the preceding fields, the key and the payload |
//! | 24 | | the key: one byte of kind, then the name |
//! | | | the payload |
//!
//! Numbers are little-endian. The envelope repeats the key, so that a record in the wrong row is detected, and so
//! that records can be found in a corrupt file; the sequence number then identifies the latest one.

use std::fmt;

use super::{MAX_PAYLOAD_BYTES, RecordKey};

/// The first bytes of each envelope.
pub const MAGIC: [u8; 4] = *b"VOLR";

/// The version of the format that is written. Every version keeps the magic and the offset of the version.
pub const VERSION: u16 = 1;

/// The size of the header in bytes, which is the offset of the key.
pub const HEADER_BYTES: usize = 24;

/// The offset of the checksum.
const CHECKSUM: usize = 20;

/// A decoded envelope. Its `Debug` has only the length of the payload, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened<'a> {
    /// The key.
    pub key: RecordKey,
    /// The sequence number of the commit that wrote it.
    pub sequence: u64,
    /// The payload.
    pub payload: &'a [u8],
    /// The size of the whole envelope in bytes.
    pub bytes: usize,
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("key", &self.key)
            .field("sequence", &self.sequence)
            .field("payload_bytes", &self.payload.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// Encodes a record. A payload of more than [`MAX_PAYLOAD_BYTES`] bytes makes the record unreadable.
#[must_use]
pub fn seal(key: &RecordKey, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let row = key.as_row();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + row.len() + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(row.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    let checksum = checksum(&bytes, row, payload);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(row);
    bytes.extend_from_slice(payload);
    bytes
}

/// Decodes the envelope of the record in a row.
///
/// # Errors
/// If the bytes are not a valid envelope, or the record belongs to another row.
pub fn open<'a>(row: &[u8], bytes: &'a [u8]) -> Result<Opened<'a>, Defect> {
    let opened = open_first(bytes)?;
    if opened.bytes != bytes.len() {
        return Err(Defect::Length { expected: opened.bytes, found: bytes.len() });
    }
    if opened.key.as_row() != row {
        return Err(Defect::WrongKey { found: opened.key });
    }
    Ok(opened)
}

/// Decodes the envelope at the start of the bytes.
///
/// # Errors
/// If the bytes do not begin with a valid envelope.
pub fn open_first(bytes: &[u8]) -> Result<Opened<'_>, Defect> {
    if bytes.is_empty() {
        return Err(Defect::Empty);
    }
    let magic = bytes.get(..4).unwrap_or(bytes);
    if !MAGIC.starts_with(magic) {
        return Err(Defect::NotARecord);
    }
    let too_short = |expected| Defect::Length { expected, found: bytes.len() };
    let version = number(bytes, 4, 2).ok_or_else(|| too_short(HEADER_BYTES))?;
    if version != u64::from(VERSION) {
        return Err(Defect::Version { found: version, supported: VERSION });
    }
    let field = |at, length| number(bytes, at, length).ok_or_else(|| too_short(HEADER_BYTES));
    let size = |at, length| Ok(usize::try_from(field(at, length)?).unwrap_or(usize::MAX));
    let (key_bytes, payload_bytes) = (size(6, 2)?, size(8, 4)?);
    let (sequence, expected) = (field(12, 8)?, field(CHECKSUM, 4)?);
    if payload_bytes > MAX_PAYLOAD_BYTES || key_bytes > RecordKey::MAX_NAME_BYTES + 1 {
        return Err(Defect::Lengths { key: key_bytes, payload: payload_bytes });
    }
    let whole = HEADER_BYTES + key_bytes + payload_bytes;
    let body = bytes.get(HEADER_BYTES..whole).ok_or_else(|| too_short(whole))?;
    let (row, payload) = body.split_at(key_bytes);
    let found = checksum(bytes.get(..CHECKSUM).unwrap_or_default(), row, payload);
    if u64::from(found) != expected {
        return Err(Defect::Checksum { expected, found });
    }
    let key =
        RecordKey::from_row(row).map_err(|_| Defect::Lengths { key: key_bytes, payload: payload_bytes })?;
    Ok(Opened { key, sequence, payload, bytes: whole })
}

fn checksum(header: &[u8], row: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [header, row, payload] {
        hasher.update(part);
    }
    hasher.finalize()
}

/// Reads a little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(length)?)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Why bytes are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The bytes are empty.
    #[error("the record is empty")]
    Empty,
    /// The bytes are not an envelope.
    #[error("the bytes are not a record")]
    NotARecord,
    /// The bytes were written by an unknown version, and may be intact.
    #[error("the record has format {found}; this version supports {supported}")]
    Version {
        /// The version found.
        found: u64,
        /// The supported version.
        supported: u16,
    },
    /// The lengths in the header exceed the limits.
    #[error("the record's header has a key of {key} bytes and a payload of {payload} bytes, over the limits")]
    Lengths {
        /// The length of the key in bytes.
        key: usize,
        /// The length of the payload in bytes.
        payload: usize,
    },
    /// The envelope is truncated, or has trailing bytes.
    #[error("the record has {found} bytes instead of {expected}")]
    Length {
        /// The expected length.
        expected: usize,
        /// The actual length.
        found: usize,
    },
    /// The checksum does not match.
    #[error("the record's checksum is {found:08x} instead of {expected:08x}")]
    Checksum {
        /// The checksum in the header.
        expected: u64,
        /// The computed checksum.
        found: u32,
    },
    /// The record belongs to another key.
    #[error("the record belongs to the key {found}")]
    WrongKey {
        /// The key that the record belongs to.
        found: RecordKey,
    },
    /// The record is readable, and was quarantined by its owner ([`Change::Quarantine`](super::Change::Quarantine)).
    #[error("the record was quarantined by its owner")]
    QuarantinedByOwner,
    /// The record is readable, but was salvaged from a corrupt file, and may be outdated.
    #[error("the record was salvaged from a corrupt file, and may be outdated")]
    Salvaged,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::RecordKind;

    fn sealed() -> (RecordKey, Vec<u8>) {
        let key = RecordKey::new(RecordKind(1), "driver/volume").unwrap();
        let bytes = seal(&key, 77, b"published to /target");
        (key, bytes)
    }

    #[test]
    fn seal_and_open_round_trip() {
        let (key, bytes) = sealed();
        let opened = open(key.as_row(), &bytes).unwrap();
        assert_eq!(
            (opened.key, opened.sequence, opened.payload),
            (key.clone(), 77, &b"published to /target"[..])
        );
        assert_eq!(bytes.len(), HEADER_BYTES + 14 + 20);
        assert!(open(key.as_row(), &seal(&key, u64::MAX, b"")).unwrap().payload.is_empty());
    }

    /// Truncation at every byte, a flipped bit, zero length, duplicates and a newer version.
    #[test]
    fn detects_truncations_flipped_bits_and_tails() {
        let (key, bytes) = sealed();
        assert_eq!(open(key.as_row(), b""), Err(Defect::Empty));
        for length in 1..bytes.len() {
            let defect = open(key.as_row(), &bytes[..length]).unwrap_err();
            assert!(matches!(defect, Defect::Length { found, .. } if found == length), "{length}: {defect}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open(key.as_row(), &flipped).is_err(), "bit {bit}");
        }
        let twice = [bytes.clone(), bytes.clone()].concat();
        assert_eq!(
            open(key.as_row(), &twice),
            Err(Defect::Length { expected: bytes.len(), found: twice.len() })
        );
        let mut half = bytes.clone();
        let middle = half.len() / 2;
        half[middle..].fill(0);
        assert!(matches!(open(key.as_row(), &half), Err(Defect::Checksum { .. })));
    }

    #[test]
    fn distinguishes_wrong_keys_and_newer_versions() {
        let (key, mut bytes) = sealed();
        let other = RecordKey::new(RecordKind(2), "driver/volume").unwrap();
        assert_eq!(open(other.as_row(), &bytes), Err(Defect::WrongKey { found: key.clone() }));
        bytes[4] = 2;
        assert_eq!(open(key.as_row(), &bytes), Err(Defect::Version { found: 2, supported: 1 }));
        assert_eq!(open(key.as_row(), b"{\"json\": 1}"), Err(Defect::NotARecord));
        let mut huge = sealed().1;
        huge[11] = 0xff;
        assert!(matches!(open(key.as_row(), &huge), Err(Defect::Lengths { .. })));
    }

    proptest! {
        #[test]
        fn records_round_trip_and_decoding_never_panics(
            name in proptest::collection::vec(any::<u8>(), 1..100),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            sequence: u64,
            garbage in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let key = RecordKey::new(RecordKind(9), &name).unwrap();
            let bytes = seal(&key, sequence, &payload);
            prop_assert_eq!(open(key.as_row(), &bytes).unwrap().payload, &payload[..]);
            let _ = open(key.as_row(), &garbage);
            let mut headed = bytes[..6].to_vec();
            headed.extend(garbage);
            let _ = open_first(&headed);
        }
    }
}
