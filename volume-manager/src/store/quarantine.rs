//! Quarantined records: unreadable bytes stay in their row, or are moved aside, until they are released or discarded.

use super::batch::{Batch, Counter};
use super::plan::{BYTES, RECORDS};
use super::{Defect, MAX_BYTES, MAX_RECORDS, Place, QuarantineId, StoreError, envelope};

/// Stores a packed row among the rows that were moved aside.
pub(super) fn keep_aside(rows: &mut Batch<'_>, packed: &[u8]) -> Result<(), StoreError> {
    let number = rows.increment(Counter::Aside)?;
    rows.set_aside(number, None, Some(packed.to_vec()));
    Ok(())
}

/// Returns the bytes of a quarantined record.
pub(super) fn quarantined(rows: &mut Batch<'_>, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
    let none = || StoreError::NotQuarantined { id: id.clone() };
    match &id.0 {
        Place::Row(row) => {
            let bytes = rows.record(row)?.ok_or_else(none)?;
            if envelope::open(row, &bytes).is_ok() { Err(none()) } else { Ok(bytes) }
        }
        Place::Aside(number) => {
            let packed = rows.aside(*number)?.ok_or_else(none)?;
            Ok(unpack(&packed).map_or(&packed[..], |(_, _, bytes)| bytes).to_vec())
        }
    }
}

/// Releases a quarantined record.
pub(super) fn release(rows: &mut Batch<'_>, id: &QuarantineId) -> Result<(), StoreError> {
    let unreadable = |reason| StoreError::NotReadable { id: id.clone(), reason };
    match &id.0 {
        Place::Row(row) => {
            let bytes = quarantined(rows, id)?;
            // A readable row is not quarantined any more, such as after an upgrade.
            envelope::open(row, &bytes).map(|_| ()).map_err(unreadable)
        }
        Place::Aside(number) => {
            let packed = rows.aside(*number)?.ok_or_else(|| StoreError::NotQuarantined { id: id.clone() })?;
            let (_, row, bytes) = unpack(&packed).ok_or_else(|| unreadable(Defect::NotARecord))?;
            let opened = envelope::open(row, bytes).map_err(unreadable)?;
            if rows.record(row)?.is_some() {
                return Err(StoreError::Occupied { id: id.clone(), key: opened.key });
            }
            let mut records = rows.totals().records;
            records.change(None, Some(opened.bytes));
            records.check(&opened.key, [(RECORDS, MAX_RECORDS), (BYTES, MAX_BYTES)])?;
            let sequence = rows.increment(Counter::Sequence)?;
            rows.set_record(row, None, Some(envelope::seal(&opened.key, sequence, opened.payload)));
            rows.set_aside(*number, Some(packed.len()), None);
            Ok(())
        }
    }
}

/// Deletes a quarantined record.
pub(super) fn discard(rows: &mut Batch<'_>, id: &QuarantineId) -> Result<(), StoreError> {
    let bytes = quarantined(rows, id)?.len();
    match &id.0 {
        Place::Row(row) => rows.set_record(row, Some(bytes), None),
        Place::Aside(number) => {
            let packed = rows.aside(*number)?.map(|packed| packed.len());
            rows.set_aside(*number, packed, None);
        }
    }
    Ok(())
}

/// The origin of bytes that were stored aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The bytes were in the row of their key.
    Row,
    /// The bytes were salvaged from a corrupt file.
    Salvaged,
}

/// The flag of salvaged records in the length of the key, which is always less than the flag.
const SALVAGED: u32 = 1 << 31;

/// Packs a row: the length of the key (4 bytes, little-endian), the key, the bytes.
pub(super) fn pack(origin: Origin, row: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut length = u32::try_from(row.len()).unwrap_or(u32::MAX);
    if origin == Origin::Salvaged {
        length |= SALVAGED;
    }
    [&length.to_le_bytes()[..], row, bytes].concat()
}

/// Unpacks a row into its origin, key and bytes.
pub(super) fn unpack(packed: &[u8]) -> Option<(Origin, &[u8], &[u8])> {
    let (length, rest) = packed.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let origin = if length & SALVAGED == 0 { Origin::Row } else { Origin::Salvaged };
    let (row, bytes) = rest.split_at_checked(usize::try_from(length & !SALVAGED).ok()?)?;
    Some((origin, row, bytes))
}
