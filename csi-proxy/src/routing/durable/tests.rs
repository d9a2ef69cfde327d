use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::*;
use crate::routing::election::{Candidate, OfflinePolicy, Presence};
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
    let ballot = Ballot { candidates: &[candidate], default: Some(&to), offline: OfflinePolicy::Wait };
    placements.attempt(&request(name), ballot).await
}

fn volume(id: &str) -> Subject {
    Subject::Volume(id.into())
}

#[tokio::test]
async fn an_attempt_begins_when_its_placement_is_durable_and_one_that_was_dropped_is_uncertain() {
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
async fn no_node_is_selected_while_that_cannot_be_kept_and_what_was_written_all_the_same_counts() {
    for fault in [StoreFault::Refused, StoreFault::Written] {
        let store = MemoryStore::default();
        let (placements, handle) = open(&store).await;
        let first = attempt(&placements, "pvc-1", "a").await.unwrap();
        handle.fail(fault);
        let refused = attempt(&placements, "pvc-2", "a").await.unwrap_err();
        assert!(matches!(refused, Refusal::NotKept { .. }), "{refused:?}");
        handle.cut_after(0);
        assert!(first.end(End::Made("vol-1")).await.is_err(), "the caller must ask again");
        assert!(attempt(&placements, "pvc-3", "a").await.is_err());
        handle.cut_after(None);
        let second = attempt(&placements, "pvc-2", "b").await.unwrap();
        let expected = if fault == StoreFault::Written { "a" } else { "b" };
        assert_eq!(second.node(), &node(expected), "{fault:?}");
        second.end(End::Made("vol-2")).await.unwrap();
        attempt(&placements, "pvc-1", "b").await.unwrap().end(End::Made("vol-1")).await.unwrap();
        let (placements, _) = open(&store).await;
        assert_eq!(placements.node_of(&volume("vol-1")), Some(node("a")), "{fault:?}");
        assert_eq!(placements.node_of(&volume("vol-2")), Some(node(expected)), "{fault:?}");
        assert_eq!((store.keys().len(), placements.rows()), (2, 2), "{fault:?}");
    }
}

/// What another proxy has chosen is read, and its choice counts.
#[tokio::test]
async fn a_placement_that_another_proxy_made_first_is_the_one() {
    let store = MemoryStore::default();
    let ((ours, _), (theirs, _)) = (open(&store).await, open(&store).await);
    let open = attempt(&theirs, "pvc-1", "a").await.unwrap();
    assert_eq!(attempt(&ours, "pvc-1", "b").await.unwrap().node(), &node("a"));
    open.end(End::Made("vol-1")).await.unwrap();
    let late = attempt(&ours, "pvc-1", "b").await.unwrap().end(End::Made("vol-1")).await.unwrap_err();
    assert!(matches!(late, Refusal::Changed { .. }), "{late:?}");
    assert_eq!(ours.node_of(&volume("vol-1")), Some(node("a")), "it is known from then on");
}

#[tokio::test]
async fn a_deletion_that_cannot_be_kept_is_asked_for_again() {
    let store = MemoryStore::default();
    let (placements, handle) = open(&store).await;
    attempt(&placements, "pvc-1", "a").await.unwrap().end(End::Made("vol-1")).await.unwrap();
    handle.fail(StoreFault::Written);
    placements.deleted(&volume("vol-1")).await.unwrap_err();
    assert!(!placements.is_deleted(&volume("vol-1")));
    let changed = placements.deleted(&volume("vol-1")).await.unwrap_err();
    assert!(matches!(changed, Refusal::Changed { .. }), "{changed:?}");
    assert!(placements.is_deleted(&volume("vol-1")), "as the store has it");
    placements.deleted(&volume("vol-1")).await.unwrap();
}

/// Who asked has left in the middle of a write: what is durable is known all the same.
#[tokio::test]
async fn a_write_that_nobody_waits_for_is_taken_in() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let left = tokio::time::timeout(std::time::Duration::ZERO, attempt(&placements, "pvc-1", "a")).await;
    drop(left);
    // The write has the turn until it is over.
    drop(placements.turn(&Subject::VolumeName("pvc-1".into())).await);
    assert_eq!(store.keys().len(), placements.rows());
    let open = attempt(&placements, "pvc-1", "a").await.unwrap();
    open.end(End::Made("vol-1")).await.unwrap();
}

#[tokio::test]
async fn five_hundred_attempts_at_once_are_all_durable() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let names: Vec<_> = (0..500).map(|number| format!("pvc-{number}")).collect();
    let all = names.iter().map(|name| attempt(&placements, name, "a"));
    let open = futures_util::future::join_all(all).await;
    assert!(open.iter().all(Result::is_ok));
    assert_eq!(store.keys().len(), 500);
}

/// What was decided before the node was decommissioned, and is written after it, is released too.
#[tokio::test]
async fn nothing_that_was_being_written_stays_at_a_decommissioned_node() {
    let store = MemoryStore::default();
    let (placements, _) = open(&store).await;
    let lost = node("a");
    let (attempted, released) =
        tokio::join!(attempt(&placements, "pvc-1", "a"), placements.decommission(&lost));
    drop(attempted);
    assert!(released.is_ok() && !placements.has_rows_of(&lost));
    assert!(matches!(attempt(&placements, "pvc-1", "a").await, Err(Refusal::Decommissioned { .. })));
    assert_eq!(attempt(&placements, "pvc-1", "b").await.unwrap().node(), &node("b"));
}
