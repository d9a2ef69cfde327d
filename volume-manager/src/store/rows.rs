//! What changes do to the rows of a store: the same for every implementation that keeps rows.

use std::collections::BTreeMap;

use super::{
    Change, Defect, Loaded, MAX_ASIDE, MAX_PAYLOAD_BYTES, MAX_RECORDS, Place, QuarantineId, Quarantined,
    RecordKey, StoreError, envelope,
};

/// Numbers that a store remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// The last commit's number.
    Sequence,
    /// The last number under which bytes were moved aside.
    Aside,
}

/// Rows of records in their envelopes, by key; rows that were moved aside, by number; and counters, zero at first.
pub(super) trait Rows {
    fn record(&self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    fn put_record(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), StoreError>;
    fn remove_record(&mut self, row: &[u8]) -> Result<(), StoreError>;
    fn records(&self) -> Result<u64, StoreError>;
    fn aside(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError>;
    fn put_aside(&mut self, number: u64, bytes: &[u8]) -> Result<(), StoreError>;
    fn remove_aside(&mut self, number: u64) -> Result<(), StoreError>;
    fn asides(&self) -> Result<u64, StoreError>;
    fn counter(&self, counter: Counter) -> Result<u64, StoreError>;
    fn set_counter(&mut self, counter: Counter, number: u64) -> Result<(), StoreError>;
}

/// What a row will be.
enum Fate<'c> {
    /// As it is.
    Kept(Vec<u8>),
    Written(&'c [u8]),
    Gone,
}

struct Slot<'c> {
    existed: bool,
    fate: Fate<'c>,
}

/// The writes that a group of changes comes to.
pub(super) struct Plan<'c> {
    sequence: u64,
    slots: BTreeMap<&'c RecordKey, Slot<'c>>,
    /// Rows to be moved aside, packed.
    aside: Vec<Vec<u8>>,
}

impl<'c> Plan<'c> {
    /// Checks the changes against the bounds and works out what to write. Writes nothing.
    pub(super) fn new(rows: &impl Rows, changes: &'c [Change]) -> Result<Self, StoreError> {
        let sequence = rows.counter(Counter::Sequence)?.saturating_add(1);
        let mut plan = Self { sequence, slots: BTreeMap::new(), aside: Vec::new() };
        for change in changes {
            plan.add(rows, change)?;
        }
        let (mut made, mut gone) = (0u64, 0u64);
        for slot in plan.slots.values() {
            match (&slot.fate, slot.existed) {
                (Fate::Written(_), false) => made += 1,
                (Fate::Gone, true) => gone += 1,
                _ => {}
            }
        }
        let found = rows.records()?.saturating_add(made).saturating_sub(gone);
        if made > gone && found > MAX_RECORDS {
            return Err(StoreError::TooManyRecords { found });
        }
        let found = rows.asides()?.saturating_add(plan.aside.len() as u64);
        if !plan.aside.is_empty() && found > MAX_ASIDE {
            return Err(StoreError::TooManyAside { found });
        }
        Ok(plan)
    }

    fn add(&mut self, rows: &impl Rows, change: &'c Change) -> Result<(), StoreError> {
        let key = change.key();
        let row = key.as_row();
        if !self.slots.contains_key(key) {
            let old = rows.record(row)?;
            let existed = old.is_some();
            let fate = match old {
                Some(bytes) if envelope::open(row, &bytes).is_err() => {
                    self.aside.push(pack(row, &bytes));
                    Fate::Gone
                }
                Some(bytes) => Fate::Kept(bytes),
                None => Fate::Gone,
            };
            self.slots.insert(key, Slot { existed, fate });
        }
        let Some(slot) = self.slots.get_mut(key) else { return Ok(()) };
        slot.fate = match change {
            Change::Put(_, payload) if payload.len() > MAX_PAYLOAD_BYTES => {
                return Err(StoreError::PayloadTooLarge { key: key.clone(), found: payload.len() });
            }
            Change::Put(_, payload) => Fate::Written(payload),
            Change::Remove(_) => Fate::Gone,
            Change::SetAside(_) => {
                match &slot.fate {
                    Fate::Kept(bytes) => self.aside.push(pack(row, bytes)),
                    Fate::Written(payload) => {
                        self.aside.push(pack(row, &envelope::seal(key, self.sequence, payload)));
                    }
                    Fate::Gone => {}
                }
                Fate::Gone
            }
        };
        Ok(())
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        let unchanged = |slot: &Slot<'_>| match slot.fate {
            Fate::Kept(_) => true,
            Fate::Written(_) => false,
            Fate::Gone => !slot.existed,
        };
        self.aside.is_empty() && self.slots.values().all(unchanged)
    }

    /// Writes what is to be written.
    pub(super) fn write(&self, rows: &mut impl Rows) -> Result<(), StoreError> {
        rows.set_counter(Counter::Sequence, self.sequence)?;
        for packed in &self.aside {
            let number = rows.counter(Counter::Aside)?.saturating_add(1);
            rows.set_counter(Counter::Aside, number)?;
            rows.put_aside(number, packed)?;
        }
        for (key, slot) in &self.slots {
            match slot.fate {
                Fate::Kept(_) => {}
                Fate::Written(payload) => {
                    rows.put_record(key.as_row(), &envelope::seal(key, self.sequence, payload))?;
                }
                Fate::Gone if slot.existed => rows.remove_record(key.as_row())?,
                Fate::Gone => {}
            }
        }
        Ok(())
    }
}

/// The bytes of a quarantined record.
pub(super) fn quarantined(rows: &impl Rows, id: &QuarantineId) -> Result<Vec<u8>, StoreError> {
    let none = || StoreError::NotQuarantined { id: id.clone() };
    match &id.0 {
        Place::Row(row) => {
            let bytes = rows.record(row)?.ok_or_else(none)?;
            if envelope::open(row, &bytes).is_ok() { Err(none()) } else { Ok(bytes) }
        }
        Place::Aside(number) => {
            let packed = rows.aside(*number)?.ok_or_else(none)?;
            Ok(unpack(&packed).map_or(&packed[..], |(_, bytes)| bytes).to_vec())
        }
    }
}

/// Makes a quarantined record a live one.
pub(super) fn release(rows: &mut impl Rows, id: &QuarantineId) -> Result<(), StoreError> {
    let unreadable = |reason| StoreError::NotReadable { id: id.clone(), reason };
    match &id.0 {
        Place::Row(row) => {
            let bytes = quarantined(rows, id)?;
            // What can be read by now, say by a newer version, is no longer in quarantine.
            envelope::open(row, &bytes).map(|_| ()).map_err(unreadable)
        }
        Place::Aside(number) => {
            let packed = rows.aside(*number)?.ok_or_else(|| StoreError::NotQuarantined { id: id.clone() })?;
            let (row, bytes) = unpack(&packed).ok_or_else(|| unreadable(Defect::NoRecord))?;
            let opened = envelope::open(row, bytes).map_err(unreadable)?;
            if rows.record(row)?.is_some() {
                return Err(StoreError::Occupied { id: id.clone(), key: opened.key });
            }
            let sequence = rows.counter(Counter::Sequence)?.saturating_add(1);
            rows.set_counter(Counter::Sequence, sequence)?;
            rows.put_record(row, &envelope::seal(&opened.key, sequence, opened.payload))?;
            rows.remove_aside(*number)
        }
    }
}

/// Deletes a quarantined record.
pub(super) fn discard(rows: &mut impl Rows, id: &QuarantineId) -> Result<(), StoreError> {
    quarantined(rows, id)?;
    match &id.0 {
        Place::Row(row) => rows.remove_record(row),
        Place::Aside(number) => rows.remove_aside(*number),
    }
}

impl Loaded {
    /// Adds a row of the records.
    pub(super) fn add_record(&mut self, row: &[u8], bytes: &[u8]) {
        match envelope::open(row, bytes) {
            Ok(opened) => self.records.push((opened.key, opened.payload.to_vec())),
            Err(reason) => self.quarantined.push(Quarantined {
                id: QuarantineId(Place::Row(row.into())),
                key: RecordKey::from_row(row).ok(),
                reason,
                bytes: bytes.len(),
            }),
        }
    }

    /// Adds a row that was moved aside.
    pub(super) fn add_aside(&mut self, number: u64, packed: &[u8]) {
        let (key, reason, bytes) = match unpack(packed) {
            None => (None, Defect::NoRecord, packed.len()),
            Some((row, bytes)) => {
                let reason = envelope::open(row, bytes).err().unwrap_or(Defect::SetAside);
                (RecordKey::from_row(row).ok(), reason, bytes.len())
            }
        };
        self.quarantined.push(Quarantined { id: QuarantineId(Place::Aside(number)), key, reason, bytes });
    }
}

/// A row's key and bytes as one: the key's length (4 bytes, little-endian), the key, the bytes.
fn pack(row: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(row.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], row, bytes].concat()
}

fn unpack(packed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = packed.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::store::{RecordKind, Store};

    fn key(number: u64) -> RecordKey {
        RecordKey::new(RecordKind(0), number.to_be_bytes()).unwrap()
    }

    fn puts(from: u64, to: u64) -> Vec<Change> {
        (from..to).map(|number| Change::Put(key(number), Vec::new())).collect()
    }

    #[test]
    fn a_store_that_is_full_takes_no_new_record_but_goes_on_with_those_that_it_has() {
        let mut store = MemoryStore::default();
        match store.commit(&puts(0, MAX_RECORDS + 1)) {
            Err(StoreError::TooManyRecords { found }) => assert_eq!(found, MAX_RECORDS + 1),
            other => panic!("{other:?}"),
        }
        assert_eq!(store.load().unwrap(), Loaded::default());
        store.commit(&puts(0, MAX_RECORDS)).unwrap();
        store.commit(&puts(5, 10)).unwrap();
        assert!(matches!(
            store.commit(&puts(MAX_RECORDS, MAX_RECORDS + 1)),
            Err(StoreError::TooManyRecords { .. })
        ));
        store.commit(&[Change::Put(key(MAX_RECORDS), Vec::new()), Change::Remove(key(0))]).unwrap();
        assert_eq!(store.load().unwrap().records.len() as u64, MAX_RECORDS);
    }

    #[test]
    fn a_quarantine_that_is_full_takes_nothing_more_aside_until_something_is_discarded() {
        let mut store = MemoryStore::default();
        store.commit(&puts(0, MAX_ASIDE + 1)).unwrap();
        let aside = |from, to| (from..to).map(|number| Change::SetAside(key(number))).collect::<Vec<_>>();
        match store.commit(&aside(0, MAX_ASIDE + 1)) {
            Err(StoreError::TooManyAside { found }) => assert_eq!(found, MAX_ASIDE + 1),
            other => panic!("{other:?}"),
        }
        store.commit(&aside(0, MAX_ASIDE)).unwrap();
        assert!(matches!(
            store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)),
            Err(StoreError::TooManyAside { .. })
        ));
        store.commit(&puts(0, 2)).unwrap();
        let quarantined = store.load().unwrap().quarantined;
        store.discard(&quarantined[0].id).unwrap();
        store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)).unwrap();
    }
}
