use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use super::*;
use crate::dispatcher::operation::Digest;
use crate::routing::placements::Status;

struct Place(tempfile::TempDir);

impl Place {
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
async fn the_file_is_for_its_owner_its_driver_and_one_process() {
    let place = Place::new();
    let store = place.open().unwrap();
    assert_eq!(fs::metadata(place.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(place.open(), Err(OpenStoreError::InUse { .. })));
    drop(store);
    let other = RedbStore::open(place.path(), &DriverName::new("other").unwrap()).unwrap_err();
    assert!(other.to_string().contains("csi-hostpath"), "{other}");
    place.open().unwrap();
}

#[tokio::test]
async fn the_term_rises_with_every_start_and_above_what_was_seen_elsewhere() {
    let place = Place::new();
    let first = place.open().unwrap().raise(None).await.unwrap();
    let store = place.open().unwrap();
    let second = store.raise(None).await.unwrap();
    assert!(second > first && second < store.raise(None).await.unwrap());
    let above = Term::new(1 << 60).unwrap();
    assert_eq!(store.raise(Some(above)).await.unwrap(), above.next());
    drop(store);
    let store = place.open().unwrap();
    assert_eq!(store.raise(Some(first)).await.unwrap(), above.next().next(), "the clock is behind");
    let highest = Term::new(u64::MAX).unwrap();
    assert!(matches!(store.raise(Some(highest)).await, Err(TermError::Exhausted { .. })));
}

#[tokio::test]
async fn what_is_in_one_table_is_not_in_another() {
    let place = Place::new();
    let node = NodeId::new("edge-1").unwrap();
    let store = place.open().unwrap();
    let other = NodeId::new("edge-0").unwrap();
    store.save(&other, Some(Bytes::from_static(b"other"))).await.unwrap();
    store.save(&node, Some(Bytes::from_static(b"one"))).await.unwrap();
    let lost = NodeId::new("edge-2").unwrap();
    store.keep_nodes(vec![node.clone(), lost.clone()]).await.unwrap();
    store.set_decommissioned(&lost, true).await.unwrap();
    store.keep_nodes(vec![lost.clone()]).await.unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    drop(store);
    let store = place.open().unwrap();
    let expected = [(other, Bytes::from_static(b"other")), (node.clone(), Bytes::from_static(b"one"))];
    assert_eq!(store.load().await.unwrap(), expected);
    assert_eq!(store.nodes().await.unwrap(), std::slice::from_ref(&node));
    assert_eq!(store.decommissioned().await.unwrap(), [lost]);
    assert_eq!(store.list().await.unwrap().len(), 1);
    store.save(&node, None).await.unwrap();
    assert_eq!(store.load().await.unwrap().len(), 1);
}

fn raw(place: &Place, act: impl FnOnce(&WriteTransaction)) {
    let database = Database::open(place.path()).unwrap();
    let transaction = database.begin_write().unwrap();
    act(&transaction);
    transaction.commit().unwrap();
}

#[tokio::test]
async fn a_table_of_another_version_is_refused_and_not_changed() {
    for table in ["layout", "placements", "terms", "nodes"] {
        let place = Place::new();
        place.open().unwrap().write(&create(key(), placement())).await.unwrap();
        raw(&place, |transaction| {
            drop(transaction.open_table(NUMBERS).unwrap().insert(table, 99).unwrap());
        });
        let before = fs::read(place.path()).unwrap();
        let error = place.open().unwrap_err();
        assert!(matches!(error, OpenStoreError::OtherVersion { found: 99, .. }), "{error}");
        assert!(error.to_string().contains(table), "{error}");
        raw(&place, |transaction| {
            let (_, version) = VERSIONS.iter().find(|(name, _)| *name == table).unwrap();
            drop(transaction.open_table(NUMBERS).unwrap().insert(table, version).unwrap());
        });
        assert_eq!(place.open().unwrap().list().await.unwrap().len(), 1, "{} bytes", before.len());
    }
}

#[tokio::test]
async fn driver_info_of_another_version_is_learnt_again_and_nothing_else_is_lost() {
    let place = Place::new();
    let store = place.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    let node = NodeId::new("edge-1").unwrap();
    store.save(&node, Some(Bytes::from_static(b"later"))).await.unwrap();
    drop(store);
    raw(&place, |transaction| {
        drop(transaction.open_table(NUMBERS).unwrap().insert("driver_info", 99).unwrap());
    });
    let store = place.open().unwrap();
    assert_eq!((store.list().await.unwrap().len(), store.load().await.unwrap().len()), (1, 0));
}

#[tokio::test]
async fn a_damaged_row_is_listed_under_its_key_and_the_others_are_whole() {
    let place = Place::new();
    let other = Subject::Snapshot("snap-1".into());
    let store = place.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    store.write(&create(other.clone(), placement())).await.unwrap();
    drop(store);
    raw(&place, |transaction| {
        let mut table = transaction.open_table(PLACEMENTS).unwrap();
        table.insert((1, "pvc-1"), (1, b"junk".as_slice())).unwrap();
    });
    let rows = place.open().unwrap().list().await.unwrap();
    let bad: Vec<_> = rows.iter().filter(|row| row.placement.is_err()).map(|row| &row.key).collect();
    assert_eq!((bad, rows.len()), (vec![&key()], 2));
}

#[test]
fn a_file_that_is_something_else_is_left_alone() {
    let place = Place::new();
    fs::write(place.path(), "#!/bin/sh").unwrap();
    assert!(matches!(place.open(), Err(OpenStoreError::Foreign { .. })));
    assert_eq!(fs::read(place.path()).unwrap(), b"#!/bin/sh");
    fs::remove_file(place.path()).unwrap();
    drop(Database::create(place.path()).unwrap());
    raw(&place, |transaction| {
        drop(transaction.open_table(TableDefinition::<u64, u64>::new("other")).unwrap());
    });
    assert!(matches!(place.open(), Err(OpenStoreError::Foreign { .. })));
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_not_changed() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
        ("overwritten", |bytes| bytes[64..4096].fill(0xa5)),
        ("turned", |bytes| bytes[4096..].fill(0x5a)),
        ("nearly empty", |bytes| bytes.truncate(4)),
    ];
    for (what, damage) in damages {
        let place = Place::new();
        let store = place.open().unwrap();
        let at = SystemTime::UNIX_EPOCH;
        let status = Status::Deleted { id: "x".repeat(9000).into(), at };
        store.write(&create(key(), Placement { status, ..placement() })).await.unwrap();
        drop(store);
        let mut bytes = fs::read(place.path()).unwrap();
        damage(&mut bytes);
        fs::write(place.path(), &bytes).unwrap();
        let error = place.open().unwrap_err();
        assert!(matches!(error, OpenStoreError::Damaged { .. }), "{what}: {error}");
        assert_eq!(fs::read(place.path()).unwrap().len(), bytes.len(), "{what}");
    }
}

/// After a failure the file is opened anew with the next write.
#[tokio::test]
async fn a_store_that_failed_works_again_when_its_disk_does() {
    let place = Place::new();
    let store = place.open().unwrap();
    store.write(&create(key(), placement())).await.unwrap();
    let failed = store.commit(|_| Err::<(), _>(::redb::Error::Io(io::ErrorKind::StorageFull.into()))).await;
    assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
    assert_eq!(store.list().await.unwrap().len(), 1);
    store.keep_nodes(Vec::new()).await.unwrap();
}
