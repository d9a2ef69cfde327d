//! Errors of the system at each write and sync.

use fastrand::Rng;

use super::disk::Disk;
use crate::store::{Change, RecordKey, RecordKind, Store, StoreError, Trouble};

const TROUBLES: [(i32, Trouble); 4] =
    [(28, Trouble::NoSpace), (30, Trouble::ReadOnly), (5, Trouble::Device), (24, Trouble::TooManyFiles)];

fn put(name: &str, payload: &[u8]) -> Change {
    Change::Put(RecordKey::new(RecordKind(1), name).unwrap(), payload.to_vec())
}

/// Anchors (f) 3: ENOSPC, EROFS, EIO and EMFILE at each write and sync of a commit.
#[test]
fn any_error_at_any_write_stops_the_store_and_reopening_finds_all_or_nothing_of_the_commit() {
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
    for (number, trouble) in TROUBLES {
        for at in 0..operations {
            let disk = Disk::default();
            let mut store = disk.open().unwrap();
            store.commit(&before).unwrap();
            let old = store.load().unwrap();
            disk.fail(disk.operations() + at, number);
            let error = store.commit(&group).unwrap_err();
            assert!(matches!(&error, StoreError::Disk { .. }), "{at}: {error}");
            assert_eq!(error.trouble(), Some(trouble), "{at}: {error}");

            // The disk is fine again, but what it holds is not known.
            for later in [store.commit(&[]).unwrap_err(), store.load().map(drop).unwrap_err()] {
                assert!(matches!(later, StoreError::Stopped { .. }), "{later}");
                assert_eq!(later.trouble(), Some(trouble));
            }
            store.reopen().unwrap();
            let found = store.load().unwrap();
            let applied = found.records.len() == 3;
            assert!(
                found == old || applied && found.records[0].1 == b"2" && found.records[2].1 == [2; 30_000]
            );

            // What was loaded may be acted on, so it has to be on the disk and not merely in the cache.
            drop(store);
            disk.cut(&mut Rng::with_seed(at));
            let mut store = disk.open().unwrap();
            assert_eq!(store.load().unwrap(), found, "{at}");
            store.commit(&group).unwrap();
            assert_eq!(store.load().unwrap().records.len(), 3);
        }
    }
}

/// Anchors (f) 3: the same while the store is opened.
#[test]
fn any_error_at_any_write_of_opening_is_named_and_opening_succeeds_when_it_has_gone() {
    for (number, trouble) in TROUBLES {
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
                assert_eq!(error.trouble(), Some(trouble), "{at}: {error}");
                assert!(store.load().is_err());
            }
            disk.heal();
            store.reopen().unwrap();
            assert_eq!(store.load().unwrap().records.len(), 1);
        }
    }
}

#[test]
fn a_commit_costs_two_syncs_whether_of_one_change_or_of_a_thousand_and_none_if_nothing_changes() {
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
