//! Drivers whose responses do not match their effects.

use std::time::Duration;

use csi_proto::Method;
use volume_manager::node::PublishError;

use super::driver::Act;
use super::world::*;

/// An OK with a missing or wrong mount is not a success.
#[tokio::test(start_paused = true)]
async fn false_ok_without_a_mount_is_retried() {
    for act in [Act::FalseOk, Act::Another, Act::Twice] {
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

/// An OK while the volume is still mounted is not a success, and nothing below it is removed (moosefs/moosefs-csi#34).
#[tokio::test(start_paused = true)]
async fn an_ok_while_it_is_still_mounted_is_not_believed() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.driver.act(Method::NodeUnpublishVolume, [Act::FalseOk, Act::FalseOk]);
    world.driver.act(Method::NodeUnstageVolume, [Act::FalseOk]);
    let first = volumes.unpublish(&key("v"), &id("a")).await;
    assert!(first.is_err(), "{first:?}");
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 0);
    unpublish_at_last(&volumes, "v", "a").await;
    removed(&volumes).await;
    assert_eq!(world.driver.count(Method::NodeUnpublishVolume), 3);
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 2);
    world.assert_clean("false OKs during teardown").await;
    world.driver.assert_lawful("false OKs during teardown");
}

/// A mount that is left although no call was made is not called the answer of one.
#[tokio::test(start_paused = true)]
async fn mount_without_a_call_is_not_reported_as_ok() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    world.kill().await;
    world.change_boot_id();
    let volumes = world.start_without_driver(world.parts()).await;
    let (key, consumer) = (key("v"), id("a"));
    let (unpublished, ()) = tokio::join!(volumes.unpublish(&key, &consumer), world.register(&volumes));
    let error = unpublished.unwrap_err().to_string();
    assert!(error.contains("NodeUnpublishVolume: call blocked: the path is still mounted"), "{error}");
    assert!(error.contains("unmount it"), "{error}");
    assert_eq!(world.driver.count(Method::NodeUnpublishVolume), 0);
}

/// A call that returned an error after it took effect is repeated, and the volume is mounted once.
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
async fn target_with_data_is_not_published_over() {
    let mut world = World::new();
    let volumes = world.start().await;
    world.mounts.make_directory(std::path::Path::new("/pods/a")).unwrap();
    world.mounts.write(std::path::Path::new("/pods/a/mount"), b"precious").unwrap();
    let refused = publish(&volumes, &volume("v"), "a").await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("found a file of 8 bytes at target"), "{said}");
    assert_eq!(world.driver.count(Method::NodePublishVolume), 0);
    assert_eq!(world.mounts.read(std::path::Path::new("/pods/a/mount")).unwrap(), b"precious");
}

/// Foreign content at a target is neither mounted over nor passed to a driver, which deletes it on unpublish.
#[tokio::test(start_paused = true)]
async fn foreign_mount_at_a_target_is_left_alone() {
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
            removed(&volumes).await;
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

/// A lost mount is mounted again, and watchers are notified.
#[tokio::test(start_paused = true)]
async fn a_lost_mount_is_noticed_and_healed() {
    for lost in ["/pods/a/mount", "staging"] {
        let mut world = World::new();
        let volumes = world.start().await;
        publish(&volumes, &volume("v"), "a").await.unwrap();
        let path = if lost == "staging" { world.mounted(ROOT)[0].clone() } else { lost.to_owned() };
        let mut changes = volumes.watch();
        assert!(world.mounts.detach(std::path::Path::new(&path)));
        let mut notified = false;
        loop {
            let change = next(&mut changes).await;
            match change.kind {
                volume_manager::node::ChangeKind::MountLost(_) => notified = true,
                volume_manager::node::ChangeKind::Published(_) => break,
                _ => {}
            }
        }
        assert!(notified);
        assert_eq!(world.mounted("/pods"), ["/pods/a/mount"]);
        assert_eq!(world.mounted(ROOT).len(), 1);
        world.driver.assert_lawful("healing");
    }
}

/// A FUSE server that dies does not change the mount table; the periodic check finds it, and the volume is mounted
/// again.
#[tokio::test(start_paused = true)]
async fn dead_mount_is_detected_and_restored() {
    let mut world = World::new();
    world.driver.fs_type = "fuse.example";
    let volumes = world.start().await;
    publish(&volumes, &volume("v"), "a").await.unwrap();
    let mut changes = volumes.watch();
    world.mounts.kill(world.driver.file_system("v"), 107);
    let mut notified = false;
    loop {
        let change = next(&mut changes).await;
        match change.kind {
            volume_manager::node::ChangeKind::MountLost(_) => notified = true,
            volume_manager::node::ChangeKind::Published(_) => break,
            _ => {}
        }
    }
    assert!(notified);
    assert_eq!(world.driver.count(Method::NodeStageVolume), 2);
    world.driver.assert_lawful("a dead server");
}

fn device() -> std::sync::Arc<volume_manager::driver::VolumeSpec> {
    use volume_manager::driver::{Access, AccessMode, VolumeSpec};
    let builder = VolumeSpec::builder(key("v"), Access::Block, AccessMode::SingleNodeWriter);
    std::sync::Arc::new(builder.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn block_volume_is_a_device_and_removed_completely() {
    let mut world = World::new();
    let volumes = world.start().await;
    publish(&volumes, &device(), "a").await.unwrap();
    unpublish_at_last(&volumes, "v", "a").await;
    removed(&volumes).await;
    world.assert_clean("a device").await;
    world.driver.assert_lawful("a device");
}

/// A leftover file in place of a device is rejected, before the call and after it (longhorn/longhorn#8009).
#[tokio::test(start_paused = true)]
async fn a_file_where_a_device_should_be_is_never_taken_for_one() {
    let target = std::path::Path::new("/pods/a/mount");
    for (bytes, expected) in [(&b"leftover"[..], "a file of 8 bytes"), (b"", "a file of 0 bytes")] {
        let mut world = World::new();
        let volumes = world.start().await;
        world.mounts.make_directory(std::path::Path::new("/pods/a")).unwrap();
        world.mounts.write(target, bytes).unwrap();
        world.driver.act(Method::NodePublishVolume, [Act::FalseOk; 2]);
        let said = publish(&volumes, &device(), "a").await.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        assert_eq!(world.mounts.read(target).unwrap(), bytes);
        let called = world.driver.count(Method::NodePublishVolume);
        assert_eq!(called > 0, bytes.is_empty(), "a file with data is not even shown to the driver");
        world.kill().await;
    }
}

/// A volume under a foreign bind mount is not unstaged, and the bind is reported.
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
    removed(&volumes).await;
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 1);
    world.driver.assert_lawful("a foreign bind");
}

/// A stage that timed out and succeeds later is undone if its consumer was released (K#82190).
#[tokio::test(start_paused = true)]
async fn timed_out_stage_is_undone_without_consumers() {
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
    removed(&volumes).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.driver.count(Method::NodePublishVolume), 0);
    assert_eq!(world.driver.count(Method::NodeUnstageVolume), 1);
    world.assert_clean("a late stage").await;
    world.driver.assert_lawful("a late stage");
}

/// A volume is detached under the node id of its attach, even if the driver reports another id later.
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
    removed(&volumes).await;
    assert_eq!(world.driver.detached_from(), [Some("node-1".to_owned())]);
}
