//! What records are called.

use std::fmt;

/// What sort of record it is. The numbers are the caller's.
#[allow(clippy::exhaustive_structs, reason = "a number is all there is to it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(pub u8);

/// The key of a record: its kind and a name of 1 to 1,024 bytes. Keys are ordered by kind, then by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The kind, then the name: as it is on the disk.
    row: Box<[u8]>,
}

impl RecordKey {
    /// The most bytes of a name.
    pub const MAX_NAME_BYTES: usize = 1024;

    /// Checks a name.
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

    /// The key as it is on the disk: one byte of kind, then the name.
    #[must_use]
    pub fn as_row(&self) -> &[u8] {
        &self.row
    }

    /// What sort of record it is.
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

/// Why a name is not that of a [`RecordKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRecordKey {
    /// There is no name.
    #[error("the record's name is empty; name each record after what it records")]
    Empty,
    /// More than [`RecordKey::MAX_NAME_BYTES`] bytes.
    #[error("the record's name has {found} bytes; at most {} are allowed", RecordKey::MAX_NAME_BYTES)]
    TooLong {
        /// How many bytes there are.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_bounds_and_comes_back_from_its_row() {
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
