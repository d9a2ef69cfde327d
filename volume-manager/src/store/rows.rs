//! What changes do to the rows of a store: the same for every implementation that keeps rows.

use std::collections::BTreeMap;

use super::quarantine::{Origin, keep_aside, pack, unpack};
use super::{
    Change, Defect, Loaded, MAX_ASIDE, MAX_ASIDE_BYTES, MAX_BYTES, MAX_PAYLOAD_BYTES, MAX_RECORDS, Place,
    QuarantineId, Quarantined, RecordKey, StoreError, envelope,
};

/// How much a table holds: its rows, and the bytes of what is in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Total {
    /// Counts a row that had so many bytes and has so many now, or was or is not there.
    pub(super) fn change(&mut self, old: Option<usize>, new: Option<usize>) {
        let bytes = |row: Option<usize>| row.unwrap_or_default() as u64;
        self.rows = (self.rows + u64::from(new.is_some())).saturating_sub(u64::from(old.is_some()));
        self.bytes = (self.bytes + bytes(new)).saturating_sub(bytes(old));
    }

    /// Refuses a record with which there are too many rows, or too many bytes.
    pub(super) fn check(self, key: &RecordKey, bounds: [(&'static str, u64); 2]) -> Result<(), StoreError> {
        let mut found = [self.rows, self.bytes].into_iter().zip(bounds);
        match found.find(|(found, (_, most))| found > most) {
            Some((found, (what, most))) => Err(refused(key, what, found, most)),
            None => Ok(()),
        }
    }
}

pub(super) const RECORDS: &str = "records";
pub(super) const BYTES: &str = "bytes of records";
const ASIDE: &str = "quarantined records aside";

fn refused(key: &RecordKey, what: &'static str, found: u64, most: u64) -> StoreError {
    StoreError::Refused { key: key.clone(), what, found, most }
}

/// How much a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: Total,
    pub(super) aside: Total,
}

/// Numbers that a store remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counter {
    /// The last commit's number.
    Sequence,
    /// The last number under which bytes were moved aside.
    Aside,
}

/// Rows of records in their envelopes, by key; rows that were moved aside, by number; and counters, zero at first. A row that is
/// set to `None` is gone.
pub(super) trait Rows {
    fn record(&self, row: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    fn set_record(&mut self, row: &[u8], bytes: Option<&[u8]>) -> Result<(), StoreError>;
    fn aside(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError>;
    fn set_aside(&mut self, number: u64, bytes: Option<&[u8]>) -> Result<(), StoreError>;
    fn counter(&self, counter: Counter) -> Result<u64, StoreError>;
    fn set_counter(&mut self, counter: Counter, number: u64) -> Result<(), StoreError>;
    fn totals(&self) -> Totals;
}

/// What a row will be.
enum Fate<'c> {
    /// As it is.
    Kept(Vec<u8>),
    Written(&'c [u8]),
    Gone,
}

struct Slot<'c> {
    /// How many bytes the row has, if it is there.
    old: Option<usize>,
    fate: Fate<'c>,
    /// The number of the last change.
    change: usize,
}

impl Slot<'_> {
    /// How many bytes the row will have, if it will be there.
    fn bytes_after(&self, key: &RecordKey) -> Option<usize> {
        match &self.fate {
            Fate::Kept(bytes) => Some(bytes.len()),
            Fate::Written(payload) => Some(envelope::HEADER_BYTES + key.as_row().len() + payload.len()),
            Fate::Gone => None,
        }
    }
}

/// The writes that a group of changes comes to.
pub(super) struct Plan<'c> {
    sequence: u64,
    slots: BTreeMap<&'c RecordKey, Slot<'c>>,
    /// Rows to be moved aside, packed, with their keys.
    aside: Vec<(&'c RecordKey, Vec<u8>)>,
}

impl<'c> Plan<'c> {
    /// Checks the changes against the bounds and works out what to write. Writes nothing.
    pub(super) fn new(rows: &impl Rows, changes: &'c [Change]) -> Result<Self, StoreError> {
        let sequence = rows.counter(Counter::Sequence)?.saturating_add(1);
        let mut plan = Self { sequence, slots: BTreeMap::new(), aside: Vec::new() };
        for (number, change) in changes.iter().enumerate() {
            plan.add(rows, number, change)?;
        }
        plan.check(rows.totals())?;
        Ok(plan)
    }

    fn add(&mut self, rows: &impl Rows, number: usize, change: &'c Change) -> Result<(), StoreError> {
        let key = change.key();
        let row = key.as_row();
        if !self.slots.contains_key(key) {
            let bytes = rows.record(row)?;
            let old = bytes.as_ref().map(Vec::len);
            let fate = match bytes {
                Some(bytes) if envelope::open(row, &bytes).is_err() => {
                    self.aside.push((key, pack(Origin::Row, row, &bytes)));
                    Fate::Gone
                }
                Some(bytes) => Fate::Kept(bytes),
                None => Fate::Gone,
            };
            self.slots.insert(key, Slot { old, fate, change: number });
        }
        let Some(slot) = self.slots.get_mut(key) else { return Ok(()) };
        slot.change = number;
        slot.fate = match change {
            Change::Put(_, payload) if payload.len() > MAX_PAYLOAD_BYTES => {
                return Err(refused(
                    key,
                    "bytes of its payload",
                    payload.len() as u64,
                    MAX_PAYLOAD_BYTES as u64,
                ));
            }
            Change::Put(_, payload) => Fate::Written(payload),
            Change::Remove(_) => Fate::Gone,
            Change::SetAside(_) => {
                match &slot.fate {
                    Fate::Kept(bytes) => self.aside.push((key, pack(Origin::Row, row, bytes))),
                    Fate::Written(payload) => {
                        let sealed = envelope::seal(key, self.sequence, payload);
                        self.aside.push((key, pack(Origin::Row, row, &sealed)));
                    }
                    Fate::Gone => {}
                }
                Fate::Gone
            }
        };
        Ok(())
    }

    /// Whether the bounds allow it. What does not grow is allowed, even beyond them.
    fn check(&self, before: Totals) -> Result<(), StoreError> {
        let mut after = before;
        self.slots.iter().for_each(|(key, slot)| after.records.change(slot.old, slot.bytes_after(key)));
        let (found, held) = (after.records, before.records);
        if found.rows > held.rows
            && found.rows > MAX_RECORDS
            && let Some(key) = self.last(|old, new| old.is_none() && new.is_some())
        {
            return Err(refused(key, RECORDS, found.rows, MAX_RECORDS));
        }
        if found.bytes > held.bytes
            && found.bytes > MAX_BYTES
            && let Some(key) = self.last(|old, new| new > old)
        {
            return Err(refused(key, BYTES, found.bytes, MAX_BYTES));
        }
        for (key, packed) in &self.aside {
            after.aside.change(None, Some(packed.len()));
            after
                .aside
                .check(key, [(ASIDE, MAX_ASIDE), ("bytes of quarantined records aside", MAX_ASIDE_BYTES)])?;
        }
        Ok(())
    }

    /// The key that was changed last, of those whose rows' bytes are so before and after.
    fn last(&self, is_so: impl Fn(Option<usize>, Option<usize>) -> bool) -> Option<&RecordKey> {
        let those = self.slots.iter().filter(|(key, slot)| is_so(slot.old, slot.bytes_after(key)));
        those.max_by_key(|(_, slot)| slot.change).map(|(key, _)| *key)
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        let unchanged = |slot: &Slot<'_>| match slot.fate {
            Fate::Kept(_) => true,
            Fate::Written(_) => false,
            Fate::Gone => slot.old.is_none(),
        };
        self.aside.is_empty() && self.slots.values().all(unchanged)
    }

    /// Writes what is to be written.
    pub(super) fn write(&self, rows: &mut impl Rows) -> Result<(), StoreError> {
        rows.set_counter(Counter::Sequence, self.sequence)?;
        for (_, packed) in &self.aside {
            keep_aside(rows, packed)?;
        }
        for (key, slot) in &self.slots {
            match slot.fate {
                Fate::Kept(_) => {}
                Fate::Written(payload) => {
                    let sealed = envelope::seal(key, self.sequence, payload);
                    rows.set_record(key.as_row(), Some(&sealed))?;
                }
                Fate::Gone if slot.old.is_some() => rows.set_record(key.as_row(), None)?,
                Fate::Gone => {}
            }
        }
        Ok(())
    }
}

/// What is loaded so far.
#[derive(Default)]
pub(super) struct Loading {
    loaded: Loaded,
    totals: Totals,
}

impl Loading {
    /// Adds a row of the records.
    pub(super) fn add_record(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let total = &mut self.totals.records;
        total.change(None, Some(bytes.len()));
        within(RECORDS, total.rows, MAX_RECORDS)?;
        within(BYTES, total.bytes, MAX_BYTES)?;
        match envelope::open(row, bytes) {
            Ok(opened) => self.loaded.records.push((opened.key, opened.payload.to_vec())),
            Err(reason) => self.loaded.quarantined.push(Quarantined {
                id: QuarantineId(Place::Row(row.into())),
                key: RecordKey::from_row(row).ok(),
                reason,
                bytes: bytes.len(),
            }),
        }
        Ok(())
    }

    /// Adds a row that was moved aside.
    pub(super) fn add_aside(&mut self, number: u64, packed: &[u8]) -> Result<(), StoreError> {
        let total = &mut self.totals.aside;
        total.change(None, Some(packed.len()));
        within(ASIDE, total.rows, MAX_ASIDE)?;
        let (key, reason, bytes) = match unpack(packed) {
            None => (None, Defect::NoRecord, packed.len()),
            Some((origin, row, bytes)) => {
                let reason = match (envelope::open(row, bytes), origin) {
                    (Err(defect), _) => defect,
                    (Ok(_), Origin::Row) => Defect::SetAside,
                    (Ok(_), Origin::Salvaged) => Defect::Salvaged,
                };
                (RecordKey::from_row(row).ok(), reason, bytes.len())
            }
        };
        let id = QuarantineId(Place::Aside(number));
        self.loaded.quarantined.push(Quarantined { id, key, reason, bytes });
        Ok(())
    }

    /// All of it.
    pub(super) fn finish(self) -> Loaded {
        self.loaded
    }
}

fn within(what: &'static str, found: u64, bound: u64) -> Result<(), StoreError> {
    if found > bound { Err(StoreError::TooLarge { what, found, bound }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::{MemoryDisk, MemoryStore};
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
            Err(StoreError::Refused { key: named, what: RECORDS, found, .. }) => {
                assert_eq!((named, found), (key(MAX_RECORDS), MAX_RECORDS + 1));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(store.load().unwrap(), Loaded::default());
        store.commit(&puts(0, MAX_RECORDS)).unwrap();
        store.commit(&puts(5, 10)).unwrap();
        assert!(matches!(
            store.commit(&puts(MAX_RECORDS, MAX_RECORDS + 1)),
            Err(StoreError::Refused { what: RECORDS, .. })
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
            Err(StoreError::Refused { key: named, what: ASIDE, found, .. }) => {
                assert_eq!((named, found), (key(MAX_ASIDE), MAX_ASIDE + 1));
            }
            other => panic!("{other:?}"),
        }
        store.commit(&aside(0, MAX_ASIDE)).unwrap();
        assert!(matches!(
            store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)),
            Err(StoreError::Refused { what: ASIDE, .. })
        ));
        store.commit(&puts(0, 2)).unwrap();
        let quarantined = store.load().unwrap().quarantined;
        store.discard(&quarantined[0].id).unwrap();
        store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)).unwrap();
    }

    /// Commits the group without each record that is refused, as a caller is to do.
    fn commit_what_is_allowed(store: &mut MemoryStore, mut group: Vec<Change>) -> Vec<RecordKey> {
        let mut refused = Vec::new();
        while let Err(error) = store.commit(&group) {
            assert!(!error.is_stopped(), "{error}");
            let key = error.refused().unwrap_or_else(|| panic!("{error}")).clone();
            assert!(error.to_string().contains(&key.to_string()), "{error}");
            group.retain(|change| *change.key() != key);
            refused.push(key);
        }
        refused
    }

    #[test]
    fn each_refusal_names_the_record_without_which_the_others_can_be_committed() {
        let mut store = MemoryStore::default();
        store.commit(&puts(1, MAX_RECORDS)).unwrap();
        let too_large = Change::Put(key(3), vec![0; MAX_PAYLOAD_BYTES + 1]);
        let group =
            [puts(MAX_RECORDS, MAX_RECORDS + 3), vec![too_large, Change::Put(key(1), b"new".to_vec())]];
        let refused = commit_what_is_allowed(&mut store, group.concat());
        assert_eq!(refused, [key(3), key(MAX_RECORDS + 2), key(MAX_RECORDS + 1)]);
        let records = store.load().unwrap().records;
        assert_eq!((records.len() as u64, &records[0]), (MAX_RECORDS, &(key(1), b"new".to_vec())));

        let aside = (1..MAX_ASIDE).map(|number| Change::SetAside(key(number))).collect::<Vec<_>>();
        store.commit(&aside).unwrap();
        let row = key(MAX_ASIDE + 1);
        store.disk().overwrite(row.as_row(), b"damaged");
        let group = vec![
            Change::SetAside(key(MAX_ASIDE)),
            Change::Put(row.clone(), Vec::new()),
            puts(1, 2).remove(0),
        ];
        assert_eq!(commit_what_is_allowed(&mut store, group), [row]);
    }

    #[test]
    fn the_bytes_of_all_records_are_bounded_but_what_does_not_grow_is_allowed() {
        let disk = MemoryDisk::default();
        let mut store = disk.open();
        disk.overwrite(key(0).as_row(), &vec![0; usize::try_from(MAX_BYTES).unwrap() - 200]);
        let group = vec![Change::Put(key(1), vec![1; 100]), Change::Put(key(2), vec![2; 100])];
        assert_eq!(commit_what_is_allowed(&mut store, group), [key(2)]);
        store.commit(&[Change::Put(key(1), vec![3; 100])]).unwrap();
        store.commit(&[Change::Put(key(1), vec![3; 90])]).unwrap();
        match store.commit(&[Change::Put(key(1), vec![3; 180])]) {
            Err(StoreError::Refused { key: named, what: BYTES, found, .. }) => {
                assert_eq!((named, found), (key(1), MAX_BYTES - 200 + 24 + 9 + 180));
            }
            other => panic!("{other:?}"),
        }
        store.load().unwrap();

        // Nor does releasing get past it.
        store.commit(&[Change::SetAside(key(1)), Change::Put(key(2), vec![2; 100])]).unwrap();
        let id = store.load().unwrap().quarantined.pop().unwrap().id;
        let error = store.release(&id).unwrap_err();
        assert!(
            matches!(error, StoreError::Refused { what: BYTES, .. }) && error.refused() == Some(&key(1)),
            "{error}"
        );
        store.discard(&id).unwrap();
        store.load().unwrap();

        // Aside it is as much.
        store.commit(&[Change::SetAside(key(0))]).unwrap();
        disk.overwrite(key(0).as_row(), &[0; 200]);
        let group = vec![Change::Put(key(0), Vec::new()), Change::Put(key(4), Vec::new())];
        assert_eq!(commit_what_is_allowed(&mut store, group), [key(0)]);
        assert_eq!(store.load().unwrap().records.len(), 2);
    }

    #[test]
    fn a_store_beyond_the_bounds_is_not_loaded_and_says_what_is_too_much() {
        let refused = |store: &mut MemoryStore, expected: &str| match store.load() {
            Err(StoreError::TooLarge { what, found, bound }) => {
                assert_eq!((what, found), (expected, bound + 1));
            }
            other => panic!("{other:?}"),
        };
        let disk = MemoryDisk::default();
        disk.overwrite(key(0).as_row(), &vec![0; usize::try_from(MAX_BYTES).unwrap()]);
        disk.overwrite(key(1).as_row(), &[0]);
        refused(&mut disk.open(), "bytes of records");
        let disk = MemoryDisk::default();
        (0..=MAX_RECORDS).for_each(|number| disk.overwrite(key(number).as_row(), b""));
        refused(&mut disk.open(), "records");
    }
}
