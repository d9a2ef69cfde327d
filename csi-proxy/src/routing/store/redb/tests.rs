use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use super::*;
use crate::call::Digest;
use crate::routing::placements::Status;

struct TestFile(tempfile::TempDir);

impl TestFile {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("proxy.redb")
    }

    fn open(&self) -> Result<RedbStore, OpenStoreError> {
        RedbStore::open(self.path(), &driver())
    }
}

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn key() -> Subject {
    Subject::VolumeName("pvc-1".into())
}

fn create(key: Subject, placement: Placement) -> Change {
    Change { key, expected: None, placement: Some(placement) }
}

fn placement() -> Placement {
    let node = NodeId::new("edge-1").unwrap();
    Placement { node, digest: Digest::from_bytes([1; 32]), status: Status::Pending }
}

#[tokio::test]
async fn file_is_private_to_owner_driver_and_process() {
    let file = TestFile::new();
    let store = file.open().unwrap();
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(file.open(), Err(OpenStoreError::InUse { .. })));
    drop(store);
    let other = RedbStore::open(file.path(), &DriverName::new("other").unwrap()).unwrap_err();
    assert!(other.to_string().contains("csi-hostpath"), "{other}");
    file.open().unwrap();
}

#[tokio::test]
async fn term_increases_with_every_start() {
    let file = TestFile::new();
    let first = file.open().unwrap().raise().await.unwrap();
    let store = file.open().unwrap();
    let second = store.raise().await.unwrap();
    assert!(second > first && second < store.raise().await.unwrap());
    let store_term = async |term: u64| {
        let stored = store.commit(move |transaction| {
            transaction.open_table(TERMS)?.insert(driver().as_str(), term)?;
            Ok(())
        });
        stored.await.unwrap();
    };
    let ahead = Term::CLOCK_MAX;
    store_term(ahead.get()).await;
    assert_eq!(store.raise().await.unwrap(), ahead.next(), "the clock is behind");
    store_term(Term::MAX.get()).await;
    assert!(matches!(store.raise().await, Err(TermError::Exhausted { .. })));
    store_term(u64::MAX).await;
    let term = store.raise().await.unwrap();
    assert!(term < ahead && term > second, "a number that is no term counts as none");
}

#[tokio::test]
async fn tables_are_independent() {
    let file = TestFile::new();
    let node = NodeId::new("edge-1").unwrap();
    let store = file.open().unwrap();
    let other = NodeId::new("edge-0").unwrap();
    store.save(&other, Some(Bytes::from_static(b"other"))).await.unwrap();
    store.save(&node, Some(Bytes::from_static(b"one"))).await.unwrap();
    let lost = NodeId::new("edge-2").unwrap();
    store.keep_nodes(vec![node.clone(), lost.clone()]).await.unwrap();
    store.set_decommissioned(&lost, true).await.unwrap();
    store.keep_nodes(vec![lost.clone()]).await.unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    drop(store);
    let store = file.open().unwrap();
    let expected = [(other, Bytes::from_static(b"other")), (node.clone(), Bytes::from_static(b"one"))];
    assert_eq!(store.load().await.unwrap(), expected);
    assert_eq!(store.nodes().await.unwrap(), std::slice::from_ref(&node));
    assert_eq!(store.decommissioned().await.unwrap(), [lost]);
    assert_eq!(store.list().await.unwrap().len(), 1);
    store.save(&node, None).await.unwrap();
    assert_eq!(store.load().await.unwrap().len(), 1);
}

fn raw(file: &TestFile, act: impl FnOnce(&WriteTransaction)) {
    let database = Database::open(file.path()).unwrap();
    let transaction = database.begin_write().unwrap();
    act(&transaction);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn rejects_unknown_table_version() {
    for (table, _) in VERSIONS {
        let file = TestFile::new();
        file.open().unwrap().write(&create(key(), placement())).await.unwrap();
        raw(&file, |transaction| {
            drop(transaction.open_table(NUMBERS).unwrap().insert(table, 99).unwrap());
        });
        let error = file.open().unwrap_err();
        assert!(matches!(error, OpenStoreError::OtherVersion { found: 99, .. }), "{error}");
        assert!(error.to_string().contains(table), "{error}");
        raw(&file, |transaction| {
            let (_, version) = VERSIONS.iter().find(|(name, _)| *name == table).unwrap();
            let mut numbers = transaction.open_table(NUMBERS).unwrap();
            let found = numbers.insert(table, version).unwrap();
            assert_eq!(found.map(|found| found.value()), Some(99), "{table}: the number is not changed");
        });
        assert_eq!(file.open().unwrap().list().await.unwrap().len(), 1, "{table}");
    }
}

#[tokio::test]
async fn discards_driver_info_of_an_older_version() {
    let file = TestFile::new();
    let store = file.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    let node = NodeId::new("edge-1").unwrap();
    store.save(&node, Some(Bytes::from_static(b"later"))).await.unwrap();
    drop(store);
    raw(&file, |transaction| {
        drop(transaction.open_table(NUMBERS).unwrap().insert("driver_info", 1).unwrap());
    });
    let store = file.open().unwrap();
    assert_eq!((store.list().await.unwrap().len(), store.load().await.unwrap().len()), (1, 0));
}

#[tokio::test]
async fn lists_damaged_row_under_its_key() {
    let file = TestFile::new();
    let other = Subject::Snapshot("snap-1".into());
    let store = file.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    store.write(&create(other.clone(), placement())).await.unwrap();
    drop(store);
    raw(&file, |transaction| {
        let mut table = transaction.open_table(PLACEMENTS).unwrap();
        table.insert((1, "pvc-1"), (1, b"junk".as_slice())).unwrap();
    });
    let rows = file.open().unwrap().list().await.unwrap();
    let bad: Vec<_> = rows.iter().filter(|row| row.placement.is_err()).map(|row| &row.key).collect();
    assert_eq!((bad, rows.len()), (vec![&key()], 2));
}

#[test]
fn foreign_file_is_not_changed() {
    let file = TestFile::new();
    fs::write(file.path(), "#!/bin/sh").unwrap();
    assert!(matches!(file.open(), Err(OpenStoreError::Foreign { .. })));
    assert_eq!(fs::read(file.path()).unwrap(), b"#!/bin/sh");
    fs::remove_file(file.path()).unwrap();
    drop(Database::create(file.path()).unwrap());
    raw(&file, |transaction| {
        drop(transaction.open_table(TableDefinition::<u64, u64>::new("other")).unwrap());
    });
    assert!(matches!(file.open(), Err(OpenStoreError::Foreign { .. })));
}

#[tokio::test]
async fn damaged_file_is_rejected_and_not_changed() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
        ("overwritten", |bytes| bytes[64..4096].fill(0xa5)),
        ("inverted", |bytes| bytes[4096..].fill(0x5a)),
        ("nearly empty", |bytes| bytes.truncate(4)),
    ];
    for (what, damage) in damages {
        let file = TestFile::new();
        let store = file.open().unwrap();
        let at = SystemTime::UNIX_EPOCH;
        let status = Status::Deleted { id: "x".repeat(9000).into(), at };
        store.write(&create(key(), Placement { status, ..placement() })).await.unwrap();
        drop(store);
        let mut bytes = fs::read(file.path()).unwrap();
        damage(&mut bytes);
        fs::write(file.path(), &bytes).unwrap();
        let error = file.open().unwrap_err();
        assert!(matches!(error, OpenStoreError::Damaged { .. }), "{what}: {error}");
        assert_eq!(fs::read(file.path()).unwrap().len(), bytes.len(), "{what}");
    }
}

/// The next write after a failure reopens the file.
#[tokio::test]
async fn store_recovers_after_a_disk_failure() {
    let file = TestFile::new();
    let store = file.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    let failed = store.commit(|_| Err::<(), _>(::redb::Error::Io(io::ErrorKind::StorageFull.into()))).await;
    assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
    assert_eq!(store.list().await.unwrap().len(), 1);
    store.keep_nodes(Vec::new()).await.unwrap();
}
