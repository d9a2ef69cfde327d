//! The node part of the hostpath driver with real mounts and loop devices. The tests need root; without it, each prints a line.

#![allow(clippy::unwrap_used, reason = "a fixture fails as its test does")]

mod hostpath_fixture;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use csi::node_server::Node;
use csi::volume_capability::AccessType;
use csi_proto::csi::v1 as csi;
use hostpath_fixture::*;
use tonic::{Code, Request};
use volume_manager::mounts::linux::read_table;

/// Returns true if this process may mount; prints a line if not.
fn may_mount(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
    if !root {
        let _ = writeln!(std::io::stderr(), "{test}: not run, since mounting needs root and loop devices");
    }
    root
}

/// Returns true if this process has CAP_SYS_RESOURCE, which root has unless its container removes it.
fn may_grow_mounted_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() >> 24 & 1 == 1
}

fn is_mounted(path: &str) -> bool {
    read_table().unwrap().at(Path::new(path)).is_some()
}

/// Counts the devices backed by a file of this folder. A process that lists devices, such as a concurrent test, briefly holds
/// each device open, and the kernel releases a detached device only afterwards: this function waits for that.
fn loop_devices_below(folder: &Path) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let listed = Command::new("losetup")
            .args(["--list", "--noheadings", "--raw", "--output", "AUTOCLEAR,BACK-FILE"])
            .output()
            .unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let below = |line: &&str| Path::new(line.get(2..).unwrap_or_default().trim()).starts_with(folder);
        let found: Vec<&str> = listed.lines().filter(below).collect();
        if !found.iter().any(|line| line.starts_with('1')) || Instant::now() > end {
            return found.len();
        }
    }
}

#[tokio::test]
async fn does_not_delete_a_volume_with_a_mount_inside() {
    if !may_mount("does_not_delete_a_volume_with_a_mount_inside") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", mount(""), MIB).await;
    let inside = f.state().canonicalize().unwrap().join("data").join(&id).join("tree/inside");
    fs::create_dir(&inside).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).arg(&inside).status().unwrap().success());
    };
    run("mount", &["-t", "tmpfs", "none"]);
    let refused = f.delete(&id).await;
    let record = fs::read_to_string(f.state().join("volumes").join(format!("{id}.json"))).unwrap();
    run("umount", &[]);
    assert!(refused.is_err() && record.contains("\"ready\""), "{refused:?}: {record}");
    f.delete(&id).await.unwrap();
}

#[tokio::test]
async fn directory_lifecycle() {
    if !may_mount("directory_lifecycle") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", mount(""), MIB).await;
    let (staging, target) = (f.directory("staging"), f.path("target"));
    assert_eq!(code(f.publish(&id, (&staging, &target), mount(""), false).await), Code::FailedPrecondition);
    for _ in 0..3 {
        f.stage(&id, &staging, mount("")).await.unwrap();
    }
    for _ in 0..3 {
        f.publish(&id, (&staging, &target), mount(""), false).await.unwrap();
    }
    fs::write(Path::new(&target).join("file"), "x").unwrap();
    assert_eq!(fs::read(Path::new(&staging).join("file")).unwrap(), b"x");
    assert!(f.bytes_at(&id, &target).await.unwrap() > 0);
    assert_eq!(code(f.bytes_at(&id, &f.path("")).await), Code::NotFound);

    assert_eq!(code(f.publish(&id, (&staging, &target), mount(""), true).await), Code::AlreadyExists);
    assert_eq!(code(f.stage(&id, &staging, shared(mount(""))).await), Code::AlreadyExists);
    assert_eq!(code(f.stage(&id, &f.directory("other"), mount("")).await), Code::FailedPrecondition);
    assert_eq!(
        code(f.publish(&id, (&staging, &f.path("second")), mount(""), false).await),
        Code::FailedPrecondition
    );
    assert_eq!(code(f.unstage(&id, &staging).await), Code::FailedPrecondition);
    assert_eq!(code(f.delete(&id).await), Code::FailedPrecondition);

    for _ in 0..2 {
        f.unpublish(&id, &target).await.unwrap();
    }
    assert!(!Path::new(&target).exists(), "the driver removes what it made");
    for _ in 0..2 {
        f.unstage(&id, &staging).await.unwrap();
    }
    assert!(Path::new(&staging).exists() && !is_mounted(&staging), "the caller's directory stays");
    f.delete(&id).await.unwrap();
}

#[tokio::test]
async fn several_targets_share_a_volume_and_one_may_be_read_only() {
    if !may_mount("several_targets_share_a_volume_and_one_may_be_read_only") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", shared(mount("")), MIB).await;
    let (staging, rw, ro) = (f.directory("staging"), f.path("rw"), f.path("ro"));
    f.stage(&id, &staging, shared(mount(""))).await.unwrap();
    f.publish(&id, (&staging, &rw), shared(mount("")), false).await.unwrap();
    f.publish(&id, (&staging, &ro), shared(mount("")), true).await.unwrap();
    fs::write(Path::new(&rw).join("file"), "x").unwrap();
    assert_eq!(fs::read(Path::new(&ro).join("file")).unwrap(), b"x");
    assert_eq!(
        fs::write(Path::new(&ro).join("file"), "y").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    for target in [&rw, &ro] {
        f.unpublish(&id, target).await.unwrap();
    }
    f.unstage(&id, &staging).await.unwrap();
}

#[tokio::test]
async fn never_touches_foreign_files() {
    if !may_mount("never_touches_foreign_files") {
        return;
    }
    let f = Fixture::new();
    let (id, other) = (f.volume("v", mount(""), MIB).await, f.volume("w", mount(""), MIB).await);
    let (staging, target) = (f.directory("staging"), f.path("target"));
    f.stage(&id, &staging, mount("")).await.unwrap();
    assert_eq!(code(f.stage(&other, &staging, mount("")).await), Code::FailedPrecondition);

    let occupied = f.directory("occupied");
    fs::write(Path::new(&occupied).join("precious"), "x").unwrap();
    assert_eq!(code(f.publish(&id, (&staging, &occupied), mount(""), false).await), Code::FailedPrecondition);
    assert_eq!(fs::read(Path::new(&occupied).join("precious")).unwrap(), b"x");

    // A privileged process unmounted it, and another wrote into the bare directory.
    f.publish(&id, (&staging, &target), mount(""), false).await.unwrap();
    Command::new("umount").arg(&target).status().unwrap();
    fs::write(Path::new(&target).join("precious"), "x").unwrap();
    f.unpublish(&id, &target).await.unwrap();
    assert_eq!(fs::read(Path::new(&target).join("precious")).unwrap(), b"x");

    let link = f.path("link");
    std::os::unix::fs::symlink(&occupied, &link).unwrap();
    assert_eq!(code(f.publish(&id, (&staging, &link), mount(""), false).await), Code::InvalidArgument);
    assert_eq!(code(f.publish(&id, (&staging, "relative"), mount(""), false).await), Code::InvalidArgument);
    f.unstage(&other, &staging).await.unwrap();
    assert!(is_mounted(&staging), "unstaging another volume leaves this one");
    f.unstage(&id, &staging).await.unwrap();
}

#[tokio::test]
async fn formats_once_and_grows_online() {
    if !may_mount("formats_once_and_grows_online") {
        return;
    }
    for (fs_type, bytes) in [("ext4", 16 * MIB), ("xfs", 300 * MIB)] {
        let f = Fixture::new();
        let id = f.volume("v", mount(fs_type), bytes).await;
        let (staging, target) = (f.directory("staging"), f.path("target"));
        f.stage(&id, &staging, mount(fs_type)).await.unwrap();
        f.publish(&id, (&staging, &target), mount(fs_type), false).await.unwrap();
        fs::write(Path::new(&target).join("file"), fs_type).unwrap();
        let before = f.bytes_at(&id, &target).await.unwrap();
        let expanded = f.expand(&id, 2 * bytes).await.unwrap();
        assert!(expanded.node_expansion_required && expanded.capacity_bytes == 2 * bytes);
        if fs_type == "ext4" && !may_grow_mounted_ext4() {
            assert_eq!(code(f.expand_on_node(&id, &target).await), Code::FailedPrecondition);
        } else {
            f.expand_on_node(&id, &target).await.unwrap();
            assert!(f.bytes_at(&id, &target).await.unwrap() > before + bytes / 2, "{fs_type}");
        }

        let f = f.restart();
        f.publish(&id, (&staging, &target), mount(fs_type), false).await.unwrap();
        f.unpublish(&id, &target).await.unwrap();
        f.unstage(&id, &staging).await.unwrap();
        assert_eq!(loop_devices_below(&f.state()), 0);
        f.stage(&id, &staging, mount("")).await.unwrap();
        assert_eq!(fs::read_to_string(Path::new(&staging).join("file")).unwrap(), fs_type);
        assert!(f.bytes_at(&id, &staging).await.unwrap() > before + bytes / 2, "{fs_type}");
        f.unstage(&id, &staging).await.unwrap();
        f.delete(&id).await.unwrap();
    }
}

#[tokio::test]
async fn snapshot_of_a_mounted_filesystem_is_consistent() {
    if !may_mount("snapshot_of_a_mounted_filesystem_is_consistent") {
        return;
    }
    for (fs_type, bytes) in [("ext4", 16 * MIB), ("xfs", 300 * MIB)] {
        let f = Fixture::new();
        let id = f.volume("v", mount(fs_type), bytes).await;
        let (staging, second) = (f.directory("staging"), f.directory("second"));
        f.stage(&id, &staging, mount(fs_type)).await.unwrap();
        fs::write(Path::new(&staging).join("file"), "not synced").unwrap();
        let snapshot = f.snapshot("s", &id).await.unwrap().snapshot_id;
        fs::write(Path::new(&staging).join("file"), "written after").unwrap();

        let request = from_snapshot(volume_request("r", mount(fs_type), 2 * bytes), &snapshot);
        let restored = f.create(request).await.unwrap().volume_id;
        f.stage(&restored, &second, mount(fs_type)).await.unwrap();
        assert_eq!(fs::read_to_string(Path::new(&second).join("file")).unwrap(), "not synced");
        let (small, large) =
            (f.bytes_at(&id, &staging).await.unwrap(), f.bytes_at(&restored, &second).await.unwrap());
        assert!(large > small + bytes / 2, "{fs_type}: the filesystem fills the larger volume");
        f.unstage(&restored, &second).await.unwrap();
        f.unstage(&id, &staging).await.unwrap();
    }
}

#[tokio::test]
async fn publishes_a_block_device_without_formatting() {
    if !may_mount("publishes_a_block_device_without_formatting") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", block(), 4 * MIB).await;
    let (staging, target) = (f.directory("staging"), f.path("device"));
    f.stage(&id, &staging, block()).await.unwrap();
    f.publish(&id, (&staging, &target), block(), false).await.unwrap();
    f.publish(&id, (&staging, &target), block(), false).await.unwrap();
    assert!(fs::metadata(&target).unwrap().file_type().is_block_device());
    let device = fs::OpenOptions::new().read(true).write(true).open(&target).unwrap();
    device.write_all_at(b"raw data", 8192).unwrap();
    let snapshot = f.snapshot("s", &id).await.unwrap().snapshot_id;
    drop(device);
    assert_eq!(f.bytes_at(&id, &target).await.unwrap(), 4 * MIB);
    f.expand(&id, 8 * MIB).await.unwrap();
    f.expand_on_node(&id, &target).await.unwrap();
    let sectors = Command::new("blockdev").args(["--getsize64", &target]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&sectors.stdout).trim(), (8 * MIB).to_string());
    f.unpublish(&id, &target).await.unwrap();
    assert!(!Path::new(&target).exists());
    f.unstage(&id, &staging).await.unwrap();
    assert_eq!(loop_devices_below(&f.state()), 0);

    // Unknown data is kept: a request for a filesystem does not destroy it.
    let copy =
        f.create(from_snapshot(volume_request("copy", block(), 4 * MIB), &snapshot)).await.unwrap().volume_id;
    assert_eq!(code(f.stage(&copy, &staging, mount("ext4")).await), Code::FailedPrecondition);
    assert_eq!(loop_devices_below(&f.state()), 0, "a failed staging leaves nothing");
    f.stage(&copy, &staging, block()).await.unwrap();
    let image = f.state().join("data").join(&copy).join("disk.img");
    let mut found = [0; 8];
    fs::File::open(&image).unwrap().read_exact_at(&mut found, 8192).unwrap();
    assert_eq!(&found, b"raw data");
    f.unstage(&copy, &staging).await.unwrap();
}

#[tokio::test]
async fn remounts_on_request_after_a_reboot() {
    if !may_mount("remounts_on_request_after_a_reboot") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", mount("ext4"), 16 * MIB).await;
    let (staging, target) = (f.directory("staging"), f.path("target"));
    f.stage(&id, &staging, mount("ext4")).await.unwrap();
    f.publish(&id, (&staging, &target), mount("ext4"), false).await.unwrap();
    fs::write(Path::new(&target).join("file"), "x").unwrap();
    // A reboot removes mounts and loop devices, and leaves the files of the driver.
    for path in [&target, &staging] {
        assert!(Command::new("umount").arg(path).status().unwrap().success());
    }
    let image = f.state().canonicalize().unwrap().join("data").join(&id).join("disk.img");
    let devices = Command::new("losetup")
        .args(["--noheadings", "--output", "NAME", "--associated"])
        .arg(&image)
        .output()
        .unwrap();
    let device = String::from_utf8(devices.stdout).unwrap();
    assert!(Command::new("losetup").args(["--detach", device.trim()]).status().unwrap().success());

    let f = f.restart();
    let health = csi::NodeGetVolumeHealthRequest { volume_id: id.clone(), ..Default::default() };
    let health =
        answer(f.service.node_get_volume_health(Request::new(health)).await).unwrap().volume_health.unwrap();
    assert_eq!(health.health_statuses.len(), 2, "{health:?}");
    // A process that reads the detached device, as udev does, briefly holds it: the call returns ABORTED, and the test retries
    // as a sidecar does.
    let staged = async {
        loop {
            match f.stage(&id, &staging, mount("ext4")).await {
                Err(status) if status.code() == Code::Aborted => tokio::task::yield_now().await,
                staged => return staged,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), staged).await.unwrap().unwrap();
    f.publish(&id, (&staging, &target), mount("ext4"), false).await.unwrap();
    assert_eq!(fs::read(Path::new(&target).join("file")).unwrap(), b"x");
    f.unpublish(&id, &target).await.unwrap();
    f.unstage(&id, &staging).await.unwrap();
}

#[tokio::test]
async fn failed_mount_returns_the_tools_message() {
    if !may_mount("failed_mount_returns_the_tools_message") {
        return;
    }
    let f = Fixture::new();
    let id = f.volume("v", mount("ext4"), 16 * MIB).await;
    let staging = f.directory("staging");
    let mut capability = mount("ext4");
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = vec!["no_such_flag".to_owned()];
    }
    let status = f.stage(&id, &staging, capability).await.unwrap_err();
    assert!(
        status.message().contains("mount failed") && status.message().contains("wrong fs type"),
        "{status}"
    );
    assert_eq!(loop_devices_below(&f.state()), 0);
    f.stage(&id, &staging, mount("ext4")).await.unwrap();
    f.unstage(&id, &staging).await.unwrap();
}
