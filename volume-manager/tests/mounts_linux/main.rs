//! The mounts of Linux, with real mounts in a private namespace. The tests need root; without, each is skipped with a message.
#![cfg(all(feature = "linux", feature = "runtime", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod dead_or_hanging;
mod fixture;
mod fuse;

use std::error::Error as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fixture::*;
use volume_manager::advanced::mounts::*;
use volume_manager::mounts::linux::LinuxMounts;
use volume_manager::mounts::linux::{MountSettings, OpenMountsError, ProbeCommand, probe, read_table};
use volume_manager::mounts::*;

#[test]
#[ignore = "a process of the other tests"]
fn probe_process() {
    let _ = probe::serve(std::env::args_os().skip_while(|argument| argument != probe::MARKER));
}

#[test]
#[ignore = "a process of the other tests"]
fn fuse_server() {
    fuse::serve_if_asked();
}

async fn check(mounts: &dyn Mounts, expectation: &Expectation) -> MountCheck {
    let table = mounts.table().await.unwrap();
    let seen = mounts.inspect(&expectation.path).await.unwrap();
    check_mount(expectation, &table, Some(&seen))
}

async fn identity(mounts: &dyn Mounts, path: &Path) -> MountIdentity {
    MountIdentity::of(mounts.table().await.unwrap().at(path).unwrap())
}

#[tokio::test]
async fn linux_mounts_conform() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let before = mounts.table().await.unwrap().len();
    let place = directory.join("fixture");
    fs::create_dir(&place).unwrap();
    conformance::check(&mounts, &Directory(place.clone())).await.unwrap();
    assert_eq!(mounts.table().await.unwrap().len(), before, "a mount is left");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "an entry is left");
    assert_eq!(children(), 0, "a process is left");
}

#[tokio::test]
async fn table_is_current_after_every_change() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let place = directory.join("place");
    for _ in 0..100 {
        tmpfs(&place).unwrap();
        assert_eq!(*mounts.table().await.unwrap(), read_table().unwrap());
        assert!(mounts.table().await.unwrap().at(&place).is_some());
        rustix::mount::mount_remount(&place, rustix::mount::MountFlags::RDONLY, "").unwrap();
        assert!(mounts.table().await.unwrap().at(&place).unwrap().is_read_only());
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
        assert!(mounts.table().await.unwrap().at(&place).is_none());
    }
    let same = (mounts.table().await.unwrap(), mounts.table().await.unwrap());
    assert!(std::sync::Arc::ptr_eq(&same.0, &same.1), "an unchanged table is not read again");
}

#[tokio::test]
async fn handles_paths_that_the_kernel_escapes() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    for name in ["a b", "back\\slash", "#hash", "-", "\\040"] {
        let place = directory.join(name);
        make(&mounts, &place).await.unwrap();
        tmpfs(&place).unwrap();
        assert_eq!(check(&mounts, &Expectation::file_system(&place)).await, MountCheck::AsExpected);
        unmount(&place);
        let left = MountCheck::StaleMountPoint(PathState::Directory);
        assert_eq!(check(&mounts, &Expectation::nothing(&place)).await, left);
        assert_eq!(mounts.remove(&SafeRemoval::new(&place).unwrap()).await.unwrap(), Removed::Removed);
    }
}

#[tokio::test]
async fn new_directories_have_kubelets_mode() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let deep = directory.join("a/b");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    rustix::process::umask(rustix::fs::Mode::RWXG);
    make(&mounts, &deep).await.unwrap();
    assert_eq!((mode(&deep), mode(&directory.join("a"))), (0o750, 0o750), "whatever the umask");
    fs::set_permissions(&deep, fs::Permissions::from_mode(0o777)).unwrap();
    make(&mounts, &deep).await.unwrap();
    assert_eq!(mode(&deep), 0o777, "an existing directory is unchanged");
}

#[tokio::test]
async fn finds_a_mount_through_a_symlink() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    tmpfs(&directory.join("real/place")).unwrap();
    symlink(directory.join("real"), directory.join("link")).unwrap();
    let linked = directory.join("link/place");
    assert!(mounts.table().await.unwrap().at(&linked).is_none());
    assert_eq!(check(&mounts, &Expectation::file_system(&linked)).await, MountCheck::AsExpected);
    let mount = mounts.inspect(&linked).await.unwrap().mount.unwrap();
    let removal = SafeRemoval::new(&linked).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));
    assert!(mounts.table().await.unwrap().by_id(mount).is_some());
}

/// Detects an OK after which nothing, another device, or a device mounted twice is found, or the mount remains.
#[tokio::test]
async fn detects_wrong_mounts_after_an_ok() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let (staging, target) = (directory.join("staging"), directory.join("target"));
    fs::create_dir(&target).unwrap();
    tmpfs(&staging).unwrap();
    let staged = identity(&mounts, &staging).await;
    let published = Expectation::file_system(&target).identity(staged.clone());
    assert_eq!(check(&mounts, &published).await, MountCheck::NotMounted(PathState::Directory));

    tmpfs(&target).unwrap();
    let found = identity(&mounts, &target).await.device;
    let another = MountCheck::WrongDevice { expected: staged.device, found };
    assert_eq!(check(&mounts, &published).await, another);
    run("umount", &[target.to_str().unwrap()]);

    bind(&staging, &target);
    assert_eq!(check(&mounts, &published).await, MountCheck::AsExpected);
    bind(&staging, &target);
    assert_eq!(check(&mounts, &published).await, MountCheck::StackedMounts { count: 2 });
    run("umount", &[target.to_str().unwrap()]);

    fs::create_dir(staging.join("part")).unwrap();
    run("umount", &[target.to_str().unwrap()]);
    bind(&staging.join("part"), &target);
    let part = MountCheck::WrongRoot { expected: "/".into(), found: "/part".into() };
    assert_eq!(check(&mounts, &published).await, part);
    let MountCheck::StillMounted { mount } = check(&mounts, &Expectation::nothing(&target)).await else {
        panic!("it is still mounted")
    };
    assert_eq!(mounts.inspect(&target).await.unwrap().mount, Some(mount));
}

/// A bind mount within its file system has the same device, and is still detected.
#[tokio::test]
async fn detects_a_bind_within_one_file_system() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let (source, target) = (directory.join("source"), directory.join("target"));
    fs::create_dir_all(&source).unwrap();
    bind(&source, &target);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(&target).unwrap().dev(), fs::metadata(&directory).unwrap().dev());
    assert!(mounts.inspect(&target).await.unwrap().mount.is_some());
    assert!(matches!(
        mounts.remove(&SafeRemoval::new(&target).unwrap()).await,
        Err(RemoveError::Mounted { .. })
    ));
    assert_eq!(check(&mounts, &Expectation::file_system(&target)).await, MountCheck::AsExpected);
}

/// A driver that mounts again on each call, over 100 restarts of a caller that checks first.
#[tokio::test]
async fn restarts_do_not_stack_mounts() {
    let Some(directory) = private() else { return };
    let place = directory.join("target");
    fs::create_dir(&place).unwrap();
    let mut calls = 0;
    for _ in 0..100 {
        let mounts = mounts().await;
        match check(&mounts, &Expectation::file_system(&place)).await {
            MountCheck::NotMounted(_) => {
                tmpfs(&place).unwrap();
                calls += 1;
            }
            MountCheck::AsExpected => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((calls, read_table().unwrap().stack(&place).len()), (1, 1));
    tmpfs(&place).unwrap();
    tmpfs(&place).unwrap();
    let stacked = check(&mounts().await, &Expectation::file_system(&place)).await;
    assert_eq!(stacked, MountCheck::StackedMounts { count: 3 });
}

/// Detects a staging path that another program unmounted, removed, bound elsewhere, or replaced by a file.
#[tokio::test]
async fn detects_external_changes() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let (staging, target) = (directory.join("staging"), directory.join("target"));
    let foreign = directory.join("foreign");
    tmpfs(&staging).unwrap();
    bind(&staging, &target);
    let expectation = Expectation::file_system(&staging).identity(identity(&mounts, &staging).await);
    let known = |path: &Path| path == target;

    assert_eq!(check_unused(&staging, None, &mounts.table().await.unwrap(), known), MountCheck::AsExpected);
    bind(&target, &foreign);
    let table = mounts.table().await.unwrap();
    assert_eq!(
        check_unused(&staging, None, &table, known),
        MountCheck::ForeignBind { mount_points: vec![foreign.clone()] }
    );

    let mut changes = mounts.changes().unwrap();
    run("umount", &[staging.to_str().unwrap()]);
    changes.changed().await.unwrap();
    let after = mounts.table().await.unwrap();
    assert!(after.at(&staging).is_none() && after.at(&target).is_some());
    assert_eq!(check(&mounts, &expectation).await, MountCheck::NotMounted(PathState::Directory));
    let seen = identity(&mounts, &target).await;
    let recorded = check_unused(&staging, Some(&seen), &after, known);
    assert_eq!(recorded, MountCheck::ForeignBind { mount_points: vec![foreign.clone()] });

    fs::remove_dir(&staging).unwrap();
    assert_eq!(check(&mounts, &expectation).await, MountCheck::MissingPath);
    fs::write(&staging, b"").unwrap();
    assert_eq!(check(&mounts, &expectation).await, MountCheck::RegularFileAtTarget { size: 0 });
}

/// The state directory is bind-mounted, and mounts propagate to the bind (aws-ebs-csi-driver#1264).
#[tokio::test]
async fn propagated_copies_are_not_foreign_binds() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let (disk, state) = (directory.join("disk"), directory.join("state"));
    tmpfs(&disk).unwrap();
    run("mount", &["--make-shared", disk.to_str().unwrap()]);
    fs::create_dir(disk.join("kubelet")).unwrap();
    bind(&disk.join("kubelet"), &state);
    let (staging, target) = (state.join("staging"), state.join("target"));
    tmpfs(&staging).unwrap();
    bind(&staging, &target);
    let table = mounts.table().await.unwrap();
    assert!(table.at(&disk.join("kubelet/staging")).is_some(), "every mount appears twice");
    assert_eq!(check_unused(&staging, None, &table, |path| path == target), MountCheck::AsExpected);
    assert_eq!(check(&mounts, &Expectation::file_system(&staging)).await, MountCheck::AsExpected);

    let foreign = directory.join("foreign");
    bind(&staging, &foreign);
    let table = mounts.table().await.unwrap();
    let binds = check_unused(&staging, None, &table, |path| path == target);
    assert_eq!(binds, MountCheck::ForeignBind { mount_points: vec![foreign] });
}

/// Two mounts of one file system by two volumes are distinguished by path (csi-driver-smb#353).
#[tokio::test]
async fn two_volumes_on_one_file_system_are_independent() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let (one, two) = (directory.join("one"), directory.join("two"));
    mount_device(&device.0, &one);
    mount_device(&device.0, &two);
    let expectation = |path: &PathBuf| Expectation::file_system(path);
    let shared = identity(&mounts, &one).await;
    assert_eq!(identity(&mounts, &two).await, shared);
    for path in [&one, &two] {
        assert_eq!(check(&mounts, &expectation(path).identity(shared.clone())).await, MountCheck::AsExpected);
    }
    let table = mounts.table().await.unwrap();
    assert_eq!(check_unused(&one, None, &table, |path| path == two), MountCheck::AsExpected);
    assert_eq!(check_unused(&two, None, &table, |path| path == one), MountCheck::AsExpected);
    unmount(&one);
    assert_eq!(check(&mounts, &expectation(&one)).await, MountCheck::NotMounted(PathState::Directory));
    assert_eq!(check(&mounts, &expectation(&two)).await, MountCheck::AsExpected);
    unmount(&two);
}

/// After an OK to an unpublish the target is still mounted, and no removal deletes a canary.
#[tokio::test]
async fn never_removes_data() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let (volume, target) = (directory.join("volume"), directory.join("target"));
    fs::create_dir_all(volume.join("deep/deeper")).unwrap();
    fs::create_dir_all(&target).unwrap();
    let canaries = [volume.join("canary"), volume.join("deep/deeper/canary"), target.join("under")];
    for canary in &canaries {
        fs::write(canary, b"alive").unwrap();
    }
    // On the same file system, so that the device does not differ.
    bind(&volume, &target);
    let removed = mounts.remove(&SafeRemoval::new(&target).unwrap()).await;
    assert!(matches!(removed, Err(RemoveError::Mounted { .. })), "{removed:?}");
    for inner in ["canary", "deep", "deep/deeper/canary"] {
        let removed = mounts.remove(&SafeRemoval::new(target.join(inner)).unwrap()).await;
        assert!(
            matches!(removed, Err(RemoveError::NotEmpty { .. } | RemoveError::HasData { .. })),
            "{removed:?}"
        );
    }
    unmount(&target);
    let removed = mounts.remove(&SafeRemoval::new(&target).unwrap()).await;
    let Err(RemoveError::NotEmpty { count: 1, first, .. }) = removed else { panic!("{removed:?}") };
    assert_eq!(first, "under");

    let link = directory.join("link");
    symlink(&volume, &link).unwrap();
    let removed = mounts.remove(&SafeRemoval::new(&link).unwrap()).await;
    assert!(
        matches!(removed, Err(RemoveError::NotRemovable { found: PathState::Symlink, .. })),
        "{removed:?}"
    );
    for canary in &canaries {
        assert_eq!(fs::read(canary).unwrap(), b"alive");
    }
}

/// A stale file is not taken for a device, neither for use nor for removal.
#[tokio::test]
async fn rejects_a_file_in_place_of_a_device() {
    let Some(directory) = private() else { return };
    let mounts = mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let target = directory.join("target");
    let any = Expectation::block_device(&target);
    assert_eq!(check(&mounts, &any).await, MountCheck::MissingPath);
    fs::write(&target, b"").unwrap();
    assert_eq!(check(&mounts, &any).await, MountCheck::RegularFileAtTarget { size: 0 });

    rustix::mount::mount_bind(&device.0, &target).unwrap();
    let PathState::BlockDevice(number) = mounts.inspect(&target).await.unwrap().state else {
        panic!("a device")
    };
    assert_eq!(check(&mounts, &any.clone().device(number)).await, MountCheck::AsExpected);
    let other = DeviceNumber { minor: number.minor + 1, ..number };
    let another = MountCheck::WrongDevice { expected: other, found: number };
    assert_eq!(check(&mounts, &any.clone().device(other)).await, another);
    let removal = SafeRemoval::new(&target).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));

    unmount(&target);
    fs::write(&target, b"meant for a device").unwrap();
    assert_eq!(check(&mounts, &any).await, MountCheck::RegularFileAtTarget { size: 18 });
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::HasData { size: 18, .. })));
    assert_eq!(fs::read(&target).unwrap(), b"meant for a device");
}

/// A program whose main does not serve probes: appends a line to a file, and opens the mounts.
#[tokio::test]
#[ignore = "a process of the other tests"]
async fn forgetful_program() {
    let Some(file) = std::env::var_os("FORGETFUL_PROGRAM") else { return };
    let mut starts = fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    starts.write_all(b"started\n").unwrap();
    let mut command = ProbeCommand::new(std::env::current_exe().unwrap());
    if std::env::var_os("FORGETFUL_ARGUMENTS").is_some() {
        command = FORGETFUL.into_iter().fold(command, ProbeCommand::argument);
    }
    let opened = LinuxMounts::open(command, MountSettings::default()).await;
    println!("{}", opened.unwrap_err());
}

/// The arguments with which the test program is the forgetful one.
const FORGETFUL: [&str; 5] = ["forgetful_program", "--exact", "--ignored", "--nocapture", "--"];

/// A program that does not serve probes gets an error, and starts no process; if it cannot be recognized, its first process
/// starts no other.
#[test]
fn program_that_does_not_serve_probes_starts_no_chain() {
    let cases = [(false, "is this program itself", 1), (true, "does not work", 2)];
    for (has_arguments, error, expected_starts) in cases {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("starts");
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(FORGETFUL).env("FORGETFUL_PROGRAM", &file);
        if has_arguments {
            program.env("FORGETFUL_ARGUMENTS", "");
        }
        let output = program.output().unwrap();
        let (printed, starts) = (String::from_utf8_lossy(&output.stdout), fs::read_to_string(&file).unwrap());
        assert!(printed.contains(error) && printed.contains("probe::serve_if_asked"), "{output:?}");
        assert_eq!(starts.lines().count(), expected_starts, "{printed}");
    }
}

#[tokio::test]
async fn program_without_probe_is_an_error() {
    for (program, wanted) in [
        ("/bin/true", "without an answer"),
        ("/nowhere/probe", "No such file"),
        ("/bin/cat", "without an answer"),
    ] {
        let opened = LinuxMounts::open(ProbeCommand::new(program), MountSettings::default()).await;
        let printed = format!("{opened:?}");
        assert!(printed.contains("its main must call probe::serve_if_asked first"), "{printed}");
        assert!(printed.contains(wanted), "{printed}");
        let Err(OpenMountsError::Probe(error)) = opened else { panic!("{program}: {printed}") };
        let cause = error.source().expect("a cause").to_string();
        assert!(cause.contains(wanted), "{error}: {cause}");
    }
}
