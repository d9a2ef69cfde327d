//! Plans the rows of a commit, and collects the records of a load.

use std::collections::BTreeMap;

use super::batch::{Batch, Counter};
use super::quarantine::{Origin, keep_aside, pack, unpack};
use super::{
    Change, Defect, Loaded, MAX_ASIDE, MAX_ASIDE_BYTES, MAX_BYTES, MAX_PAYLOAD_BYTES, MAX_RECORDS, Place,
    QuarantineId, Quarantined, RecordKey, StoreError, envelope,
};

/// The number and size of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Total {
    /// Counts the change of a row from `old` to `new` bytes; `None` if the row does not exist.
    pub(super) fn change(&mut self, old: Option<usize>, new: Option<usize>) {
        let bytes = |row: Option<usize>| row.unwrap_or_default() as u64;
        self.rows = (self.rows + u64::from(new.is_some())).saturating_sub(u64::from(old.is_some()));
        self.bytes = (self.bytes + bytes(new)).saturating_sub(bytes(old));
    }

    /// Rejects a record if the total exceeds the limits of rows and bytes.
    pub(super) fn check(self, key: &RecordKey, bounds: [(&'static str, u64); 2]) -> Result<(), StoreError> {
        let mut found = [self.rows, self.bytes].into_iter().zip(bounds);
        match found.find(|(found, (_, most))| found > most) {
            Some((found, (what, most))) => Err(limit_exceeded(key, what, found, most)),
            None => Ok(()),
        }
    }
}

pub(super) const RECORDS: &str = "records";
pub(super) const BYTES: &str = "bytes of records";
const ASIDE: &str = "quarantined records aside";

fn limit_exceeded(key: &RecordKey, what: &'static str, found: u64, most: u64) -> StoreError {
    StoreError::LimitExceeded { key: key.clone(), what, found, most }
}

/// The totals of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: Total,
    pub(super) aside: Total,
}

/// The planned content of a row.
enum Target<'c> {
    Unchanged(Vec<u8>),
    Written(&'c [u8]),
    Absent,
}

struct Slot<'c> {
    /// The present size of the row in bytes; `None` if it does not exist.
    old: Option<usize>,
    target: Target<'c>,
    /// The index of the last change.
    change: usize,
}

impl Slot<'_> {
    /// The size of the row in bytes after the commit; `None` if it will not exist.
    fn bytes_after(&self, key: &RecordKey) -> Option<usize> {
        match &self.target {
            Target::Unchanged(bytes) => Some(bytes.len()),
            Target::Written(payload) => Some(envelope::HEADER_BYTES + key.as_row().len() + payload.len()),
            Target::Absent => None,
        }
    }
}

/// The writes of a group of changes.
pub(super) struct Plan<'c> {
    sequence: u64,
    slots: BTreeMap<&'c RecordKey, Slot<'c>>,
    /// The packed rows to be moved aside, with their keys.
    aside: Vec<(&'c RecordKey, Vec<u8>)>,
}

impl<'c> Plan<'c> {
    /// Checks the changes against the limits and plans the writes. Writes nothing.
    pub(super) fn new(rows: &mut Batch<'_>, changes: &'c [Change]) -> Result<Self, StoreError> {
        let sequence = rows.counter(Counter::Sequence)?.saturating_add(1);
        let mut plan = Self { sequence, slots: BTreeMap::new(), aside: Vec::new() };
        for (number, change) in changes.iter().enumerate() {
            plan.add(rows, number, change)?;
        }
        plan.check(rows.totals())?;
        Ok(plan)
    }

    fn add(&mut self, rows: &mut Batch<'_>, number: usize, change: &'c Change) -> Result<(), StoreError> {
        let key = change.key();
        let row = key.as_row();
        if !self.slots.contains_key(key) {
            let bytes = rows.record(row)?;
            let old = bytes.as_ref().map(Vec::len);
            let target = match bytes {
                Some(bytes) if envelope::open(row, &bytes).is_err() => {
                    self.aside.push((key, pack(Origin::Row, row, &bytes)));
                    Target::Absent
                }
                Some(bytes) => Target::Unchanged(bytes),
                None => Target::Absent,
            };
            self.slots.insert(key, Slot { old, target, change: number });
        }
        let Some(slot) = self.slots.get_mut(key) else { return Ok(()) };
        slot.change = number;
        slot.target = match change {
            Change::Put(_, payload) if payload.len() > MAX_PAYLOAD_BYTES => {
                return Err(limit_exceeded(
                    key,
                    "bytes of its payload",
                    payload.len() as u64,
                    MAX_PAYLOAD_BYTES as u64,
                ));
            }
            Change::Put(_, payload) => Target::Written(payload),
            Change::Remove(_) => Target::Absent,
            Change::Quarantine(_) => {
                match &slot.target {
                    Target::Unchanged(bytes) => self.aside.push((key, pack(Origin::Row, row, bytes))),
                    Target::Written(payload) => {
                        let sealed = envelope::seal(key, self.sequence, payload);
                        self.aside.push((key, pack(Origin::Row, row, &sealed)));
                    }
                    Target::Absent => {}
                }
                Target::Absent
            }
        };
        Ok(())
    }

    /// Checks the limits. A commit that does not grow the store is allowed, even beyond them.
    fn check(&self, before: Totals) -> Result<(), StoreError> {
        let mut after = before;
        self.slots.iter().for_each(|(key, slot)| after.records.change(slot.old, slot.bytes_after(key)));
        let (found, old) = (after.records, before.records);
        if found.rows > old.rows
            && found.rows > MAX_RECORDS
            && let Some(key) = self.last_changed(|old, new| old.is_none() && new.is_some())
        {
            return Err(limit_exceeded(key, RECORDS, found.rows, MAX_RECORDS));
        }
        if found.bytes > old.bytes
            && found.bytes > MAX_BYTES
            && let Some(key) = self.last_changed(|old, new| new > old)
        {
            return Err(limit_exceeded(key, BYTES, found.bytes, MAX_BYTES));
        }
        for (key, packed) in &self.aside {
            after.aside.change(None, Some(packed.len()));
            after
                .aside
                .check(key, [(ASIDE, MAX_ASIDE), ("bytes of quarantined records aside", MAX_ASIDE_BYTES)])?;
        }
        Ok(())
    }

    /// Returns the key that was changed last, among those whose old and new sizes match a predicate.
    fn last_changed(&self, matches: impl Fn(Option<usize>, Option<usize>) -> bool) -> Option<&RecordKey> {
        let matching = self.slots.iter().filter(|(key, slot)| matches(slot.old, slot.bytes_after(key)));
        matching.max_by_key(|(_, slot)| slot.change).map(|(key, _)| *key)
    }

    /// Whether nothing would be written.
    pub(super) fn is_empty(&self) -> bool {
        let unchanged = |slot: &Slot<'_>| match slot.target {
            Target::Unchanged(_) => true,
            Target::Written(_) => false,
            Target::Absent => slot.old.is_none(),
        };
        self.aside.is_empty() && self.slots.values().all(unchanged)
    }

    /// Stages the writes.
    pub(super) fn stage(&self, rows: &mut Batch<'_>) -> Result<(), StoreError> {
        rows.increment(Counter::Sequence)?;
        for (_, packed) in &self.aside {
            keep_aside(rows, packed)?;
        }
        for (key, slot) in &self.slots {
            match slot.target {
                Target::Unchanged(_) => {}
                Target::Written(payload) => {
                    let sealed = envelope::seal(key, self.sequence, payload);
                    rows.set_record(key.as_row(), slot.old, Some(sealed));
                }
                Target::Absent if slot.old.is_some() => rows.set_record(key.as_row(), slot.old, None),
                Target::Absent => {}
            }
        }
        Ok(())
    }
}

/// Collects the rows during a load.
#[derive(Default)]
pub(super) struct Loading {
    loaded: Loaded,
    totals: Totals,
}

impl Loading {
    /// Adds a record's row.
    pub(super) fn add_record(&mut self, row: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let total = &mut self.totals.records;
        total.change(None, Some(bytes.len()));
        check_loadable(RECORDS, total.rows, MAX_RECORDS)?;
        check_loadable(BYTES, total.bytes, MAX_BYTES)?;
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
        check_loadable(ASIDE, total.rows, MAX_ASIDE)?;
        let (key, reason, bytes) = match unpack(packed) {
            None => (None, Defect::NotARecord, packed.len()),
            Some((origin, row, bytes)) => {
                let reason = match (envelope::open(row, bytes), origin) {
                    (Err(defect), _) => defect,
                    (Ok(_), Origin::Row) => Defect::QuarantinedByOwner,
                    (Ok(_), Origin::Salvaged) => Defect::Salvaged,
                };
                (RecordKey::from_row(row).ok(), reason, bytes.len())
            }
        };
        let id = QuarantineId(Place::Aside(number));
        self.loaded.quarantined.push(Quarantined { id, key, reason, bytes });
        Ok(())
    }

    /// Returns the loaded records, in order, and the totals of their rows.
    pub(super) fn finish(mut self) -> (Loaded, Totals) {
        self.loaded.records.sort_by(|one, other| one.0.cmp(&other.0));
        self.loaded.quarantined.sort_by(|one, other| one.id.cmp(&other.id));
        (self.loaded, self.totals)
    }
}

fn check_loadable(what: &'static str, found: u64, bound: u64) -> Result<(), StoreError> {
    if found > bound { Err(StoreError::TooLarge { what, found, bound }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryDisk;
    use crate::store::{RecordKind, Store};

    fn key(number: u64) -> RecordKey {
        RecordKey::new(RecordKind(0), number.to_be_bytes()).unwrap()
    }

    fn puts(from: u64, to: u64) -> Vec<Change> {
        (from..to).map(|number| Change::Put(key(number), Vec::new())).collect()
    }

    #[test]
    fn full_store_rejects_new_records_and_updates_existing_ones() {
        let mut store = MemoryDisk::default().open();
        match store.commit(&puts(0, MAX_RECORDS + 1)) {
            Err(StoreError::LimitExceeded { key: named, what: RECORDS, found, .. }) => {
                assert_eq!((named, found), (key(MAX_RECORDS), MAX_RECORDS + 1));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(store.load().unwrap(), Loaded::default());
        store.commit(&puts(0, MAX_RECORDS)).unwrap();
        store.commit(&puts(5, 10)).unwrap();
        assert!(matches!(
            store.commit(&puts(MAX_RECORDS, MAX_RECORDS + 1)),
            Err(StoreError::LimitExceeded { what: RECORDS, .. })
        ));
        store.commit(&[Change::Put(key(MAX_RECORDS), Vec::new()), Change::Remove(key(0))]).unwrap();
        assert_eq!(store.load().unwrap().records.len() as u64, MAX_RECORDS);
    }

    #[test]
    fn full_quarantine_rejects_more_until_one_is_discarded() {
        let mut store = MemoryDisk::default().open();
        store.commit(&puts(0, MAX_ASIDE + 1)).unwrap();
        let aside = |from, to| (from..to).map(|number| Change::Quarantine(key(number))).collect::<Vec<_>>();
        match store.commit(&aside(0, MAX_ASIDE + 1)) {
            Err(StoreError::LimitExceeded { key: named, what: ASIDE, found, .. }) => {
                assert_eq!((named, found), (key(MAX_ASIDE), MAX_ASIDE + 1));
            }
            other => panic!("{other:?}"),
        }
        store.commit(&aside(0, MAX_ASIDE)).unwrap();
        assert!(matches!(
            store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)),
            Err(StoreError::LimitExceeded { what: ASIDE, .. })
        ));
        store.commit(&puts(0, 2)).unwrap();
        let quarantined = store.load().unwrap().quarantined;
        store.discard(&quarantined[0].id).unwrap();
        store.commit(&aside(MAX_ASIDE, MAX_ASIDE + 1)).unwrap();
    }

    /// Commits the group without the rejected records, as callers should do.
    fn commit_allowed(store: &mut Store, mut group: Vec<Change>) -> Vec<RecordKey> {
        let mut rejected = Vec::new();
        while let Err(error) = store.commit(&group) {
            assert!(!error.is_stopped(), "{error}");
            let key = error.rejected_record().unwrap_or_else(|| panic!("{error}")).clone();
            assert!(error.to_string().contains(&key.to_string()), "{error}");
            group.retain(|change| *change.key() != key);
            rejected.push(key);
        }
        rejected
    }

    #[test]
    fn commit_succeeds_without_the_rejected_records() {
        let disk = MemoryDisk::default();
        let mut store = disk.open();
        store.commit(&puts(1, MAX_RECORDS)).unwrap();
        let too_large = Change::Put(key(3), vec![0; MAX_PAYLOAD_BYTES + 1]);
        let group =
            [puts(MAX_RECORDS, MAX_RECORDS + 3), vec![too_large, Change::Put(key(1), b"new".to_vec())]];
        let rejected = commit_allowed(&mut store, group.concat());
        assert_eq!(rejected, [key(3), key(MAX_RECORDS + 2), key(MAX_RECORDS + 1)]);
        let records = store.load().unwrap().records;
        assert_eq!((records.len() as u64, &records[0]), (MAX_RECORDS, &(key(1), b"new".to_vec())));

        let aside = (1..MAX_ASIDE).map(|number| Change::Quarantine(key(number))).collect::<Vec<_>>();
        store.commit(&aside).unwrap();
        let row = key(MAX_ASIDE + 1);
        disk.overwrite(row.as_row(), b"damaged");
        let group = vec![
            Change::Quarantine(key(MAX_ASIDE)),
            Change::Put(row.clone(), Vec::new()),
            puts(1, 2).remove(0),
        ];
        assert_eq!(commit_allowed(&mut store, group), [row]);
    }

    #[test]
    fn total_bytes_are_bounded_for_growing_commits() {
        let disk = MemoryDisk::default();
        let mut store = disk.open();
        disk.overwrite(key(0).as_row(), &vec![0; usize::try_from(MAX_BYTES).unwrap() - 200]);
        let group = vec![Change::Put(key(1), vec![1; 100]), Change::Put(key(2), vec![2; 100])];
        assert_eq!(commit_allowed(&mut store, group), [key(2)]);
        store.commit(&[Change::Put(key(1), vec![3; 100])]).unwrap();
        store.commit(&[Change::Put(key(1), vec![3; 90])]).unwrap();
        match store.commit(&[Change::Put(key(1), vec![3; 180])]) {
            Err(StoreError::LimitExceeded { key: named, what: BYTES, found, .. }) => {
                assert_eq!((named, found), (key(1), MAX_BYTES - 200 + 24 + 9 + 180));
            }
            other => panic!("{other:?}"),
        }
        store.load().unwrap();

        // A release is bounded too.
        store.commit(&[Change::Quarantine(key(1)), Change::Put(key(2), vec![2; 100])]).unwrap();
        let id = store.load().unwrap().quarantined.pop().unwrap().id;
        let error = store.release(&id).unwrap_err();
        assert!(
            matches!(error, StoreError::LimitExceeded { what: BYTES, .. })
                && error.rejected_record() == Some(&key(1)),
            "{error}"
        );
        store.discard(&id).unwrap();
        store.load().unwrap();

        // The bytes aside are bounded too.
        store.commit(&[Change::Quarantine(key(0))]).unwrap();
        disk.overwrite(key(0).as_row(), &[0; 200]);
        let group = vec![Change::Put(key(0), Vec::new()), Change::Put(key(4), Vec::new())];
        assert_eq!(commit_allowed(&mut store, group), [key(0)]);
        assert_eq!(store.load().unwrap().records.len(), 2);
    }

    #[test]
    fn load_over_the_limits_reports_what_is_too_large() {
        let too_large = |store: &mut Store, expected: &str| match store.load() {
            Err(StoreError::TooLarge { what, found, bound }) => {
                assert_eq!((what, found), (expected, bound + 1));
            }
            other => panic!("{other:?}"),
        };
        let disk = MemoryDisk::default();
        disk.overwrite(key(0).as_row(), &vec![0; usize::try_from(MAX_BYTES).unwrap()]);
        disk.overwrite(key(1).as_row(), &[0]);
        too_large(&mut disk.open(), "bytes of records");
        let disk = MemoryDisk::default();
        (0..=MAX_RECORDS).for_each(|number| disk.overwrite(key(number).as_row(), b""));
        too_large(&mut disk.open(), "records");
    }
}
