//! Storage that dies or hangs.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::fixture::*;
use super::fuse::{FuseServer, Manner};
use super::{check, probe};
use volume_manager::advanced::mounts::*;
use volume_manager::mounts::linux::{LinuxMounts, MountSettings};
use volume_manager::mounts::*;

/// Kills the server of a FUSE mount below an active consumer. The loss is detected, and the mount can be unmounted.
#[tokio::test]
async fn detects_a_killed_fuse_server() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Answers);
    let expectation = Expectation::file_system(&place);
    assert_eq!(check(&mounts, &expectation).await, MountCheck::AsExpected);
    server.kill();
    let within = mounts.inspect(&place.join("file")).await;
    assert!(matches!(within, Err(ProbeError::Io { .. })), "not a mount point: {within:?}");
    let table = mounts.table().await.unwrap();
    let mount = table.at(&place).map(|mount| mount.id);
    assert!(mount.is_some(), "the table does not show it");
    let seen = mounts.inspect(&place).await.unwrap();
    assert_eq!(seen.state, PathState::Dead { errno: 107 });
    assert_eq!(seen.mount, mount);
    assert_eq!(check(&mounts, &expectation).await, MountCheck::DeadMount { errno: 107 });
    let removal = SafeRemoval::new(&place).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));
    unmount(&place);
    assert_eq!(mounts.remove(&removal).await.unwrap(), Removed::Removed);
}

/// A driver whose storage is temporarily unreachable is healthy, and its mount is not dead.
#[tokio::test]
async fn temporary_error_does_not_make_a_mount_dead() {
    let Some(directory) = private() else {
        return;
    };
    let mounts = mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let _server = FuseServer::start(&place, Manner::Fails);
    match mounts.inspect(&place).await {
        Err(ProbeError::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(5)),
        other => panic!("{other:?}"),
    }
}

/// A FUSE server that never responds costs one process. Meanwhile 50 volumes are published and unpublished.
#[tokio::test]
async fn hanging_server_does_not_delay_other_volumes() {
    let Some(directory) = private() else {
        return;
    };
    let mounts = mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    let hanging = tokio::spawn({
        let (mounts, place) = (mounts.clone(), place.clone());
        async move { mounts.inspect(&place).await }
    });
    let source = directory.join("source");
    tmpfs(&source).unwrap();
    for volume in 0..50 {
        let target = directory.join(format!("pods/{volume}/mount"));
        make(&mounts, &target).await.unwrap();
        bind(&source, &target);
        assert_eq!(check(&mounts, &Expectation::file_system(&target)).await, MountCheck::AsExpected);
        unmount(&target);
        mounts.remove(&SafeRemoval::new(&target).unwrap()).await.unwrap();
    }
    assert!(!hanging.is_finished(), "the hanging call has not returned");
    // An aborted call leaves no process.
    hanging.abort();
    assert!(hanging.await.unwrap_err().is_cancelled());
    until("no probe is left", || children() == 1).await;
    drop(server);
}

/// A hanging mount is reported after the deadline, can be unmounted, and leaves nothing.
#[tokio::test]
async fn hanging_server_is_reported_and_unmounted() {
    let Some(directory) = private() else {
        return;
    };
    let mounts = short_deadline_mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    let expectation = Expectation::file_system(&place);
    assert_eq!(check(&mounts, &expectation).await, MountCheck::Unreachable);
    assert_eq!(mounts.hung_processes(), 0, "the kernel interrupts waits for FUSE");
    assert_eq!(children(), 1, "the server alone");
    unmount(&place);
    let left = MountCheck::StaleMountPoint(PathState::Directory);
    assert_eq!(check(&mounts, &Expectation::nothing(&place)).await, left);
    drop(server);
    assert_eq!(children(), 0);
}

/// A process with an unanswered request cannot be killed. It costs one process until a forced unmount.
#[tokio::test]
async fn unresponsive_server_costs_one_process_until_forced_unmount() {
    let Some(directory) = private() else {
        return;
    };
    let mounts = short_deadline_mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Unresponsive);
    for _ in 0..100 {
        assert_eq!(mounts.inspect(&place).await.unwrap().state, PathState::Hung);
    }
    assert_eq!((mounts.hung_processes(), children()), (1, 2), "the server, and one probe");
    // The operator's procedure: pending requests fail first, after which the mount is no longer busy.
    let force = Command::new("umount").arg("--force").arg(&place).status().unwrap().success();
    until("the probe exits", || mounts.hung_processes() == 0).await;
    if !force {
        unmount(&place);
    }
    let left = MountCheck::StaleMountPoint(PathState::Directory);
    assert_eq!(check(&mounts, &Expectation::nothing(&place)).await, left);
    drop(server);
}

/// A write to a frozen file system cannot be killed. It costs one process until the thaw.
#[tokio::test]
async fn frozen_file_system_costs_one_process() {
    let Some(directory) = private() else { return };
    let mounts = short_deadline_mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let disk = directory.join("frozen");
    mount_device(&device.0, &disk);
    let frozen = Frozen::freeze(&disk);
    let new = disk.join("new");
    let hung = |result: Result<(), CreateError>| {
        assert!(matches!(result, Err(CreateError::Probe(ProbeError::Hung { .. }))), "{result:?}");
    };
    hung(make(&mounts, &new).await);
    assert_eq!((mounts.hung_processes(), children()), (1, 1));
    for _ in 0..100 {
        hung(make(&mounts, &new).await);
    }
    assert_eq!((mounts.hung_processes(), children()), (1, 1), "no more operations start on the same path");
    let healthy = directory.join("healthy");
    make(&mounts, &healthy).await.unwrap();
    drop(frozen);
    until("the process ends with the thaw", || mounts.hung_processes() == 0 && children() == 0).await;
    make(&mounts, &new).await.unwrap();
    unmount(&disk);
}

/// A single storage occupies at most a quarter of the processes that may hang, however many of its paths are used.
#[tokio::test]
async fn frozen_file_system_is_limited_to_a_quarter() {
    let Some(directory) = private() else {
        return;
    };
    let settings =
        MountSettings { deadline: Duration::from_secs(2), hung_processes: 8, ..MountSettings::default() };
    let mounts = LinuxMounts::open(probe_command(), settings).await.unwrap();
    let device = LoopDevice::with_ext4(&directory);
    let disk = directory.join("frozen");
    mount_device(&device.0, &disk);
    let frozen = Frozen::freeze(&disk);
    for path in 0..20 {
        let created = make(&mounts, &disk.join(path.to_string())).await;
        assert!(matches!(created, Err(CreateError::Probe(ProbeError::Hung { .. }))), "{created:?}");
    }
    assert_eq!((mounts.hung_processes(), children()), (2, 2));
    let healthy = directory.join("healthy");
    make(&mounts, &healthy).await.unwrap();
    drop(frozen);
    until("the processes end with the thaw", || mounts.hung_processes() == 0 && children() == 0).await;
    unmount(&disk);
}

/// The time in the queue is bounded, regardless of the number of hanging operations.
#[tokio::test]
async fn queued_operation_fails_as_overloaded() {
    let Some(directory) = private() else { return };
    let settings =
        MountSettings { deadline: Duration::from_secs(2), running_processes: 1, ..MountSettings::default() };
    let mounts = LinuxMounts::open(probe_command(), settings).await.unwrap();
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    // Each takes one deadline, one after another, and there are more of them than the queue's deadlines.
    let count = 2 * MountSettings::QUEUE_DEADLINES;
    let asked = (0..count).map(|file| {
        let (mounts, path) = (mounts.clone(), place.join(file.to_string()));
        tokio::spawn(async move { mounts.inspect(&path).await })
    });
    let asked: Vec<_> = asked.collect();
    let (mut hung, mut overloaded) = (0, 0);
    for answer in asked {
        match answer.await.unwrap() {
            Ok(Inspection { state: PathState::Hung, .. }) => hung += 1,
            Err(ProbeError::Overloaded { .. }) => overloaded += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        hung > 0 && overloaded > 0 && hung + overloaded == count,
        "{hung} hung and {overloaded} overloaded"
    );
    assert_eq!(mounts.inspect(&directory).await.unwrap().state, PathState::Directory);
    drop(server);
}

/// A probe must not act after its parent has exited: its late removal could affect the targets of the next one.
#[tokio::test]
async fn hanging_probe_exits_with_its_parent() {
    let Some(directory) = private() else { return };
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    let path = place.as_os_str();
    let arguments = [OsStr::new(probe::MARKER), "600000".as_ref(), "inspect".as_ref(), path];
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(PROBE)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    let hangs = || {
        let tasks = fs::read_dir(&tasks).unwrap().map_while(Result::ok);
        let waits = tasks.map(|task| fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
        waits.into_iter().any(|wait| wait.contains("request_wait_answer") || wait.contains("fuse"))
    };
    until("the probe hangs", hangs).await;
    drop(child.stdin.take());
    let status = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    assert!(!status.success());
    drop(server);
}

/// A call that is dropped at any time leaves no process, and can be repeated.
#[tokio::test]
async fn dropped_call_leaves_no_process() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    for turn in 0..40u32 {
        let place = directory.join(format!("place-{turn}"));
        let call = make(&mounts, &place);
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(turn) * 300), call).await;
    }
    until("no probe is left", || children() == 0 && mounts.hung_processes() == 0).await;
    make(&mounts, &directory.join("place-0")).await.unwrap();
}

/// Polls a condition for at most a minute.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), poll).await;
    assert!(waited.is_ok(), "not within a minute: {what}");
}

struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn freeze(path: &'a Path) -> Self {
        run("fsfreeze", &["--freeze", path.to_str().unwrap()]);
        Self(path)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.0).status();
    }
}
