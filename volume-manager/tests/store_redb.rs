//! The store's file: corrupt, foreign, in use, large, and on a full disk.
#![cfg(feature = "redb")]
#![allow(clippy::unwrap_used, reason = "a failed step is the failure of its test")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use volume_manager::advanced::store::{
    LAYOUT, ReplacedTable, Table, envelope, open_tables, release_salvaged, salvage,
};
use volume_manager::store::redb::{Recreated, open_or_recreate};
use volume_manager::store::{
    Change, Defect, DiskErrorKind, Loaded, OpenStoreError, RecordKey, RecordKind, Store, StoreError,
};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("records.numbers");

fn key(number: usize) -> RecordKey {
    RecordKey::new(RecordKind(1), format!("hostpath.csi.k8s.io/volume-{number:05}")).unwrap()
}

fn open(path: &Path) -> Result<Store, OpenStoreError> {
    volume_manager::store::redb::open(path)
}

fn load(path: &Path) -> Loaded {
    open(path).unwrap().load().unwrap()
}

/// Creates a store with a number of records, in commits of 50, and returns its content.
fn fill(path: &Path, records: usize) -> Loaded {
    let mut store = open(path).unwrap();
    let all: Vec<_> = (0..records)
        .map(|number| Change::Put(key(number), format!("published {number} ").repeat(20).into_bytes()))
        .collect();
    for group in all.chunks(50) {
        store.commit(group).unwrap();
    }
    store.load().unwrap()
}

#[test]
fn file_is_private_and_locked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let mut store = open(&path).unwrap();
    store.commit(&[Change::Put(key(1), b"x".to_vec())]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenStoreError::InUse { .. }), "{error}");
    drop(store);
    assert_eq!(load(&path).records.len(), 1);
}

#[test]
fn interrupted_creation_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let new = directory.path().join("volumes.new");
    for left in [&b""[..], b"redb\x1a\x0a\xa9\x0d\x0a half of a header", b"anything"] {
        fs::write(&new, left).unwrap();
        assert_eq!(load(&path), Loaded::default());
        assert!(!new.exists());
        fs::remove_file(&path).unwrap();
    }
    // Interrupted between the two steps of the rename.
    drop(open(&path).unwrap());
    fs::hard_link(&path, &new).unwrap();
    assert_eq!(load(&path), Loaded::default());
    assert!(path.exists() && !new.exists());
    // Another process is creating it.
    fs::remove_file(&path).unwrap();
    let other = fs::File::create(&new).unwrap();
    other.try_lock().unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenStoreError::InUse { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn reopen_does_not_create_a_missing_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let mut store = open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = store.reopen().unwrap_err();
    assert!(matches!(error, StoreError::NotReopened(OpenStoreError::Disk { .. })), "{error}");
    assert!(!path.exists() && store.load().is_err());
    let error = open(&directory.path().join("no/such/folder")).unwrap_err();
    assert!(matches!(error, OpenStoreError::Disk { .. }), "{error}");
}

#[test]
fn foreign_and_newer_files_are_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let rejected = |expected: &str| {
        let before = fs::read(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?} instead of {expected}");
        if expected == "Foreign" || expected == "Damaged" {
            let error = match open_or_recreate(&path) {
                Err(error) => format!("{error:?}"),
                Ok((_, over)) => format!("{:?}", over.unwrap().reason),
            };
            assert!(error.starts_with(expected), "{error}");
        }
        let kept = directory.path().join("volumes.damaged-1");
        assert!(fs::read(&path).unwrap() == before || fs::read(kept).unwrap() == before);
    };
    fs::write(&path, "{\"volumes\": []}").unwrap();
    rejected("Foreign");

    // Another program's database.
    fs::remove_file(&path).unwrap();
    let other = Database::create(&path).unwrap();
    let transaction = other.begin_write().unwrap();
    transaction.open_table(TableDefinition::<&str, &str>::new("settings")).unwrap().insert("a", "b").unwrap();
    transaction.commit().unwrap();
    drop(other);
    assert!(matches!(open(&path).unwrap_err(), OpenStoreError::Foreign { .. }));

    for (unknown, newer) in [(true, false), (false, true), (true, true)] {
        fs::remove_file(&path).unwrap();
        drop(open(&path).unwrap());
        let database = Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        if unknown {
            transaction.open_table(TableDefinition::<u64, u64>::new("leases")).unwrap();
        }
        if newer {
            transaction.open_table(NUMBERS).unwrap().insert("layout", LAYOUT + 1).unwrap();
        }
        transaction.commit().unwrap();
        drop(database);
        let error = open(&path).unwrap_err();
        let text = error.to_string();
        match error {
            OpenStoreError::Newer { found, supported, .. } if newer => assert_eq!((found, supported), (2, 1)),
            OpenStoreError::Foreign { .. } if !newer => assert!(text.contains("leases"), "{text}"),
            error => panic!("{error}"),
        }
    }

    for damaged in [&b""[..], b"redb", &[0; 5000]] {
        fs::write(&path, damaged).unwrap();
        rejected("Damaged");
        fs::remove_file(directory.path().join("volumes.damaged-1")).unwrap();
    }
}

/// The results of opening corrupt files.
#[derive(Debug, Default)]
struct Outcomes {
    intact: usize,
    damaged: usize,
}

impl Outcomes {
    /// Opens a corrupted file: it has every record, or is recreated with most of them salvaged. A wrong record is never
    /// returned.
    fn add(&mut self, path: &Path, expected: &Loaded, at_least: usize, how: &str) {
        let before = fs::read(path).unwrap();
        let (mut store, over) = open_or_recreate(path).unwrap();
        let Some(over) = over else {
            assert!(store.load().unwrap() == *expected, "{how}");
            self.intact += 1;
            return;
        };
        self.damaged += 1;
        let after = fs::read(&over.kept).unwrap();
        // The header's page has no records; redb updates the file length in it.
        let same = after.len() == before.len() && after.iter().skip(4096).eq(before.iter().skip(4096));
        assert!(same, "{how}: the corrupt file was changed");
        let loaded = store.load().unwrap();
        assert_eq!((loaded.records.len(), loaded.quarantined.len()), (0, over.salvaged), "{how}");
        let salvage = salvage(&over.kept).unwrap();
        assert!(!salvage.truncated && !over.truncated, "{how}");
        let salvaged: Vec<_> =
            salvage.records.iter().map(|one| (one.key.clone(), one.payload.clone())).collect();
        assert_eq!(salvaged.len(), over.salvaged, "{how}");
        assert!(salvaged.iter().all(|record| expected.records.contains(record)), "{how}: a wrong record");
        assert!(salvaged.len() >= at_least, "{how}: only {} were salvaged", salvaged.len());
        fs::remove_file(over.kept).unwrap();
    }
}

/// Opens a file that is truncated at every page and at odd bytes, has flipped bits, or is empty.
#[test]
fn corrupt_file_is_intact_or_salvaged_and_never_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let expected = fill(&path, 200);
    let closed = fs::read(&path).unwrap();
    // The state after a crash: the store was not closed.
    let copy = directory.path().join("copy");
    let open_still = {
        let _store = open(&path).unwrap();
        fs::read(&path).unwrap()
    };
    for (file, state) in [(&closed, "closed"), (&open_still, "open")] {
        let mut outcomes = Outcomes::default();
        let odd = (0..9).chain([100, 319, 320, 321, 4095, 4097, 5000]);
        let pages = (1..file.len() / 4096).map(|page| page * 4096);
        let last = (1..5).map(|less| file.len() - less);
        for length in odd.chain(pages.step_by(24)).chain(last) {
            fs::write(&copy, &file[..length]).unwrap();
            outcomes.add(&copy, &expected, 0, &format!("{state}, truncated at {length}"));
        }
        // A duplicate tail.
        fs::write(&copy, [&file[..], &file[file.len() - 8192..]].concat()).unwrap();
        outcomes.add(&copy, &expected, 200, &format!("{state}, duplicate tail"));
        println!("{state}, truncated: {outcomes:?}");
        assert!(outcomes.damaged > 25, "{outcomes:?}");

        let mut outcomes = Outcomes::default();
        let mut random: u64 = 42;
        let used = file.iter().rposition(|byte| *byte != 0).unwrap();
        for turn in 0..120 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Half of the flips are in the small header.
            let reach = [9, 320, used, used][turn % 4];
            let bit = usize::try_from(random >> 20).unwrap() % (reach * 8);
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&copy, &flipped).unwrap();
            outcomes.add(&copy, &expected, 199, &format!("{state}, bit {bit} flipped"));
        }
        println!("{state}, bit flips: {outcomes:?}");
        assert!(outcomes.damaged > 10 && outcomes.intact > 10, "{outcomes:?}");
    }
}

#[test]
fn salvage_finds_the_latest_records_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let mut store = open(&path).unwrap();
    for payload in [&b"first"[..], b"second", b"third"] {
        store.commit(&[Change::Put(key(1), payload.to_vec())]).unwrap();
        store.commit(&[Change::Put(key(2), payload.to_vec())]).unwrap();
    }
    drop(store);
    let before = fs::read(&path).unwrap();
    let salvaged = salvage(&path).unwrap().records;
    let found: Vec<_> =
        salvaged.iter().map(|one| (one.key.clone(), &one.payload[..], one.sequence)).collect();
    assert_eq!(found, [(key(1), &b"third"[..], 5), (key(2), b"third", 6)]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// Returns the path to which a corrupt file is moved.
fn kept(path: &Path, number: u32) -> PathBuf {
    path.with_file_name(format!("volumes.damaged-{number}"))
}

/// Overwrites the beginning of the file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[..9].fill(0);
    fs::write(path, bytes).unwrap();
}

/// Asserts that the quarantine has exactly these records, as salvaged.
fn assert_salvaged(store: &mut Store, expected: &Loaded) {
    let loaded = store.load().unwrap();
    assert_eq!(loaded.records, []);
    assert_eq!(loaded.quarantined.len(), expected.records.len());
    for ((key, payload), quarantined) in expected.records.iter().zip(&loaded.quarantined) {
        assert_eq!((quarantined.key.as_ref(), &quarantined.reason), (Some(key), &Defect::Salvaged));
        let bytes = store.quarantined(&quarantined.id).unwrap();
        assert!(envelope::open(key.as_row(), &bytes).unwrap().payload == payload);
    }
}

#[test]
fn salvaged_records_stay_quarantined_across_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let expected = fill(&path, 60);
    for _ in 0..5 {
        let (key, payload) = expected.records[2].clone();
        open(&path).unwrap().commit(&[Change::Put(key, payload)]).unwrap();
    }
    damage(&path);
    let (store, over) = open_or_recreate(&path).unwrap();
    let over = over.unwrap();
    assert_eq!((over.salvaged, over.truncated, &over.kept), (60, false, &kept(&path, 1)));
    // A restart before the report was used.
    drop(store);
    let (mut store, over) = open_or_recreate(&path).unwrap();
    assert!(over.is_none());
    assert_salvaged(&mut store, &expected);
    let quarantined = store.load().unwrap().quarantined;
    store.release(&quarantined[0].id).unwrap();
    store.discard(&quarantined[1].id).unwrap();
    store.commit(&[Change::Put(key(2), b"new".to_vec())]).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!(loaded.records, [expected.records[0].clone(), (key(2), b"new".to_vec())]);
    assert_eq!(loaded.quarantined.len(), 58);
    drop(store);
    // Its sequence numbers continue those of the corrupt file.
    damage(&path);
    let over = open_or_recreate(&path).unwrap().1.unwrap();
    assert_eq!(over.kept, kept(&path, 2));
    let salvaged = salvage(over.kept).unwrap().records;
    assert_eq!(salvaged.iter().find(|one| one.key == key(2)).unwrap().payload, b"new");
}

#[test]
fn interrupted_recreation_is_completed_by_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let new = directory.path().join("volumes.new");
    let expected = fill(&path, 60);
    let other = {
        let elsewhere = tempfile::tempdir().unwrap();
        fill(&elsewhere.path().join("volumes"), 1);
        fs::read(elsewhere.path().join("volumes")).unwrap()
    };
    damage(&path);
    let damaged = fs::read(&path).unwrap();
    let states: [(&str, &dyn Fn()); 5] = [
        ("before the first step", &|| {}),
        ("while the new file was written", &|| fs::write(&new, b"half").unwrap()),
        ("before the new file was renamed", &|| {
            fs::hard_link(&path, kept(&path, 1)).unwrap();
            fs::write(&new, &other).unwrap();
        }),
        ("while no file had the name", &|| {
            fs::rename(&path, kept(&path, 1)).unwrap();
            fs::write(&new, &other).unwrap();
        }),
        ("by an earlier version", &|| fs::rename(&path, kept(&path, 1)).unwrap()),
    ];
    for (state, interrupt) in states {
        interrupt();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, OpenStoreError::Damaged { .. }), "{state}: {error}");
        let (mut store, over) = open_or_recreate(&path).unwrap();
        let over = over.unwrap();
        assert!(matches!(over.reason, OpenStoreError::Damaged { .. }), "{state}: {}", over.reason);
        assert_eq!(over.kept, kept(&path, 1), "{state}");
        assert!(fs::read(&over.kept).unwrap() == damaged, "{state}");
        assert_salvaged(&mut store, &expected);
        drop(store);
        assert_salvaged(&mut open(&path).unwrap(), &expected);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "{state}: a temporary file is left");
        fs::rename(kept(&path, 1), &path).unwrap();
    }
    // Another process is recreating it.
    let making = fs::File::create(&new).unwrap();
    making.try_lock().unwrap();
    let error = open_or_recreate(&path).unwrap_err();
    assert!(matches!(error, OpenStoreError::InUse { .. }), "{error}");
    assert!(fs::read(&path).unwrap() == damaged && !kept(&path, 1).exists());
}

#[test]
fn unsupported_format_fails_and_corrupt_format_is_salvaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    fill(&path, 60);
    let intact = fs::read(&path).unwrap();
    assert_eq!([intact[64], intact[192]], [3, 3], "redb's format version");
    let both = [([1, 1], 1), ([2, 2], 2), ([4, 4], 4), ([9, 9], 9), ([3, 4], 4), ([4, 3], 4), ([5, 4], 5)];
    for (formats, format) in both {
        let mut bytes = intact.clone();
        [bytes[64], bytes[192]] = formats;
        fs::write(&path, &bytes).unwrap();
        for error in [open(&path).err(), open_or_recreate(&path).err()] {
            match error {
                Some(OpenStoreError::OtherFormat { found, supported: 3, .. }) => assert_eq!(found, format),
                other => panic!("{formats:?}: {other:?}"),
            }
        }
        assert!(fs::read(&path).unwrap() == bytes && !kept(&path, 1).exists(), "{formats:?}");
    }
    for formats in [[0, 0], [255, 255], [3, 1], [2, 3], [7, 3], [3, 131]] {
        let mut bytes = intact.clone();
        [bytes[64], bytes[192]] = formats;
        fs::write(&path, &bytes).unwrap();
        let over = open_or_recreate(&path).unwrap().1.unwrap();
        assert_eq!(over.salvaged, 60, "{formats:?}");
    }
}

/// 100 of 10,000 records are corrupt.
#[test]
fn corrupt_records_are_quarantined_and_the_rest_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let mut store = open(&path).unwrap();
    let all: Vec<_> = (0..10_000).map(|number| Change::Put(key(number), vec![b'p'; 500])).collect();
    let began = Instant::now();
    store.commit(&all).unwrap();
    println!("one commit of 10,000 records: {:?}", began.elapsed());
    drop(store);
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(RECORDS).unwrap();
        for number in (0..10_000).step_by(100) {
            let row = key(number);
            let mut bytes = records.get(row.as_row()).unwrap().unwrap().value().to_vec();
            bytes[300] ^= 1;
            records.insert(row.as_row(), &bytes[..]).unwrap();
        }
    }
    transaction.commit().unwrap();
    drop(database);

    let began = Instant::now();
    let mut store = open(&path).unwrap();
    let opened = began.elapsed();
    let loaded = store.load().unwrap();
    let size = fs::metadata(&path).unwrap().len();
    println!("open: {opened:?}, open and load: {:?}, file: {size} bytes", began.elapsed());
    assert_eq!((loaded.records.len(), loaded.quarantined.len()), (9_900, 100));
    assert!(loaded.quarantined.iter().all(|one| matches!(one.reason, Defect::Checksum { .. })));
    for _ in 0..5 {
        let began = Instant::now();
        store.commit(&all[1..2]).unwrap();
        println!("a commit of one record among them: {:?}", began.elapsed());
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// Unmounts on drop.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0).status();
    }
}

/// Mounts a tmpfs, if possible.
fn mounted<'a>(path: &'a Path, options: &str, test: &str) -> Option<Mounted<'a>> {
    let mut command = std::process::Command::new("mount");
    command.args(["-t", "tmpfs", "-o", options, "none"]).arg(path);
    if is_root() && command.output().is_ok_and(|output| output.status.success()) {
        return Some(Mounted(path));
    }
    let _ = writeln!(std::io::stderr(), "{test}: not run, since mounting needs root");
    None
}

#[test]
fn recreation_on_a_full_filesystem_is_retried() {
    const NAME: &str = "recreation_on_a_full_filesystem_is_retried";
    let directory = tempfile::tempdir().unwrap();
    let Some(_mounted) = mounted(directory.path(), "size=8m", NAME) else { return };
    let path = directory.path().join("volumes");
    let expected = fill(&path, 60);
    damage(&path);
    let damaged = fs::read(&path).unwrap();
    let ballast = directory.path().join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    for _ in 0..2 {
        let error = open_or_recreate(&path).unwrap_err();
        assert_eq!(error.disk_error_kind(), Some(DiskErrorKind::NoSpace), "{error}");
        assert!(fs::read(&path).unwrap() == damaged && !kept(&path, 1).exists());
    }
    fs::remove_file(ballast).unwrap();
    let (mut store, over) = open_or_recreate(&path).unwrap();
    assert_eq!(over.unwrap().kept, kept(&path, 1));
    assert_salvaged(&mut store, &expected);
}

#[test]
fn salvaged_records_are_released_once_and_never_over_newer_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volumes");
    let expected = fill(&path, 60);
    damage(&path);
    let (mut store, over) = open_or_recreate(&path).unwrap();
    let salvaged = over.unwrap().salvaged;
    let aside = store.load().unwrap().quarantined;
    let newer = aside[0].key.clone().unwrap();
    store.commit(&[Change::Put(newer.clone(), b"newer".to_vec())]).unwrap();

    let loaded = store.load().unwrap();
    let result = release_salvaged(&mut store, &loaded).unwrap();
    assert_eq!(result.released + result.left, salvaged);
    assert!(result.left >= 1 && result.released > 0, "{result:?}");
    let loaded = store.load().unwrap();
    assert_eq!(loaded.records.len(), result.released + 1);
    for (key, payload) in loaded.records {
        let found = if key == newer {
            payload == b"newer"
        } else {
            expected.records.contains(&(key.clone(), payload))
        };
        assert!(found, "{key}");
    }
    let loaded = store.load().unwrap();
    let again = release_salvaged(&mut store, &loaded).unwrap();
    assert_eq!((again.released, again.left), (0, result.left));
}

/// Tests ENOSPC on a real file system.
#[test]
fn full_filesystem_stops_the_store_until_space_is_freed() {
    const NAME: &str = "full_filesystem_stops_the_store_until_space_is_freed";
    let directory = tempfile::tempdir().unwrap();
    let Some(_mounted) = mounted(directory.path(), "size=4m", NAME) else { return };
    let ballast = directory.path().join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let path = directory.path().join("volumes");
    let mut store = open(&path).unwrap();
    let mut acknowledged = Vec::new();
    let error = loop {
        let record = (key(acknowledged.len()), vec![b'x'; 100_000]);
        match store.commit(&[Change::Put(record.0.clone(), record.1.clone())]) {
            Ok(()) => acknowledged.push(record),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 100, "the disk is never full");
    };
    assert_eq!(error.disk_error_kind(), Some(DiskErrorKind::NoSpace), "{error}");
    assert!(!acknowledged.is_empty());
    // The store reopens or fails with an error, and loses nothing.
    match store.reopen() {
        Ok(()) => assert_eq!(store.load().unwrap().records, acknowledged),
        Err(error) => assert_eq!(error.disk_error_kind(), Some(DiskErrorKind::NoSpace), "{error}"),
    }
    fs::remove_file(ballast).unwrap();
    store.reopen().unwrap();
    assert_eq!(store.load().unwrap().records, acknowledged);
    store.commit(&[Change::Put(key(1000), vec![b'y'; 100_000])]).unwrap();
    drop(store);
    assert_eq!(load(&path).records.len(), acknowledged.len() + 1);

    // Read-only.
    let remount = |how| std::process::Command::new("mount").args(["-o", how]).arg(directory.path()).status();
    assert!(remount("remount,ro").unwrap().success());
    assert_eq!(open(&path).unwrap_err().disk_error_kind(), Some(DiskErrorKind::ReadOnly));
    assert!(remount("remount,rw").unwrap().success());
    assert_eq!(load(&path).records.len(), acknowledged.len() + 1);
}

const VOLUMES: Table = Table::new("volumes", RecordKind(1));
const OTHERS: Table = Table::new("others", RecordKind(2));

fn open_both(path: &Path) -> (Store, Store, Option<Recreated>, Vec<ReplacedTable>) {
    let opened = open_tables(path, &[VOLUMES, OTHERS]).unwrap();
    let [volumes, others] = opened.stores.try_into().unwrap();
    (volumes, others, opened.recreated, opened.replaced)
}

fn of(table: Table) -> Change {
    Change::Put(RecordKey::new(table.kind, "name").unwrap(), table.name.into())
}

fn records(store: &mut Store) -> usize {
    store.load().unwrap().records.len()
}

/// An unusable table does not affect the others: it is renamed, replaced by an empty one, and reported once.
#[test]
fn unusable_table_is_replaced_and_others_are_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.redb");
    let numbers = TableDefinition::<&str, u64>::new("others.numbers");
    type Corruption<'a> = (&'a str, Box<dyn Fn(&redb::WriteTransaction) + 'a>);
    let corruptions: [Corruption<'_>; 4] = [
        (
            "layout 2",
            Box::new(|all| drop(all.open_table(numbers).unwrap().insert("layout", LAYOUT + 1).unwrap())),
        ),
        ("no layout", Box::new(|all| drop(all.open_table(numbers).unwrap().remove("layout").unwrap()))),
        ("aside", Box::new(|all| drop(all.delete_table(TableDefinition::<u64, &[u8]>::new("others.aside"))))),
        (
            "others",
            Box::new(|all| {
                all.delete_table(TableDefinition::<&[u8], &[u8]>::new("others")).unwrap();
                all.open_table(TableDefinition::<u64, u64>::new("others")).unwrap();
            }),
        ),
    ];
    for (number, (reason, corrupt)) in corruptions.into_iter().enumerate() {
        let (mut volumes, mut others, over, aside) = open_both(&path);
        assert!(over.is_none() && aside.is_empty(), "{aside:?}");
        volumes.commit(&[of(VOLUMES)]).unwrap();
        others.commit(&[of(OTHERS)]).unwrap();
        drop((volumes, others));
        let database = Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        corrupt(&transaction);
        transaction.commit().unwrap();
        drop(database);

        let (mut volumes, mut others, over, aside) = open_both(&path);
        assert!(over.is_none());
        let [one] = &aside[..] else { panic!("{aside:?}") };
        assert_eq!((one.table, &one.kept), ("others", &format!("others.set-aside-{}", number + 1)));
        assert!(one.reason.contains(reason), "{reason}: {}", one.reason);
        assert_eq!((records(&mut volumes), records(&mut others)), (1, 0), "{reason}");
        others.commit(&[of(OTHERS)]).unwrap();
        drop((volumes, others));
        let (mut volumes, mut others, _, aside) = open_both(&path);
        assert_eq!((aside, records(&mut volumes), records(&mut others)), (vec![], 1, 1), "{reason}");
        drop((volumes, others));
        let database = Database::open(&path).unwrap();
        let transaction = database.begin_read().unwrap();
        let tables: Vec<String> =
            transaction.list_tables().unwrap().map(|one| one.name().to_owned()).collect();
        assert!(tables.contains(&format!("others.numbers.set-aside-{}", number + 1)), "{tables:?}");
    }
}

#[test]
fn missing_table_is_created_and_others_are_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.redb");
    let mut volumes = open_tables(&path, &[VOLUMES]).unwrap().stores.pop().unwrap();
    volumes.commit(&[of(VOLUMES)]).unwrap();
    drop(volumes);
    let (mut volumes, mut others, over, aside) = open_both(&path);
    assert!(over.is_none() && aside.is_empty());
    others.commit(&[of(OTHERS)]).unwrap();
    assert_eq!(records(&mut volumes), 1);
    drop((volumes, others));
    drop(open_tables(&path, &[VOLUMES]).unwrap());
    let (_, mut others, ..) = open_both(&path);
    assert_eq!(records(&mut others), 1);
    let foreign = open(&path).unwrap_err();
    assert!(matches!(foreign, OpenStoreError::InUse { .. } | OpenStoreError::Foreign { .. }), "{foreign}");
}

#[test]
fn salvaged_records_are_in_the_table_of_their_kind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.redb");
    let (mut volumes, mut others, ..) = open_both(&path);
    volumes.commit(&[of(VOLUMES)]).unwrap();
    others.commit(&[of(OTHERS)]).unwrap();
    drop((volumes, others));
    damage(&path);
    let (mut volumes, mut others, over, aside) = open_both(&path);
    assert_eq!((over.unwrap().salvaged, aside), (2, vec![]));
    for (table, store) in [(VOLUMES, &mut volumes), (OTHERS, &mut others)] {
        let loaded = store.load().unwrap();
        let [one] = &loaded.quarantined[..] else { panic!("{loaded:?}") };
        assert_eq!(one.key.as_ref().map(RecordKey::kind), Some(table.kind));
        assert_eq!(release_salvaged(store, &loaded).unwrap().released, 1);
        assert_eq!(store.load().unwrap().records[0].1, table.name.as_bytes());
    }
}
