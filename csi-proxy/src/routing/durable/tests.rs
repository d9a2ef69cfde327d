use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::*;
use crate::routing::selection::{Candidate, OfflinePolicy, Presence};
use crate::routing::store::{FaultyStore, Handle, MemoryStore, StoreFault};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

async fn open(store: &MemoryStore) -> (Arc<DurablePlacements>, Handle) {
    let (store, handle) = FaultyStore::new(store.clone());
    (DurablePlacements::open(Placements::default(), Arc::new(store)).await.unwrap().0, handle)
}

fn request(name: &str) -> VolumeRequest {
    let request = csi::CreateVolumeRequest { name: name.to_owned(), ..Default::default() };
    VolumeRequest::read(&request.encode_to_vec()).unwrap()
}

async fn attempt(placements: &Arc<DurablePlacements>, name: &str, to: &str) -> Result<OpenAttempt, Refusal> {
    let to = node(to);
    let candidate = Candidate { node: to.clone(), topology: None, presence: Presence::Online, room: None };
    let selector =
        NodeSelector { candidates: &[candidate], default: Some(&to), offline: OfflinePolicy::Wait };
    placements.attempt(&request(name), selector).await
}

fn volume(id: &str) -> Subject {
    Subject::Volume(id.into())
}

#[tokio::test]
async fn attempt_begins_after_its_placement_is_durable() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let attempted = attempt(&placements, "pvc-1", "a").await.unwrap();
    assert_eq!((attempted.node(), store.keys().len()), (&node("a"), 1));
    drop(attempted);
    assert_eq!(attempt(&placements, "pvc-1", "b").await.unwrap().node(), &node("a"));
    let (placements, _) = open(&store).await;
    assert_eq!(attempt(&placements, "pvc-1", "b").await.unwrap().node(), &node("a"));
}

#[tokio::test]
async fn selects_no_node_while_the_store_fails() {
    for fault in [StoreFault::Refused, StoreFault::Written] {
        let store = MemoryStore::default();
        let (placements, handle) = open(&store).await;
        let first = attempt(&placements, "pvc-1", "a").await.unwrap();
        handle.fail(fault);
        let refused = attempt(&placements, "pvc-2", "a").await.unwrap_err();
        assert!(matches!(refused, Refusal::NotPersisted { .. }), "{refused:?}");
        handle.cut_after(0);
        assert!(first.end(AttemptResult::Created("vol-1")).await.is_err(), "the caller must retry");
        assert!(attempt(&placements, "pvc-3", "a").await.is_err());
        handle.cut_after(None);
        let second = attempt(&placements, "pvc-2", "b").await.unwrap();
        let expected = if fault == StoreFault::Written { "a" } else { "b" };
        assert_eq!(second.node(), &node(expected), "{fault:?}");
        second.end(AttemptResult::Created("vol-2")).await.unwrap();
        attempt(&placements, "pvc-1", "b").await.unwrap().end(AttemptResult::Created("vol-1")).await.unwrap();
        let (placements, _) = open(&store).await;
        assert_eq!(placements.node_of(&volume("vol-1")), Some(node("a")), "{fault:?}");
        assert_eq!(placements.node_of(&volume("vol-2")), Some(node(expected)), "{fault:?}");
        assert_eq!((store.keys().len(), placements.read(Placements::rows)), (2, 2), "{fault:?}");
    }
}

/// The choice of another proxy is read and used.
#[tokio::test]
async fn uses_placement_of_another_proxy() {
    let store = MemoryStore::default();
    let ((first, _), (second, _)) = (open(&store).await, open(&store).await);
    let open = attempt(&second, "pvc-1", "a").await.unwrap();
    assert_eq!(attempt(&first, "pvc-1", "b").await.unwrap().node(), &node("a"));
    open.end(AttemptResult::Created("vol-1")).await.unwrap();
    let late =
        attempt(&first, "pvc-1", "b").await.unwrap().end(AttemptResult::Created("vol-1")).await.unwrap_err();
    assert!(matches!(late, Refusal::Changed { .. }), "{late:?}");
    assert_eq!(first.node_of(&volume("vol-1")), Some(node("a")), "known from then on");
}

#[tokio::test]
async fn failed_deletion_is_retried() {
    let store = MemoryStore::default();
    let (placements, handle) = open(&store).await;
    attempt(&placements, "pvc-1", "a").await.unwrap().end(AttemptResult::Created("vol-1")).await.unwrap();
    handle.fail(StoreFault::Written);
    placements.deleted(&volume("vol-1")).await.unwrap_err();
    assert!(!placements.read(|table| table.is_deleted(&volume("vol-1"))));
    let changed = placements.deleted(&volume("vol-1")).await.unwrap_err();
    assert!(matches!(changed, Refusal::Changed { .. }), "{changed:?}");
    assert!(placements.read(|table| table.is_deleted(&volume("vol-1"))), "as the store has it");
    placements.deleted(&volume("vol-1")).await.unwrap();
}

/// The caller has left during a write: what is durable is known anyway.
#[tokio::test]
async fn applies_write_of_a_cancelled_caller() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let left = tokio::time::timeout(std::time::Duration::ZERO, attempt(&placements, "pvc-1", "a")).await;
    drop(left);
    // The write holds the lock until it is done.
    drop(placements.lock_key(&Subject::VolumeName("pvc-1".into())).await);
    assert_eq!(store.keys().len(), placements.read(Placements::rows));
    let open = attempt(&placements, "pvc-1", "a").await.unwrap();
    open.end(AttemptResult::Created("vol-1")).await.unwrap();
}

#[tokio::test]
async fn concurrent_attempts_are_all_durable() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let names: Vec<_> = (0..500).map(|number| format!("pvc-{number}")).collect();
    let all = names.iter().map(|name| attempt(&placements, name, "a"));
    let open = futures_util::future::join_all(all).await;
    assert!(open.iter().all(Result::is_ok));
    assert_eq!(store.keys().len(), 500);
}

/// A placement that was decided before the decommission and written after it is released too.
#[tokio::test]
async fn decommission_releases_concurrent_writes() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let lost = node("a");
    let (attempted, released) =
        tokio::join!(attempt(&placements, "pvc-1", "a"), placements.decommission(&lost));
    drop(attempted);
    assert!(released.is_ok() && !placements.read(|table| table.has_rows_of(&lost)));
    assert!(matches!(attempt(&placements, "pvc-1", "a").await, Err(Refusal::Decommissioned { .. })));
    assert_eq!(attempt(&placements, "pvc-1", "b").await.unwrap().node(), &node("b"));
}
