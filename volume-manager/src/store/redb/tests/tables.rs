//! Several tables in one file, with disk failures and power cuts.

use fastrand::Rng;

use super::super::tables::{Layout, Table};
use super::disk::Disk;
use crate::store::{Change, OpenStoreError, RecordKey, RecordKind, Store, StoreError};

const FIRST: Table = Table::new("first", RecordKind(1));
const SECOND: Table = Table::new("second", RecordKind(2));

fn open(disk: &Disk) -> Result<[Store; 2], OpenStoreError> {
    let stores =
        disk.open_tables(Layout { tables: vec![FIRST, SECOND], replace_unusable: true, exclusive: false })?;
    Ok(stores.try_into().unwrap())
}

fn put(table: Table, payload: &[u8]) -> Change {
    Change::Put(RecordKey::new(table.kind, "name").unwrap(), payload.to_vec())
}

fn payload(store: &mut Store) -> Vec<u8> {
    store.load().unwrap().records.pop().map(|(_, payload)| payload).unwrap_or_default()
}

/// The disk fails at each write of a commit to one table: the commits of the other survive, and both continue.
#[test]
fn disk_failure_stops_both_tables_until_reopened() {
    for at in 0.. {
        let disk = Disk::default();
        let [mut first, mut second] = open(&disk).unwrap();
        first.commit(&[put(FIRST, b"old")]).unwrap();
        second.commit(&[put(SECOND, b"kept")]).unwrap();
        disk.fail(disk.operations() + at, 28);
        if first.commit(&[put(FIRST, &[1; 9000])]).is_ok() {
            assert!(at > 4, "two syncs and some writes, not {at}");
            return;
        }
        disk.heal();
        let stopped = second.commit(&[put(SECOND, b"new")]).unwrap_err();
        assert!(matches!(stopped, StoreError::Stopped { .. }), "{at}: {stopped}");
        first.reopen().unwrap();
        assert!(second.load().is_err(), "{at}: its state may be stale");
        let operations = disk.operations();
        second.reopen().unwrap();
        assert_eq!(disk.operations(), operations, "{at}: the file is already open");
        assert_eq!(payload(&mut second), b"kept", "{at}");
        let found = payload(&mut first);
        assert!(found == b"old" || found == [1; 9000], "{at}: {found:?}");
        second.commit(&[put(SECOND, b"new")]).unwrap();
        first.commit(&[put(FIRST, b"new")]).unwrap();
    }
}

/// A power cut at each write of alternating commits to both tables.
#[test]
fn power_cut_keeps_acknowledged_commits_of_each_table() {
    for at in 0.. {
        let disk = Disk::default();
        let [mut first, mut second] = open(&disk).unwrap();
        disk.cut_after(at);
        let mut acknowledged = [0u8; 2];
        let mut perhaps = [0u8; 2];
        for number in 1..=3 {
            perhaps[0] = number;
            if first.commit(&[put(FIRST, &[number])]).is_err() {
                break;
            }
            acknowledged[0] = number;
            perhaps[1] = number;
            if second.commit(&[put(SECOND, &[number])]).is_err() {
                break;
            }
            acknowledged[1] = number;
        }
        drop((first, second));
        if !disk.is_off() {
            assert!(at > 12, "six commits of two syncs, not {at}");
            return;
        }
        for seed in 0..4 {
            disk.cut(&mut Rng::with_seed(at * 4 + seed));
        }
        let [mut first, mut second] = open(&disk).unwrap();
        for (table, store) in [&mut first, &mut second].into_iter().enumerate() {
            let found = payload(store).first().copied().unwrap_or_default();
            let range = acknowledged[table]..=perhaps[table];
            assert!(range.contains(&found), "{at}: table {table} has {found} and not one of {range:?}");
        }
    }
}
