use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::*;
use crate::operation::journal::faulty;
use crate::operation::journal::memory::{MemoryDisk, MemoryJournal};
use crate::route::election::{Candidate, OfflinePolicy, Presence};

fn ledger() -> Ledger {
    Ledger::new(DriverName::new("csi-hostpath").unwrap())
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn keeper(disk: &MemoryDisk) -> (Arc<Keeper>, faulty::Handle) {
    let (journal, handle) = faulty::wrap(disk.open());
    (Arc::new(Keeper::open(ledger(), Box::new(journal)).unwrap()), handle)
}

fn request(name: &str) -> VolumeRequest {
    let request = csi::CreateVolumeRequest { name: name.to_owned(), ..Default::default() };
    VolumeRequest::read(&request.encode_to_vec()).unwrap()
}

async fn attempt(keeper: &Arc<Keeper>, name: &str, to: &str) -> Result<OpenAttempt, Refusal> {
    let to = node(to);
    let candidate = Candidate { node: to.clone(), topology: None, presence: Presence::Online, room: None };
    let ballot = Ballot { candidates: &[candidate], default: Some(&to), offline: OfflinePolicy::Wait };
    keeper.attempt(&request(name), ballot).await
}

#[tokio::test]
async fn an_attempt_begins_when_its_placement_is_on_the_disk_and_one_that_was_dropped_is_uncertain() {
    let disk = MemoryDisk::default();
    let (keeper, _) = keeper(&disk);
    let open = attempt(&keeper, "pvc-1", "a").await.unwrap();
    assert_eq!((open.node(), disk.rows().len()), (&node("a"), 1));
    drop(open);
    assert_eq!(attempt(&keeper, "pvc-1", "b").await.unwrap().node(), &node("a"));
    drop(keeper);
    let (keeper, _) = self::keeper(&disk);
    assert_eq!(attempt(&keeper, "pvc-1", "b").await.unwrap().node(), &node("a"));
}

#[tokio::test]
async fn nothing_is_chosen_while_it_cannot_be_kept_and_everything_is_written_once_it_can() {
    for fault in [faulty::Fault::Refused, faulty::Fault::Written] {
        let disk = MemoryDisk::default();
        let (keeper, handle) = keeper(&disk);
        let open = attempt(&keeper, "pvc-1", "a").await.unwrap();
        handle.fail(fault);
        handle.refuse_reopening(true);
        let refused = attempt(&keeper, "pvc-2", "a").await.unwrap_err();
        assert!(matches!(refused, Refusal::NotKept { .. }), "{refused:?}");
        assert!(open.end(End::Made("vol-1")).await.is_err(), "the caller must ask again");
        assert!(attempt(&keeper, "pvc-3", "a").await.is_err());
        handle.refuse_reopening(false);
        attempt(&keeper, "pvc-2", "b").await.unwrap().end(End::Made("vol-2")).await.unwrap();
        drop(keeper);
        let (keeper, _) = self::keeper(&disk);
        let place = |id: &str| keeper.node_of(&Subject::Volume(id.into()));
        assert_eq!((place("vol-1"), place("vol-2")), (Some(node("a")), Some(node("b"))), "{fault:?}");
        assert_eq!((disk.rows().len(), keeper.rows()), (4, 4), "{fault:?}");
    }
}

#[tokio::test]
async fn many_attempts_share_a_commit() {
    let disk = MemoryDisk::default();
    let (keeper, _) = keeper(&disk);
    let names: Vec<_> = (0..500).map(|number| format!("pvc-{number}")).collect();
    let all = names.iter().map(|name| attempt(&keeper, name, "a"));
    let open = futures_util::future::join_all(all).await;
    assert!(open.iter().all(Result::is_ok));
    assert_eq!(disk.rows().len(), 500);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_set_aside_and_the_others_count() {
    let disk = MemoryDisk::default();
    let (keeper, _) = keeper(&disk);
    for (name, id) in [("pvc-1", "vol-1"), ("pvc-2", "vol-2")] {
        attempt(&keeper, name, "a").await.unwrap().end(End::Made(id)).await.unwrap();
    }
    drop(keeper);
    let (row, _) = disk.rows()[1].clone();
    disk.overwrite(row, b"junk");
    let (keeper, _) = self::keeper(&disk);
    assert_eq!(keeper.node_of(&Subject::Volume("vol-1".into())), None);
    assert_eq!(keeper.node_of(&Subject::Volume("vol-2".into())), Some(node("a")));
    assert_eq!(MemoryJournal::aside(&mut disk.open()).unwrap(), [(row, b"junk".to_vec())]);
}
