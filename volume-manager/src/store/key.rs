//! Keys of records.

use std::fmt;

/// The kind of a record. The caller defines the numbers.
#[allow(clippy::exhaustive_structs, reason = "a plain number")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(pub u8);

/// The key of a record: its kind and a name of 1 to 1,024 bytes. Keys are ordered by kind, then by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The kind and the name, as stored on disk.
    row: Box<[u8]>,
}

impl RecordKey {
    /// The maximum size of a name in bytes.
    pub const MAX_NAME_BYTES: usize = 1024;

    /// Validates a name.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn new(kind: RecordKind, name: impl AsRef<[u8]>) -> Result<Self, InvalidRecordKey> {
        let name = name.as_ref();
        let mut row = Vec::with_capacity(name.len() + 1);
        row.push(kind.0);
        row.extend_from_slice(name);
        Self::from_row(&row)
    }

    /// The key of a row: one byte of kind, then the name.
    ///
    /// # Errors
    /// If the name is missing or too long.
    pub fn from_row(row: &[u8]) -> Result<Self, InvalidRecordKey> {
        match row.len() {
            0 | 1 => Err(InvalidRecordKey::Empty),
            bytes if bytes - 1 > Self::MAX_NAME_BYTES => Err(InvalidRecordKey::TooLong { found: bytes - 1 }),
            _ => Ok(Self { row: row.into() }),
        }
    }

    /// The key as stored on disk: one byte of kind, then the name.
    #[must_use]
    pub fn as_row(&self) -> &[u8] {
        &self.row
    }

    /// The kind of the record.
    #[must_use]
    pub fn kind(&self) -> RecordKind {
        RecordKind(self.row.first().copied().unwrap_or_default())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.row.get(1..).unwrap_or_default()
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind().0, self.name().escape_ascii())
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordKey({self})")
    }
}

/// Why a name is invalid in a [`RecordKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRecordKey {
    /// The name is empty.
    #[error("the record's name is empty; expected 1 to {} bytes", RecordKey::MAX_NAME_BYTES)]
    Empty,
    /// The name has more than [`RecordKey::MAX_NAME_BYTES`] bytes.
    #[error("the record's name has {found} bytes; at most {} are allowed", RecordKey::MAX_NAME_BYTES)]
    TooLong {
        /// The size of the name in bytes.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_bounded_and_round_trips() {
        let key = RecordKey::new(RecordKind(3), "driver/v\n").unwrap();
        assert_eq!(
            (key.kind(), key.name(), key.as_row()),
            (RecordKind(3), &b"driver/v\n"[..], &b"\x03driver/v\n"[..])
        );
        assert_eq!(RecordKey::from_row(key.as_row()), Ok(key.clone()));
        assert_eq!(key.to_string(), "3:driver/v\\n");
        assert!(RecordKey::new(RecordKind(0), [7; 1024]).is_ok());
        assert_eq!(RecordKey::new(RecordKind(0), ""), Err(InvalidRecordKey::Empty));
        assert_eq!(RecordKey::from_row(b""), Err(InvalidRecordKey::Empty));
        assert_eq!(RecordKey::new(RecordKind(0), [7; 1025]), Err(InvalidRecordKey::TooLong { found: 1025 }));
    }
}
