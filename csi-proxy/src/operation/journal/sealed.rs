//! The header that every row has before its record, whatever the record is, and by which damage is noticed.

use prost::Message;

/// Why bytes are not taken for a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// They are too few, or begin with something else.
    #[error("it is no record")]
    NoRecord,
    /// They were written by a version that this one does not know.
    #[error("it has format {found}, which this version does not know")]
    Version {
        /// That version.
        found: u16,
    },
    /// Some byte is wrong, or the row is another one's.
    #[error("its checksum is {found:08x} instead of {expected:08x}")]
    Checksum {
        /// What the header says.
        expected: u32,
        /// What it is.
        found: u32,
    },
    /// The bytes are as they were written, but make no sense.
    #[error("its field {field} has no value that is known")]
    Field {
        /// The field.
        field: &'static str,
    },
}

const CHECKSUM: usize = 8;
const HEADER: usize = 12;

/// The bytes of a row with this record.
pub(crate) fn seal(magic: [u8; 4], version: u16, row: u64, record: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + record.len());
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(record);
    let sum = checksum(row, &bytes);
    bytes[CHECKSUM..HEADER].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The record in the bytes of a row.
pub(crate) fn open<R: Message + Default>(
    magic: [u8; 4],
    version: u16,
    row: u64,
    bytes: &[u8],
) -> Result<R, Defect> {
    let (Some(&[v0, v1]), Some(&[c0, c1, c2, c3]), Some(body)) = (
        bytes.get(4..6).and_then(<[u8]>::first_chunk),
        bytes.get(CHECKSUM..HEADER).and_then(<[u8]>::first_chunk),
        bytes.get(HEADER..),
    ) else {
        return Err(Defect::NoRecord);
    };
    if !bytes.starts_with(&magic) {
        return Err(Defect::NoRecord);
    }
    let found = u16::from_le_bytes([v0, v1]);
    if found != version {
        return Err(Defect::Version { found });
    }
    let (expected, found) = (u32::from_le_bytes([c0, c1, c2, c3]), checksum(row, bytes));
    if expected != found {
        return Err(Defect::Checksum { expected, found });
    }
    R::decode(body).map_err(|_| Defect::Field { field: "record" })
}

fn checksum(row: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytes.get(..CHECKSUM).unwrap_or_default());
    hasher.update(&row.to_le_bytes());
    hasher.update(bytes.get(HEADER..).unwrap_or_default());
    hasher.finalize()
}
