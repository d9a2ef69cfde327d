//! Injected errors at each write and sync.

use fastrand::Rng;

use super::disk::Disk;
use crate::store::{Change, DiskErrorKind, RecordKey, RecordKind, StoreError};

const DISK_ERRORS: [(i32, DiskErrorKind); 4] = [
    (28, DiskErrorKind::NoSpace),
    (30, DiskErrorKind::ReadOnly),
    (5, DiskErrorKind::Device),
    (24, DiskErrorKind::TooManyFiles),
];

fn put(name: &str, payload: &[u8]) -> Change {
    Change::Put(RecordKey::new(RecordKind(1), name).unwrap(), payload.to_vec())
}

/// ENOSPC, EROFS, EIO and EMFILE at each write and sync of a commit.
#[test]
fn write_error_stops_the_store_and_commits_stay_atomic() {
    let before = [put("a", b"1"), put("b", &[1; 3000])];
    let group = [put("a", b"2"), put("c", &[2; 30_000])];
    let operations = {
        let disk = Disk::default();
        let mut store = disk.open().unwrap();
        store.commit(&before).unwrap();
        let first = disk.operations();
        store.commit(&group).unwrap();
        disk.operations() - first
    };
    assert!(operations > 4, "two syncs and some writes, not {operations}");
    for (number, kind) in DISK_ERRORS {
        for at in 0..operations {
            let disk = Disk::default();
            let mut store = disk.open().unwrap();
            store.commit(&before).unwrap();
            let old = store.load().unwrap();
            disk.fail(disk.operations() + at, number);
            let error = store.commit(&group).unwrap_err();
            assert!(matches!(&error, StoreError::Disk { .. }), "{at}: {error}");
            assert_eq!(error.disk_error_kind(), Some(kind), "{at}: {error}");

            // The disk works again, but its state is unknown.
            for later in [store.commit(&[]).unwrap_err(), store.load().map(drop).unwrap_err()] {
                assert!(matches!(later, StoreError::Stopped { .. }), "{later}");
                assert_eq!(later.disk_error_kind(), Some(kind));
            }
            store.reopen().unwrap();
            let found = store.load().unwrap();
            let applied = found.records.len() == 3;
            assert!(
                found == old || applied && found.records[0].1 == b"2" && found.records[2].1 == [2; 30_000]
            );

            // A caller may act on loaded records, so they must be durable and not only cached.
            drop(store);
            disk.cut(&mut Rng::with_seed(at));
            let mut store = disk.open().unwrap();
            assert_eq!(store.load().unwrap(), found, "{at}");
            store.commit(&group).unwrap();
            assert_eq!(store.load().unwrap().records.len(), 3);
        }
    }
}

/// The same errors while the store is opened.
#[test]
fn write_error_during_open_is_reported_and_retried() {
    for (number, kind) in DISK_ERRORS {
        let disk = Disk::default();
        let mut store = disk.open().unwrap();
        store.commit(&[put("a", b"1")]).unwrap();
        let first = disk.operations();
        store.reopen().unwrap();
        let operations = disk.operations() - first;
        assert!(operations > 2, "{operations}");
        for at in 0..operations {
            disk.fail(disk.operations() + at, number);
            if let Err(error) = store.reopen() {
                assert_eq!(error.disk_error_kind(), Some(kind), "{at}: {error}");
                assert!(store.load().is_err());
            }
            disk.heal();
            store.reopen().unwrap();
            assert_eq!(store.load().unwrap().records.len(), 1);
        }
    }
}

#[test]
fn commit_costs_two_syncs_or_none() {
    let disk = Disk::default();
    let mut store = disk.open().unwrap();
    let all: Vec<_> = (0..1_000).map(|number| put(&format!("volume {number:04}"), &[1; 400])).collect();
    for (group, syncs) in [(&all[..], 2), (&all[500..501], 2), (&all[..0], 0)] {
        let before = (disk.syncs(), disk.operations(), disk.written_bytes());
        store.commit(group).unwrap();
        assert_eq!(disk.syncs() - before.0, syncs);
        println!(
            "{} changes: {} writes and syncs, {} bytes",
            group.len(),
            disk.operations() - before.1,
            disk.written_bytes() - before.2
        );
    }
    let before = disk.syncs();
    store.commit(&[Change::Remove(RecordKey::new(RecordKind(9), "none").unwrap())]).unwrap();
    assert_eq!(disk.syncs(), before);
}
