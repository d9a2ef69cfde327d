use csi_proto::VolumeId;
use tempfile::TempDir;
use volume_manager::driver::MountPath;
use volume_manager::store::BootId;

use super::super::super::store::AgentStore;
use super::tree::Gift;
use super::*;

/// Groups whose volumes are not mounted, so that every walk fails.
fn groups() -> (TempDir, Groups) {
    let directory = tempfile::tempdir().unwrap();
    let boot: BootId = "11111111-1111-4111-8111-111111111111".parse().unwrap();
    let document = AgentStore::open(directory.path()).unwrap().groups;
    let groups = Groups::new(DoneGroups::new(document, boot));
    (directory, groups)
}

fn wish(directory: &TempDir, driver: &str, volume: &str, consumer: &str) -> Wish {
    Wish {
        key: VolumeKey { driver: DriverName::new(driver).unwrap(), id: VolumeId::new(volume).unwrap() },
        consumer: ConsumerId::new(consumer).unwrap(),
        target: MountPath::new(directory.path().join("not-mounted")).unwrap(),
        gift: Gift { group: 7, only_if_root_differs: false },
    }
}

fn unsure<'a>(consumers: impl IntoIterator<Item = &'a ConsumerId>) -> BTreeMap<ConsumerId, Unsure> {
    consumers.into_iter().map(|id| (id.clone(), Unsure::Driver)).collect()
}

fn pending(groups: &Groups, consumer: &str) -> GroupState {
    groups.states()[&ConsumerId::new(consumer).unwrap()].clone()
}

#[tokio::test]
async fn what_fails_is_tried_again_after_a_while_or_when_the_volume_is_published_anew() {
    let (directory, mut groups) = groups();
    let one = wish(&directory, "d.example", "v", "9f0c/data");
    let want_at = |groups: &mut Groups, now| groups.want(vec![one.clone()], BTreeMap::new(), now);
    let want = |groups: &mut Groups| want_at(groups, Instant::now());
    want(&mut groups);
    assert!(matches!(pending(&groups, "9f0c/data"), GroupState::Pending(_)));
    groups.ended().await;
    let GroupState::Failed(reason) = pending(&groups, "9f0c/data") else { panic!() };
    assert!(reason.contains("group 7"), "{reason}");
    // Not before its time.
    want(&mut groups);
    assert!(groups.busy.is_empty());
    let due = groups.due().unwrap();
    want_at(&mut groups, due);
    assert_eq!(groups.busy.len(), 1);
    groups.ended().await;
    groups.published(&one.consumer, false);
    want(&mut groups);
    assert_eq!(groups.busy.len(), 1);
    // Nobody wants it any more: nothing is shown, and its end is nobody's.
    groups.want(Vec::new(), BTreeMap::new(), Instant::now());
    assert!(groups.states().is_empty());
    groups.ended().await;
    assert!(groups.busy.is_empty() && groups.done.is_empty());
}

#[tokio::test]
async fn one_driver_has_two_walks_and_all_have_eight_and_a_volume_has_one() {
    let (directory, mut groups) = groups();
    let mut wishes = Vec::new();
    for driver in 0..6 {
        for volume in 0..4 {
            let (driver, volume) = (format!("d{driver}.example"), format!("v{volume}"));
            for pod in ["a", "b"] {
                wishes.push(wish(&directory, &driver, &volume, &format!("{driver}-{volume}-{pod}/data")));
            }
        }
    }
    let all = wishes.len();
    groups.want(wishes, BTreeMap::new(), Instant::now());
    let mut ended = 0;
    while !groups.busy.is_empty() {
        assert!(groups.busy.len() <= MAX_WALKS);
        for driver in 0..6 {
            let of_driver =
                groups.busy.keys().filter(|key| key.driver.as_str() == format!("d{driver}.example"));
            assert!(of_driver.count() <= MAX_WALKS_OF_DRIVER);
        }
        groups.ended().await;
        ended += 1;
    }
    assert_eq!(ended, all, "each once");
}

#[tokio::test]
async fn a_driver_that_makes_files_anew_has_them_given_again_while_the_volume_is_there() {
    let (directory, mut groups) = groups();
    let one = wish(&directory, "d.example", "v", "9f0c/data");
    groups.done.insert(one.clone());
    let want = |groups: &mut Groups| groups.want(vec![one.clone()], BTreeMap::new(), Instant::now());
    want(&mut groups);
    // Published once more, and nothing in it is new.
    groups.published(&one.consumer, false);
    want(&mut groups);
    assert!(groups.busy.is_empty());
    groups.published(&one.consumer, true);
    for walks in [0, 1] {
        assert_eq!(groups.busy.len(), walks);
        assert_eq!(pending(&groups, "9f0c/data"), GroupState::Given(String::new()), "the pod has it");
        want(&mut groups);
    }
    // While it is being done, it is not begun once more.
    groups.published(&one.consumer, true);
    want(&mut groups);
    assert_eq!(groups.busy.len(), 1);
    groups.ended().await;
    // It fails, and is tried again: the pod has its volume all the same, and may know why its new files are not its group's.
    let GroupState::Given(remark) = pending(&groups, "9f0c/data") else { panic!() };
    assert!(remark.contains("group 7") && remark.contains("cannot be opened"), "{remark}");
    assert!(groups.done.contains(&one) && !groups.unsaved, "the disk has it still");
    let due = groups.due().unwrap();
    groups.want(vec![one.clone()], BTreeMap::new(), due);
    assert_eq!((groups.busy.len(), pending(&groups, "9f0c/data")), (1, GroupState::Given(remark.clone())));
    groups.ended().await;
    groups.published(&one.consumer, true);
    assert_eq!(pending(&groups, "9f0c/data"), GroupState::Given(remark));
}

#[tokio::test]
async fn what_was_wanted_stays_while_the_claim_is_not_found_and_nothing_is_said_of_what_was_not() {
    let (directory, mut groups) = groups();
    let one = wish(&directory, "d.example", "v", "9f0c/data");
    let other = ConsumerId::new("other/data").unwrap();
    groups.want(vec![one.clone()], BTreeMap::new(), Instant::now());
    let lost = [&one.consumer, &other].map(|id| (id.clone(), Unsure::Modes));
    groups.want(Vec::new(), lost.clone().into(), Instant::now());
    assert!(matches!(pending(&groups, "9f0c/data"), GroupState::Pending(_)));
    assert!(!groups.states().contains_key(&other));
    groups.ended().await;
    let due = groups.due().unwrap();
    groups.want(Vec::new(), lost.into(), due);
    assert_eq!(groups.busy.len(), 1, "it is tried again");
}

#[tokio::test]
async fn what_was_done_is_not_done_again_unless_its_mount_was_lost() {
    let (directory, mut groups) = groups();
    let one = wish(&directory, "d.example", "v", "9f0c/data");
    groups.done.insert(one.clone());
    groups.unsaved = true;
    groups.save().await;
    let mut again = Groups::new(groups.on_disk.clone());
    // Before its driver has answered nobody knows, but what was done was done.
    again.want(Vec::new(), unsure([&one.consumer]), Instant::now());
    assert!(again.states().is_empty() && again.done.len() == 1);
    let other = ConsumerId::new("other/data").unwrap();
    again.want(Vec::new(), unsure([&one.consumer, &other]), Instant::now());
    assert!(matches!(pending(&again, "other/data"), GroupState::Pending(_)));
    let want = |groups: &mut Groups| groups.want(vec![one.clone()], BTreeMap::new(), Instant::now());
    want(&mut again);
    assert_eq!((pending(&again, "9f0c/data"), again.busy.len()), (GroupState::Given(String::new()), 0));
    let stranger = ConsumerId::new("other/data").unwrap();
    again.lost(&one.key, Some(&stranger));
    want(&mut again);
    assert!(again.busy.is_empty());
    again.lost(&one.key, None);
    want(&mut again);
    assert_eq!(again.busy.len(), 1);
    again.save().await;
    assert!(groups.on_disk.load().is_empty());
}
