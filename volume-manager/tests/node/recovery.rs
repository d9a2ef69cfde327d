//! Recovery: recorded work continues by itself.

use std::time::{Duration, Instant};

use csi_proto::Method;

use super::world::*;
use volume_manager::node::DesiredVolume;

/// Consumers are on disk, so the first release does not remove the volume from the second consumer, even if the driver
/// restarts.
#[tokio::test(start_paused = true)]
async fn a_restart_does_not_forget_that_two_consumers_share_a_volume() {
    for redeployed in [false, true] {
        let mut world = World::new();
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        publish(&volumes, &volume("v"), "b").await.unwrap();
        drop(volumes);
        world.kill().await;
        if redeployed {
            world.driver.redeploy();
        }
        let volumes = world.start().await;
        unpublish_at_last(&volumes, "v", "a").await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.driver.count(Method::NodeUnstageVolume), 0);
        assert_eq!(world.mounted("/pods"), ["/pods/b/mount"]);
        unpublish_at_last(&volumes, "v", "b").await;
        removed(&volumes).await;
        assert_eq!(world.driver.count(Method::NodeUnstageVolume), 1);
        world.assert_clean("two consumers").await;
        world.driver.assert_lawful("two consumers");
    }
}

/// After a power cut all desired volumes are restored without a request.
#[tokio::test(start_paused = true)]
async fn reboot_restores_desired_volumes() {
    let mut world = World::new();
    let volumes = world.start().await;
    for name in ["a", "b"] {
        publish(&volumes, &volume(name), name).await.unwrap();
    }
    drop(volumes);
    world.kill().await;
    world.reboot();
    assert_eq!(world.mounted("/pods"), Vec::<String>::new());
    let volumes = world.start().await;
    let mut changes = volumes.watch();
    while world.mounted("/pods").len() < 2 {
        next(&mut changes).await;
    }
    world.driver.assert_lawful("a reboot");
}

/// A reboot has unmounted everything, so no volume counts as published until its driver has published it again.
#[tokio::test(start_paused = true)]
async fn after_a_reboot_nothing_is_published_without_a_driver() {
    for reboot in [false, true] {
        let mut world = World::new();
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        drop(volumes);
        world.kill().await;
        if reboot {
            world.reboot();
        }
        let volumes = world.start_without_driver(world.parts()).await;
        let explained = volumes.explain(&key("v")).await.unwrap().unwrap();
        assert_eq!(explained.consumers[0].published, !reboot, "reboot: {reboot}");
        assert!(explained.consumers[0].wanted);

        let mut changes = volumes.watch();
        world.register(&volumes).await;
        while !volumes.explain(&key("v")).await.unwrap().unwrap().consumers[0].published {
            next(&mut changes).await;
        }
        assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
    }
}

/// Directories that remain after a power cut are removed too, if the volume is no longer desired.
#[tokio::test(start_paused = true)]
async fn directories_from_before_a_reboot_go_with_the_volume() {
    use volume_manager::mounts::{Mounts as _, PathState};
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let staging = std::path::PathBuf::from(world.mounted(ROOT).remove(0));
    drop(volumes);
    world.kill().await;
    world.reboot();
    for method in [Method::NodeStageVolume, Method::ControllerPublishVolume] {
        world.driver.act(method, [super::driver::Act::Fail(13); 100]);
    }
    let volumes = world.start().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(volumes);
    world.kill().await;
    let volumes = world.start().await;
    unpublish_at_last(&volumes, "v", "a").await;
    removed(&volumes).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.assert_clean("after a reboot").await;
    for left in [staging.as_path(), staging.parent().unwrap()] {
        assert_eq!(world.mounts.inspect(left).await.unwrap().state, PathState::Missing, "{left:?}");
    }
}

/// Mounts that were lost while the node was stopped, without a reboot, are restored.
#[tokio::test(start_paused = true)]
async fn a_mount_that_was_lost_while_nothing_ran_is_made_again() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    drop(volumes);
    world.kill().await;
    assert!(world.mounts.detach(std::path::Path::new("/pods/a/mount")));
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
    world.driver.assert_lawful("a lost mount");
}

/// Of 10,000 records 100 cannot be read; they are counted and kept, and the others are unchanged.
#[tokio::test]
async fn ten_thousand_records_open_with_a_hundred_of_them_corrupt() {
    let mut world = World::new();
    // The record of one volume serves as the pattern of all.
    let volumes = world.start().await;
    publish(&volumes, &unattached("pattern"), "p").await.unwrap();
    drop(volumes);
    world.kill().await;
    let pattern = world.disk.open().load().unwrap().records.remove(0).1;
    let pattern = volume_manager::advanced::node::Record::decode(&pattern).unwrap();
    let table = super::driver::futures_table(&world.mounts);
    let count = 10_000;
    let (disk, mounts) = make_records(count, &pattern, &table);
    let mut keys: Vec<_> = disk.open().load().unwrap().records.into_iter().map(|(key, _)| key).collect();
    keys.truncate(100);
    for key in &keys {
        let mut row = disk.row(key.as_row()).unwrap();
        let middle = row.len() / 2;
        row[middle] ^= 0xff;
        disk.overwrite(key.as_row(), &row);
    }
    world.disk = disk.clone();
    world.driver = super::driver::Driver::new("csi.example.org", mounts.clone(), disk.clone());
    world.mounts = mounts;
    let began = Instant::now();
    let volumes = world.start().await;
    let opened = began.elapsed();
    let listed = volumes.list().await.unwrap();
    assert_eq!(listed.len(), count - 100);
    let desired: Vec<_> = listed
        .iter()
        .map(|key| {
            let name = key.id.as_str();
            DesiredVolume { spec: unattached(name), consumers: vec![consumer(name)] }
        })
        .collect();
    let reconciled = volumes.reconcile(desired).await.unwrap();
    println!("10,000 records: opened in {opened:?}, reconciled after {:?}", began.elapsed());
    assert_eq!((reconciled.wanted, reconciled.released, reconciled.refused.len()), (0, 0, 0));
    let quarantined = volumes.quarantined().await.unwrap();
    assert_eq!(quarantined.len(), 100);
    assert_eq!(volumes.counts().await.unwrap().quarantined, 100);
    assert!(world.driver.calls().is_empty(), "the mount table is right, so nothing is called");
    for key in &keys {
        assert!(disk.row(key.as_row()).is_some(), "what cannot be read is kept");
    }
    // A volume with an unreadable record is not touched, and other volumes work.
    publish(&volumes, &unattached("fresh"), "fresh").await.unwrap();
}

/// Creates the records and mounts of published volumes, as if each had been published.
fn make_records(
    count: usize,
    pattern: &volume_manager::advanced::node::Record,
    table: &volume_manager::mounts::MountTable,
) -> (volume_manager::store::memory::MemoryDisk, volume_manager::mounts::MemoryMounts) {
    use volume_manager::mounts::{MemoryMounts, MountIdentity};
    use volume_manager::store::memory::MemoryDisk;
    use volume_manager::store::{Change, RecordKey, RecordKind};
    let (disk, mounts) = (MemoryDisk::default(), MemoryMounts::new());
    assert!(!table.is_empty());
    let mut changes = Vec::with_capacity(count);
    for number in 0..count {
        let name = format!("n{number}");
        let mut record = pattern.clone();
        record.spec = unattached(&name);
        record.directory = format!("{number:032x}");
        let staging = format!("{ROOT}/csi.example.org/{}/staging", record.directory);
        let file_system = mounts.file_system("ext4", "/dev/vol", false);
        let path = std::path::Path::new(&staging);
        mounts.make_directory(path).unwrap();
        mounts.mount(file_system, path, false).unwrap();
        let consumer = consumer(&name);
        let target = consumer.target_path().as_path();
        mounts.make_directory(target).unwrap();
        mounts.bind_over(path, target, false).unwrap();
        let device = file_system.device();
        let identity = MountIdentity::new(device, "/".into(), "ext4".into(), "/dev/vol".into());
        record.staged = Some(identity.clone());
        let (_, mut holder) = record.consumers.pop_first().unwrap();
        let (_, state) = record.snapshot.targets.pop_first().unwrap();
        holder.mounted = Some(identity);
        holder.spec = consumer.clone();
        record.consumers.insert(consumer.id().clone(), holder);
        record.snapshot.targets.insert(consumer.id().clone(), state);
        let key = RecordKey::new(RecordKind(1), format!("csi.example.org/{}", record.directory)).unwrap();
        changes.push(Change::Put(key, record.encode()));
    }
    disk.open().commit(&changes).unwrap();
    (disk, mounts)
}

/// A record of a later version is reported and kept, and does not affect other volumes.
#[tokio::test(start_paused = true)]
async fn record_of_a_later_schema_is_kept() {
    use volume_manager::store::{Change, RecordKey};
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    drop(volumes);
    world.kill().await;
    let key_of: RecordKey = world.disk.open().load().unwrap().records[0].0.clone();
    // Field 1, the schema, is 99.
    world.disk.open().commit(&[Change::Put(key_of, vec![8, 99])]).unwrap();
    let volumes = world.start().await;
    let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
    assert!(said.contains("unreadable record") && said.contains("schema 99"), "{said}");
    let refused = publish(&volumes, &volume("v"), "b").await;
    assert!(matches!(refused, Err(volume_manager::node::PublishError::Quarantined { .. })), "{refused:?}");
    publish(&volumes, &volume("w"), "b").await.unwrap();
    assert_eq!(world.mounted("/pods").len(), 2, "what was mounted is not touched");
    let left = world.disk.open().load().unwrap();
    assert!(left.quarantined.is_empty());
    assert!(left.records.iter().any(|(_, payload)| *payload == [8, 99]), "it is where it was");
}
