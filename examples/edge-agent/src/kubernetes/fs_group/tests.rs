use csi_proto::VolumeId;
use tempfile::TempDir;
use volume_manager::driver::MountPath;
use volume_manager::store::BootId;

use super::super::super::store::AgentStore;
use super::tree::FsGroup;
use super::*;

/// Groups with volumes that are not mounted, so that every walk fails.
fn groups() -> (TempDir, Groups) {
    let directory = tempfile::tempdir().unwrap();
    let boot: BootId = "11111111-1111-4111-8111-111111111111".parse().unwrap();
    let document = AgentStore::open(directory.path()).unwrap().groups;
    let groups = Groups::new(DoneGroups::new(document, boot));
    (directory, groups)
}

fn job(directory: &TempDir, driver: &str, volume: &str, consumer: &str) -> FsGroupJob {
    FsGroupJob {
        key: VolumeKey { driver: DriverName::new(driver).unwrap(), id: VolumeId::new(volume).unwrap() },
        consumer: ConsumerId::new(consumer).unwrap(),
        target: MountPath::new(directory.path().join("not-mounted")).unwrap(),
        fs_group: FsGroup { group: 7, only_if_root_differs: false },
    }
}

fn unknown<'a>(consumers: impl IntoIterator<Item = &'a ConsumerId>) -> BTreeMap<ConsumerId, UnknownProperty> {
    consumers.into_iter().map(|id| (id.clone(), UnknownProperty::Driver)).collect()
}

fn pending(groups: &Groups, consumer: &str) -> GroupState {
    groups.states()[&ConsumerId::new(consumer).unwrap()].clone()
}

#[tokio::test]
async fn retries_after_a_delay_or_a_new_publish() {
    let (directory, mut groups) = groups();
    let one = job(&directory, "d.example", "v", "9f0c/data");
    let want_at = |groups: &mut Groups, now| groups.set_wanted(vec![one.clone()], BTreeMap::new(), now);
    let want = |groups: &mut Groups| want_at(groups, Instant::now());
    want(&mut groups);
    assert!(matches!(pending(&groups, "9f0c/data"), GroupState::Pending(_)));
    groups.ended().await;
    let GroupState::Failed(reason) = pending(&groups, "9f0c/data") else { panic!() };
    assert!(reason.contains("fsGroup 7"), "{reason}");
    // Not before its time.
    want(&mut groups);
    assert!(groups.busy.is_empty());
    let due = groups.next_retry().unwrap();
    want_at(&mut groups, due);
    assert_eq!(groups.busy.len(), 1);
    groups.ended().await;
    groups.published(&one.consumer, false);
    want(&mut groups);
    assert_eq!(groups.busy.len(), 1);
    // The consumer is removed: its state and the result of its walk are dropped.
    groups.set_wanted(Vec::new(), BTreeMap::new(), Instant::now());
    assert!(groups.states().is_empty());
    groups.ended().await;
    assert!(groups.busy.is_empty() && groups.done.is_empty());
}

#[tokio::test]
async fn bounds_walks_by_volume_driver_and_agent() {
    let (directory, mut groups) = groups();
    let mut jobs = Vec::new();
    for driver in 0..6 {
        for volume in 0..4 {
            let (driver, volume) = (format!("d{driver}.example"), format!("v{volume}"));
            for pod in ["a", "b"] {
                jobs.push(job(&directory, &driver, &volume, &format!("{driver}-{volume}-{pod}/data")));
            }
        }
    }
    let all = jobs.len();
    groups.set_wanted(jobs, BTreeMap::new(), Instant::now());
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
async fn republished_files_get_the_group_again() {
    let (directory, mut groups) = groups();
    let one = job(&directory, "d.example", "v", "9f0c/data");
    groups.done.insert(one.clone());
    let want = |groups: &mut Groups| groups.set_wanted(vec![one.clone()], BTreeMap::new(), Instant::now());
    want(&mut groups);
    // Published once more, and nothing in it is new.
    groups.published(&one.consumer, false);
    want(&mut groups);
    assert!(groups.busy.is_empty());
    groups.published(&one.consumer, true);
    for walks in [0, 1] {
        assert_eq!(groups.busy.len(), walks);
        assert_eq!(pending(&groups, "9f0c/data"), GroupState::Applied(String::new()), "the pod has it");
        want(&mut groups);
    }
    // While it is being done, it is not begun once more, but afterwards: the walk may have passed the new files.
    groups.published(&one.consumer, true);
    want(&mut groups);
    assert_eq!(groups.busy.len(), 1);
    groups.ended().await;
    assert_eq!(groups.busy.len(), 1);
    groups.ended().await;
    assert!(groups.busy.is_empty());
    // The job fails and is retried: the pod keeps its volume, and the remark explains the group of its new files.
    let GroupState::Applied(remark) = pending(&groups, "9f0c/data") else { panic!() };
    assert!(remark.contains("fsGroup 7") && remark.contains("cannot be opened"), "{remark}");
    assert!(groups.done.contains(&one) && !groups.unsaved, "the disk has it still");
    let due = groups.next_retry().unwrap();
    groups.set_wanted(vec![one.clone()], BTreeMap::new(), due);
    assert_eq!((groups.busy.len(), pending(&groups, "9f0c/data")), (1, GroupState::Applied(remark.clone())));
    groups.ended().await;
    groups.published(&one.consumer, true);
    assert_eq!(pending(&groups, "9f0c/data"), GroupState::Applied(remark));
}

#[tokio::test]
async fn keeps_jobs_while_the_claim_is_not_found() {
    let (directory, mut groups) = groups();
    let one = job(&directory, "d.example", "v", "9f0c/data");
    let other = ConsumerId::new("other/data").unwrap();
    groups.set_wanted(vec![one.clone()], BTreeMap::new(), Instant::now());
    let lost = [&one.consumer, &other].map(|id| (id.clone(), UnknownProperty::AccessModes));
    groups.set_wanted(Vec::new(), lost.clone().into(), Instant::now());
    assert!(matches!(pending(&groups, "9f0c/data"), GroupState::Pending(_)));
    assert!(!groups.states().contains_key(&other));
    groups.ended().await;
    let due = groups.next_retry().unwrap();
    groups.set_wanted(Vec::new(), lost.into(), due);
    assert_eq!(groups.busy.len(), 1, "it is retried");
}

#[tokio::test]
async fn done_job_repeats_only_after_a_lost_mount() {
    let (directory, mut groups) = groups();
    let one = job(&directory, "d.example", "v", "9f0c/data");
    groups.done.insert(one.clone());
    groups.unsaved = true;
    groups.save().await;
    let mut again = Groups::new(groups.on_disk.clone());
    // Unknown until the driver has answered; done jobs stay done.
    again.set_wanted(Vec::new(), unknown([&one.consumer]), Instant::now());
    assert!(again.states().is_empty() && again.done.len() == 1);
    let other = ConsumerId::new("other/data").unwrap();
    again.set_wanted(Vec::new(), unknown([&one.consumer, &other]), Instant::now());
    assert!(matches!(pending(&again, "other/data"), GroupState::Pending(_)));
    let want = |groups: &mut Groups| groups.set_wanted(vec![one.clone()], BTreeMap::new(), Instant::now());
    want(&mut again);
    assert_eq!((pending(&again, "9f0c/data"), again.busy.len()), (GroupState::Applied(String::new()), 0));
    let stranger = ConsumerId::new("other/data").unwrap();
    again.mount_lost(&one.key, Some(&stranger));
    want(&mut again);
    assert!(again.busy.is_empty());
    again.mount_lost(&one.key, None);
    want(&mut again);
    assert_eq!(again.busy.len(), 1);
    again.save().await;
    assert!(groups.on_disk.load().is_empty());
}
