//! Drivers that say what is not so.

use std::time::Duration;

use csi_proto::Method;
use volume_manager::node::PublishError;

use super::driver::Act;
use super::world::*;

/// Anchors (f) 9: OK without a mount is no success, whichever mount it is that is missing.
#[tokio::test(start_paused = true)]
async fn an_ok_without_a_mount_is_not_believed_and_the_call_is_made_again() {
    for act in [Act::Lie, Act::Another, Act::Twice] {
        let mut world = World::new();
        let volumes = world.start().await;
        world.driver.act(Method::NodePublishVolume, [act]);
        let first = publish(&volumes, &volume("v"), "a").await;
        assert!(
            matches!(&first, Err(PublishError::Failed { error, .. }) if error.code.is_none()),
            "{first:?}"
        );
        let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
        assert!(said.contains("NodePublishVolume: OK, but"), "{said}");
        publish_at_last(&volumes, &volume("v"), "a").await;
        assert_eq!(world.mounted("/pods"), ["/pods/a/mount"], "{act:?}");
        world.driver.assert_lawful("lies");
    }
}

/// Anchors (f) 9: OK while it is still mounted is no success, and nothing below is taken away (moosefs/moosefs-csi#34).
#[tokio::test(start_paused = true)]
async fn an_ok_while_it_is_still_mounted_is_not_believed() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.driver.act(Method::NodeUnpublishVolume, [Act::Lie, Act::Lie]);
    world.driver.act(Method::NodeUnstageVolume, [Act::Lie]);
    let first = volumes.unpublish(&key("v"), &id("a")).await;
    assert!(first.is_err(), "{first:?}");
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 0);
    unpublish_at_last(&volumes, "v", "a").await;
    gone(&volumes).await;
    assert_eq!(world.driver.count(Method::NodeUnpublishVolume), 3);
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 2);
    world.assert_clean("lies on the way down").await;
    world.driver.assert_lawful("lies on the way down");
}

/// Anchors (f) 9: an error after success is repeated, and the mount is there once.
#[tokio::test(start_paused = true)]
async fn an_error_after_success_leaves_one_mount() {
    let mut world = World::new();
    let volumes = world.start().await;
    for method in [Method::NodeStageVolume, Method::NodePublishVolume] {
        world.driver.act(method, [Act::FailAfter(13), Act::Break]);
    }
    publish_at_last(&volumes, &volume("v"), "a").await;
    assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
    assert_eq!(world.mounted(ROOT).len(), 1);
    world.driver.assert_lawful("errors after success");
}

#[tokio::test(start_paused = true)]
async fn what_holds_data_at_a_target_stays_and_the_volume_is_not_published_over_it() {
    let mut world = World::new();
    let volumes = world.start().await;
    world.mounts.make_directory(std::path::Path::new("/pods/a")).unwrap();
    world.mounts.write(std::path::Path::new("/pods/a/mount"), b"precious").unwrap();
    let refused = publish(&volumes, &volume("v"), "a").await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("a file of 8 bytes is at the target"), "{said}");
    assert_eq!(world.driver.count(Method::NodePublishVolume), 0);
    assert_eq!(world.mounts.read(std::path::Path::new("/pods/a/mount")).unwrap(), b"precious");
}

/// What is not the volume's is neither mounted over nor handed to a driver, which deletes what it unpublishes.
#[tokio::test(start_paused = true)]
async fn what_others_have_at_a_target_is_neither_published_over_nor_unpublished() {
    use std::path::Path;
    let target = Path::new("/pods/a/mount");
    for stages in [true, false] {
        for foreign in ["a mount", "a directory with a file"] {
            let mut world = World::new();
            world.driver.facts.lock().unwrap().capabilities.node.stage_unstage = stages;
            let volumes = world.start().await;
            world.mounts.make_directory(Path::new("/pods/a")).unwrap();
            world.mounts.make_directory(target).unwrap();
            if foreign == "a mount" {
                let file_system = world.mounts.file_system("ext4", "/dev/other", false);
                world.mounts.mount(file_system, target, false).unwrap();
            } else {
                world.mounts.write(&target.join("file"), b"precious").unwrap();
            }
            let refused = publish(&volumes, &volume("v"), "a").await;
            assert!(refused.is_err(), "{foreign}: {refused:?}");
            unpublish_at_last(&volumes, "v", "a").await;
            gone(&volumes).await;
            for method in [Method::NodePublishVolume, Method::NodeUnpublishVolume] {
                assert_eq!(world.driver.count(method), 0, "{foreign}, {method:?}");
            }
            if foreign == "a mount" {
                assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
            } else {
                assert_eq!(world.mounts.read(&target.join("file")).unwrap(), b"precious");
            }
            world.driver.assert_lawful(foreign);
        }
    }
}

/// A mount that goes behind the back of everybody is made again, and those who watch are told.
#[tokio::test(start_paused = true)]
async fn a_lost_mount_is_noticed_and_healed() {
    for lost in ["/pods/a/mount", "staging"] {
        let mut world = World::new();
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        let path = if lost == "staging" { world.mounted(ROOT)[0].clone() } else { lost.to_owned() };
        let mut changes = volumes.watch();
        assert!(world.mounts.detach(std::path::Path::new(&path)));
        let mut told = false;
        loop {
            let change = next(&mut changes).await;
            match change.kind {
                volume_manager::node::ChangeKind::MountLost(_) => told = true,
                volume_manager::node::ChangeKind::Published(_) => break,
                _ => {}
            }
        }
        assert!(told);
        assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
        assert_eq!(world.mounted(ROOT).len(), 1);
        world.driver.assert_lawful("healing");
    }
}

/// Anchors (f) 15: a FUSE server that dies leaves the mount table as it is; it is noticed by looking, and healed.
#[tokio::test(start_paused = true)]
async fn a_mount_whose_server_died_is_noticed_and_healed() {
    let mut world = World::new();
    world.driver.fs_type = "fuse.example";
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let mut changes = volumes.watch();
    world.mounts.kill(world.driver.file_system("v"), 107);
    let mut told = false;
    loop {
        let change = next(&mut changes).await;
        match change.kind {
            volume_manager::node::ChangeKind::MountLost(_) => told = true,
            volume_manager::node::ChangeKind::Published(_) => break,
            _ => {}
        }
    }
    assert!(told);
    assert_eq!(world.driver.count(Method::NodeStageVolume), 2);
    world.driver.assert_lawful("a dead server");
}

fn device() -> std::sync::Arc<volume_manager::driver::VolumeSpec> {
    use volume_manager::driver::{Access, AccessMode, VolumeSpec};
    let builder = VolumeSpec::builder(key("v"), Access::Block, AccessMode::SingleNodeWriter);
    std::sync::Arc::new(builder.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_block_volume_is_a_device_at_its_target_and_nothing_is_left_of_it() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &device(), "a").await.unwrap();
    unpublish_at_last(&volumes, "v", "a").await;
    gone(&volumes).await;
    world.assert_clean("a device").await;
    world.driver.assert_lawful("a device");
}

/// Anchors (f) 23: a leftover file where a device is expected is refused, before the call and after it
/// (longhorn/longhorn#8009).
#[tokio::test(start_paused = true)]
async fn a_file_where_a_device_should_be_is_never_taken_for_one() {
    let target = std::path::Path::new("/pods/a/mount");
    for (bytes, expected) in [(&b"leftover"[..], "a file of 8 bytes"), (b"", "a file of 0 bytes")] {
        let mut world = World::new();
        let volumes = world.start().await;
        world.mounts.make_directory(std::path::Path::new("/pods/a")).unwrap();
        world.mounts.write(target, bytes).unwrap();
        world.driver.act(Method::NodePublishVolume, [Act::Lie; 2]);
        let said = publish(&volumes, &device(), "a").await.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        assert_eq!(world.mounts.read(target).unwrap(), bytes);
        let called = world.driver.count(Method::NodePublishVolume);
        assert_eq!(called > 0, bytes.is_empty(), "a file with data is not even shown to the driver");
        world.kill().await;
    }
}

/// Anchors (f) 12: what is staged is not taken from under somebody else's bind, which is told.
#[tokio::test(start_paused = true)]
async fn a_foreign_bind_of_the_staging_holds_it_until_it_goes() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let staging = world.mounted(ROOT).remove(0);
    let foreign = std::path::Path::new("/elsewhere");
    world.mounts.make_directory(foreign).unwrap();
    world.mounts.bind_over(std::path::Path::new(&staging), foreign, false).unwrap();
    unpublish_at_last(&volumes, "v", "a").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 0);
    let said = volumes.explain(&key("v")).await.unwrap().unwrap().to_string();
    assert!(said.contains("foreign bind") && said.contains("/elsewhere"), "{said}");
    assert!(world.mounts.detach(foreign));
    gone(&volumes).await;
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 1);
    world.driver.assert_lawful("a foreign bind");
}

/// Anchors (f) 5: a stage that timed out and succeeds later is undone when its consumer is gone (K#82190).
#[tokio::test(start_paused = true)]
async fn a_stage_that_timed_out_is_undone_when_nobody_wants_it() {
    let mut world = World::new();
    let volumes = world.start().await;
    world.driver.act(Method::NodeStageVolume, [Act::Break, Act::Fail(10)]);
    let waiting = tokio::spawn({
        let volumes = volumes.clone();
        async move { publish(&volumes, &volume("v"), "a").await }
    });
    while world.driver.count(Method::NodeStageVolume) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unpublish_at_last(&volumes, "v", "a").await;
    assert!(matches!(waiting.await.unwrap(), Err(PublishError::Released { .. })));
    gone(&volumes).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.driver.count(Method::NodePublishVolume), 0);
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 1);
    world.assert_clean("a late stage").await;
    world.driver.assert_lawful("a late stage");
}

/// Anchors (f) 10: what was attached under one id of the node is detached under it, whatever the driver says later.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_called_otherwise_is_detached_under_the_old_id() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.driver.facts.lock().unwrap().node_id = Some("node-2".into());
    drop(volumes);
    world.kill().await;
    let volumes = world.start().await;
    unpublish_at_last(&volumes, "v", "a").await;
    gone(&volumes).await;
    assert_eq!(world.driver.detached_from(), [Some("node-1".to_owned())]);
}
