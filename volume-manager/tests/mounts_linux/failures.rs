//! Storage that dies or does not answer.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::fuse::{FuseServer, Manner};
use super::ground::*;
use super::{judge, probe};
use volume_manager::mounts::linux::{LinuxMounts, Settings};
use volume_manager::mounts::*;

/// Anchors (f) 15: the server of a FUSE mount is killed under a live consumer. It is seen, and the mount can be taken away.
#[tokio::test]
async fn the_death_of_a_fuse_server_is_seen() {
    let Some(directory) = private("failures::the_death_of_a_fuse_server_is_seen") else { return };
    let mounts = mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Answers);
    let wish = Expectation::file_system(&place);
    assert_eq!(judge(&mounts, &wish).await, Verdict::AsExpected);
    server.kill();
    let within = mounts.inspect(&place.join("file")).await;
    assert!(matches!(within, Err(Trouble::Io { .. })), "no mount is there: {within:?}");
    let table = mounts.table().await.unwrap();
    let mount = table.at(&place).map(|mount| mount.id);
    assert!(mount.is_some(), "the table knows nothing of it");
    let seen = mounts.inspect(&place).await.unwrap();
    assert_eq!(seen.presence, Presence::Dead { errno: 107 });
    assert_eq!(seen.mount, mount);
    assert_eq!(judge(&mounts, &wish).await, Verdict::DeadMount { errno: 107 });
    let removal = SafeRemoval::new(&place).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));
    unmount(&place);
    assert_eq!(mounts.remove(&removal).await.unwrap(), Removed::Removed);
}

/// Anchors (f) 15: a driver whose storage is out of reach for a while is as healthy as ever, and its mount is not dead.
#[tokio::test]
async fn an_error_of_a_live_server_does_not_make_its_mount_dead() {
    let Some(directory) = private("failures::an_error_of_a_live_server_does_not_make_its_mount_dead") else {
        return;
    };
    let mounts = mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let _server = FuseServer::start(&place, Manner::Fails);
    match mounts.inspect(&place).await {
        Err(Trouble::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(5)),
        other => panic!("{other:?}"),
    }
}

/// Anchors (f) 14: a FUSE server that never answers costs one process. Meanwhile 50 volumes are published and unpublished.
#[tokio::test]
async fn a_server_that_never_answers_delays_no_other_volume() {
    let Some(directory) = private("failures::a_server_that_never_answers_delays_no_other_volume") else {
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
        assert_eq!(judge(&mounts, &Expectation::file_system(&target)).await, Verdict::AsExpected);
        unmount(&target);
        mounts.remove(&SafeRemoval::new(&target).unwrap()).await.unwrap();
    }
    assert!(!hanging.is_finished(), "the one that hangs has waited all the while");
    // Who gives up waiting leaves no process.
    hanging.abort();
    assert!(hanging.await.unwrap_err().is_cancelled());
    until("no probe is left", || children() == 1).await;
    drop(server);
}

/// Anchors (f) 14: what hangs is told as hanging after the deadline, can be unmounted, and leaves nothing.
#[tokio::test]
async fn a_server_that_never_answers_is_told_and_unmounted() {
    let Some(directory) = private("failures::a_server_that_never_answers_is_told_and_unmounted") else {
        return;
    };
    let mounts = impatient_mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    let wish = Expectation::file_system(&place);
    assert_eq!(judge(&mounts, &wish).await, Verdict::Unreachable);
    assert_eq!(mounts.hung_processes(), 0, "the kernel lets go of who waits for FUSE");
    assert_eq!(children(), 1, "the server alone");
    unmount(&place);
    let left = Verdict::Leftover(Presence::Directory);
    assert_eq!(judge(&mounts, &Expectation::nothing(&place)).await, left);
    drop(server);
    assert_eq!(children(), 0);
}

/// Anchors (f) 14: who was heard and not answered cannot be killed. It costs one process, until the mount is taken by force.
#[tokio::test]
async fn a_server_that_falls_silent_costs_one_process_until_it_is_unmounted_by_force() {
    let Some(directory) =
        private("failures::a_server_that_falls_silent_costs_one_process_until_it_is_unmounted_by_force")
    else {
        return;
    };
    let mounts = impatient_mounts().await;
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Silent);
    for _ in 0..100 {
        assert_eq!(mounts.inspect(&place).await.unwrap().presence, Presence::Hung);
    }
    assert_eq!((mounts.hung_processes(), children()), (1, 2), "the server, and one probe");
    // As an operator does it: first what waits for the server fails, and then nothing holds the mount any more.
    let force = Command::new("umount").arg("--force").arg(&place).status().unwrap().success();
    until("the probe has let go", || mounts.hung_processes() == 0).await;
    if !force {
        unmount(&place);
    }
    let left = Verdict::Leftover(Presence::Directory);
    assert_eq!(judge(&mounts, &Expectation::nothing(&place)).await, left);
    drop(server);
}

/// Anchors (f) 14: who writes to a frozen file system cannot even be killed. It costs one process until the thaw.
#[tokio::test]
async fn a_frozen_file_system_costs_one_process() {
    let Some(directory) = private("failures::a_frozen_file_system_costs_one_process") else { return };
    let mounts = impatient_mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let disk = directory.join("frozen");
    mount_device(&device.0, &disk);
    let frozen = Frozen::freeze(&disk);
    let new = disk.join("new");
    let hung = |result: Result<(), CreateError>| {
        assert!(matches!(result, Err(CreateError::Trouble(Trouble::Hung { .. }))), "{result:?}");
    };
    hung(make(&mounts, &new).await);
    assert_eq!((mounts.hung_processes(), children()), (1, 1));
    for _ in 0..100 {
        hung(make(&mounts, &new).await);
    }
    assert_eq!((mounts.hung_processes(), children()), (1, 1), "on the same path nothing more is tried");
    let healthy = directory.join("healthy");
    make(&mounts, &healthy).await.unwrap();
    drop(frozen);
    until("the process ends with the thaw", || mounts.hung_processes() == 0 && children() == 0).await;
    make(&mounts, &new).await.unwrap();
    unmount(&disk);
}

/// Anchors (f) 14: however many paths of one storage are asked for, it costs a quarter of the processes that may be lost, and
/// other storages have theirs.
#[tokio::test]
async fn a_frozen_file_system_does_not_use_up_what_others_may_lose() {
    let Some(directory) = private("failures::a_frozen_file_system_does_not_use_up_what_others_may_lose")
    else {
        return;
    };
    let settings = Settings { deadline: Duration::from_secs(2), hung_processes: 8, ..Settings::default() };
    let mounts = LinuxMounts::open(probe_command(), settings).await.unwrap();
    let device = LoopDevice::with_ext4(&directory);
    let disk = directory.join("frozen");
    mount_device(&device.0, &disk);
    let frozen = Frozen::freeze(&disk);
    for path in 0..20 {
        let created = make(&mounts, &disk.join(path.to_string())).await;
        assert!(matches!(created, Err(CreateError::Trouble(Trouble::Hung { .. }))), "{created:?}");
    }
    assert_eq!((mounts.hung_processes(), children()), (2, 2));
    let healthy = directory.join("healthy");
    make(&mounts, &healthy).await.unwrap();
    drop(frozen);
    until("the processes end with the thaw", || mounts.hung_processes() == 0 && children() == 0).await;
    unmount(&disk);
}

/// Anchors (f) 14: nobody waits for ever for a turn, however many hang before.
#[tokio::test]
async fn who_gets_no_turn_is_told_so() {
    let Some(directory) = private("failures::who_gets_no_turn_is_told_so") else { return };
    let settings = Settings { deadline: Duration::from_secs(2), running_processes: 1, ..Settings::default() };
    let mounts = LinuxMounts::open(probe_command(), settings).await.unwrap();
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    // Each takes a deadline, one after the other, and there are more of them than deadlines are waited for.
    let count = 2 * Settings::DEADLINES_FOR_A_TURN;
    let asked = (0..count).map(|file| {
        let (mounts, path) = (mounts.clone(), place.join(file.to_string()));
        tokio::spawn(async move { mounts.inspect(&path).await })
    });
    let asked: Vec<_> = asked.collect();
    let (mut hung, mut crowded) = (0, 0);
    for answer in asked {
        match answer.await.unwrap() {
            Ok(Inspection { presence: Presence::Hung, .. }) => hung += 1,
            Err(Trouble::Crowded { .. }) => crowded += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(hung > 0 && crowded > 0 && hung + crowded == count, "{hung} hung and {crowded} crowded");
    assert_eq!(mounts.inspect(&directory).await.unwrap().presence, Presence::Directory);
    drop(server);
}

/// A probe must not act after its parent is gone: its late removal would meet the targets of the next.
#[tokio::test]
async fn a_probe_that_hangs_ends_with_its_parent() {
    let Some(directory) = private("failures::a_probe_that_hangs_ends_with_its_parent") else { return };
    let place = directory.join("fuse");
    fs::create_dir(&place).unwrap();
    let server = FuseServer::start(&place, Manner::Deaf);
    let path = place.as_os_str();
    let arguments = [OsStr::new(probe::MARKER), "600000".as_ref(), "inspect".as_ref(), path];
    let command = probe_command();
    let mut child = Command::new(command.program)
        .args(command.arguments)
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

/// Anchors (f) 24: a call whose caller goes away at any moment leaves no process and no half-made wish.
#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_process() {
    let Some(directory) = private("failures::a_call_that_is_dropped_leaves_no_process") else { return };
    let mounts = mounts().await;
    for turn in 0..40u32 {
        let place = directory.join(format!("place-{turn}"));
        let call = make(&mounts, &place);
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(turn) * 300), call).await;
    }
    until("no probe is left", || children() == 0 && mounts.hung_processes() == 0).await;
    make(&mounts, &directory.join("place-0")).await.unwrap();
}

/// Waits for what comes about without telling.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let come_about = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), come_about).await;
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
