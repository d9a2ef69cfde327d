//! The mounts of Linux, with real mounts in a namespace of their own. It needs root; without, each test says so.
#![cfg(all(feature = "linux", feature = "runtime", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod failures;
mod fuse;
mod ground;

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ground::*;
use volume_manager::mounts::linux::{OpenError, ProbeCommand, Settings, probe, read_table};
use volume_manager::mounts::{linux::LinuxMounts, *};

#[test]
#[ignore = "a process that the other tests start"]
fn probe_process() {
    let _ = probe::serve(std::env::args_os().skip_while(|argument| argument != probe::MARKER));
}

#[test]
#[ignore = "a process that the other tests start"]
fn fuse_server() {
    fuse::serve_if_asked();
}

async fn judge(mounts: &dyn Mounts, expectation: &Expectation) -> Verdict {
    let table = mounts.table().await.unwrap();
    let seen = mounts.inspect(&expectation.path).await.unwrap();
    verdict(expectation, &table, Some(&seen))
}

async fn identity(mounts: &dyn Mounts, path: &Path) -> MountIdentity {
    MountIdentity::of(mounts.table().await.unwrap().at(path).unwrap())
}

#[tokio::test]
async fn the_mounts_of_linux_conform() {
    let Some(directory) = private("the_mounts_of_linux_conform") else { return };
    let mounts = mounts().await;
    let before = mounts.table().await.unwrap().len();
    let place = directory.join("ground");
    fs::create_dir(&place).unwrap();
    conformance::check(&mounts, &Directory(place.clone())).await.unwrap();
    assert_eq!(mounts.table().await.unwrap().len(), before, "nothing is left mounted");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "nothing is left");
    assert_eq!(children(), 0, "no process is left");
}

#[tokio::test]
async fn the_table_is_the_kernels_after_every_change() {
    let Some(directory) = private("the_table_is_the_kernels_after_every_change") else { return };
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
    assert!(std::sync::Arc::ptr_eq(&same.0, &same.1), "what has not changed is not read again");
}

#[tokio::test]
async fn a_path_that_the_kernel_escapes_is_handled() {
    let Some(directory) = private("a_path_that_the_kernel_escapes_is_handled") else { return };
    let mounts = mounts().await;
    for name in ["a b", "back\\slash", "#hash", "-", "\\040"] {
        let place = directory.join(name);
        make(&mounts, &place).await.unwrap();
        tmpfs(&place).unwrap();
        assert_eq!(judge(&mounts, &Expectation::file_system(&place)).await, Verdict::AsExpected);
        unmount(&place);
        let left = Verdict::Leftover(Presence::Directory);
        assert_eq!(judge(&mounts, &Expectation::nothing(&place)).await, left);
        assert_eq!(mounts.remove(&SafeRemoval::new(&place).unwrap()).await.unwrap(), Removed::Removed);
    }
}

#[tokio::test]
async fn a_directory_has_the_mode_of_kubelets_and_one_that_is_there_keeps_its_own() {
    let name = "a_directory_has_the_mode_of_kubelets_and_one_that_is_there_keeps_its_own";
    let Some(directory) = private(name) else { return };
    let mounts = mounts().await;
    let deep = directory.join("a/b");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    rustix::process::umask(rustix::fs::Mode::RWXG);
    make(&mounts, &deep).await.unwrap();
    assert_eq!((mode(&deep), mode(&directory.join("a"))), (0o750, 0o750), "whatever the umask");
    fs::set_permissions(&deep, fs::Permissions::from_mode(0o777)).unwrap();
    make(&mounts, &deep).await.unwrap();
    assert_eq!(mode(&deep), 0o777, "what is there is left as it is");
}

#[tokio::test]
async fn a_link_on_the_way_does_not_hide_a_mount() {
    let Some(directory) = private("a_link_on_the_way_does_not_hide_a_mount") else { return };
    let mounts = mounts().await;
    tmpfs(&directory.join("real/place")).unwrap();
    symlink(directory.join("real"), directory.join("link")).unwrap();
    let linked = directory.join("link/place");
    assert!(mounts.table().await.unwrap().at(&linked).is_none());
    assert_eq!(judge(&mounts, &Expectation::file_system(&linked)).await, Verdict::AsExpected);
    let mount = mounts.inspect(&linked).await.unwrap().mount.unwrap();
    let removal = SafeRemoval::new(&linked).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));
    assert!(mounts.table().await.unwrap().by_id(mount).is_some());
}

/// Anchors (f) 9: a driver that says OK and mounts nothing, another device, the device twice, or leaves it mounted.
#[tokio::test]
async fn a_lying_driver_is_caught_by_a_look_at_the_table() {
    let Some(directory) = private("a_lying_driver_is_caught_by_a_look_at_the_table") else { return };
    let mounts = mounts().await;
    let (staging, target) = (directory.join("staging"), directory.join("target"));
    fs::create_dir(&target).unwrap();
    tmpfs(&staging).unwrap();
    let staged = identity(&mounts, &staging).await;
    let published = Expectation::file_system(&target).identity(staged.clone());
    assert_eq!(judge(&mounts, &published).await, Verdict::NothingMounted(Presence::Directory));

    tmpfs(&target).unwrap();
    let found = identity(&mounts, &target).await.device;
    let another = Verdict::AnotherDevice { expected: staged.device, found };
    assert_eq!(judge(&mounts, &published).await, another);
    run("umount", &[target.to_str().unwrap()]);

    bind(&staging, &target);
    assert_eq!(judge(&mounts, &published).await, Verdict::AsExpected);
    bind(&staging, &target);
    assert_eq!(judge(&mounts, &published).await, Verdict::StackedMounts { count: 2 });
    run("umount", &[target.to_str().unwrap()]);

    fs::create_dir(staging.join("part")).unwrap();
    run("umount", &[target.to_str().unwrap()]);
    bind(&staging.join("part"), &target);
    let part = Verdict::AnotherRoot { expected: "/".into(), found: "/part".into() };
    assert_eq!(judge(&mounts, &published).await, part);
    let Verdict::StillMounted { mount } = judge(&mounts, &Expectation::nothing(&target)).await else {
        panic!("it is still mounted")
    };
    assert_eq!(mounts.inspect(&target).await.unwrap().mount, Some(mount));
}

/// Anchors (f) 9 and (c) 10: a bind on the file system that it is of has no device of its own, and is told all the same.
#[tokio::test]
async fn a_bind_within_one_file_system_is_seen() {
    let Some(directory) = private("a_bind_within_one_file_system_is_seen") else { return };
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
    assert_eq!(judge(&mounts, &Expectation::file_system(&target)).await, Verdict::AsExpected);
}

/// Anchors (f) 11: a driver that mounts again on each call, over 100 restarts of who asks first what is there.
#[tokio::test]
async fn a_hundred_restarts_do_not_stack_mounts() {
    let Some(directory) = private("a_hundred_restarts_do_not_stack_mounts") else { return };
    let place = directory.join("target");
    fs::create_dir(&place).unwrap();
    let mut calls = 0;
    for _ in 0..100 {
        let mounts = mounts().await;
        match judge(&mounts, &Expectation::file_system(&place)).await {
            Verdict::NothingMounted(_) => {
                tmpfs(&place).unwrap();
                calls += 1;
            }
            Verdict::AsExpected => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((calls, read_table().unwrap().stack(&place).len()), (1, 1));
    tmpfs(&place).unwrap();
    tmpfs(&place).unwrap();
    let stacked = judge(&mounts().await, &Expectation::file_system(&place)).await;
    assert_eq!(stacked, Verdict::StackedMounts { count: 3 });
}

/// Anchors (f) 12: somebody unmounts the staging, removes it, binds it elsewhere, or puts a file at the target.
#[tokio::test]
async fn meddling_from_outside_has_a_name_each() {
    let Some(directory) = private("meddling_from_outside_has_a_name_each") else { return };
    let mounts = mounts().await;
    let (staging, target) = (directory.join("staging"), directory.join("target"));
    let foreign = directory.join("foreign");
    tmpfs(&staging).unwrap();
    bind(&staging, &target);
    let wish = Expectation::file_system(&staging).identity(identity(&mounts, &staging).await);
    let known = |path: &Path| path == target;

    assert_eq!(held(&staging, None, &mounts.table().await.unwrap(), known), Verdict::AsExpected);
    bind(&target, &foreign);
    let table = mounts.table().await.unwrap();
    assert_eq!(
        held(&staging, None, &table, known),
        Verdict::ForeignBind { mount_points: vec![foreign.clone()] }
    );

    let mut changes = mounts.changes().unwrap();
    run("umount", &[staging.to_str().unwrap()]);
    changes.changed().await.unwrap();
    let after = mounts.table().await.unwrap();
    assert!(after.at(&staging).is_none() && after.at(&target).is_some());
    assert_eq!(judge(&mounts, &wish).await, Verdict::NothingMounted(Presence::Directory));
    let seen = identity(&mounts, &target).await;
    let recorded = held(&staging, Some(&seen), &after, known);
    assert_eq!(recorded, Verdict::ForeignBind { mount_points: vec![foreign.clone()] });

    fs::remove_dir(&staging).unwrap();
    assert_eq!(judge(&mounts, &wish).await, Verdict::MissingPath);
    fs::write(&staging, b"").unwrap();
    assert_eq!(judge(&mounts, &wish).await, Verdict::RegularFileAtTarget { size: 0 });
}

/// Anchors (f) 12: the state directory is bind-mounted, and mounts spread to where it is bound (aws-ebs-csi-driver#1264).
#[tokio::test]
async fn a_state_directory_on_a_bound_root_holds_nothing() {
    let Some(directory) = private("a_state_directory_on_a_bound_root_holds_nothing") else { return };
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
    assert!(table.at(&disk.join("kubelet/staging")).is_some(), "every mount is seen twice");
    assert_eq!(held(&staging, None, &table, |path| path == target), Verdict::AsExpected);
    assert_eq!(judge(&mounts, &Expectation::file_system(&staging)).await, Verdict::AsExpected);

    let foreign = directory.join("foreign");
    bind(&staging, &foreign);
    let table = mounts.table().await.unwrap();
    let binds = held(&staging, None, &table, |path| path == target);
    assert_eq!(binds, Verdict::ForeignBind { mount_points: vec![foreign] });
}

/// Anchors (f) 12: two mounts of one file system by two volumes are told apart by their places (csi-driver-smb#353).
#[tokio::test]
async fn one_file_system_mounted_by_two_volumes_is_each_ones_own() {
    let Some(directory) = private("one_file_system_mounted_by_two_volumes_is_each_ones_own") else { return };
    let mounts = mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let (one, two) = (directory.join("one"), directory.join("two"));
    mount_device(&device.0, &one);
    mount_device(&device.0, &two);
    let wish = |path: &PathBuf| Expectation::file_system(path);
    let shared = identity(&mounts, &one).await;
    assert_eq!(identity(&mounts, &two).await, shared);
    for path in [&one, &two] {
        assert_eq!(judge(&mounts, &wish(path).identity(shared.clone())).await, Verdict::AsExpected);
    }
    let table = mounts.table().await.unwrap();
    assert_eq!(held(&one, None, &table, |path| path == two), Verdict::AsExpected);
    assert_eq!(held(&two, None, &table, |path| path == one), Verdict::AsExpected);
    unmount(&one);
    assert_eq!(judge(&mounts, &wish(&one)).await, Verdict::NothingMounted(Presence::Directory));
    assert_eq!(judge(&mounts, &wish(&two)).await, Verdict::AsExpected);
    unmount(&two);
}

/// Anchors (f) 19: after an OK to an unpublish the target is mounted still, and whatever is tried, the canaries stay.
#[tokio::test]
async fn nothing_that_holds_a_byte_is_removed() {
    let Some(directory) = private("nothing_that_holds_a_byte_is_removed") else { return };
    let mounts = mounts().await;
    let (volume, target) = (directory.join("volume"), directory.join("target"));
    fs::create_dir_all(volume.join("deep/deeper")).unwrap();
    fs::create_dir_all(&target).unwrap();
    let canaries = [volume.join("canary"), volume.join("deep/deeper/canary"), target.join("under")];
    for canary in &canaries {
        fs::write(canary, b"alive").unwrap();
    }
    // On the same file system, so that no look at devices would tell.
    bind(&volume, &target);
    let refused = mounts.remove(&SafeRemoval::new(&target).unwrap()).await;
    assert!(matches!(refused, Err(RemoveError::Mounted { .. })), "{refused:?}");
    for inner in ["canary", "deep", "deep/deeper/canary"] {
        let refused = mounts.remove(&SafeRemoval::new(target.join(inner)).unwrap()).await;
        assert!(
            matches!(refused, Err(RemoveError::NotEmpty { .. } | RemoveError::HasBytes { .. })),
            "{refused:?}"
        );
    }
    unmount(&target);
    let refused = mounts.remove(&SafeRemoval::new(&target).unwrap()).await;
    let Err(RemoveError::NotEmpty { count: 1, first, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(first, "under");

    let link = directory.join("link");
    symlink(&volume, &link).unwrap();
    let refused = mounts.remove(&SafeRemoval::new(&link).unwrap()).await;
    assert!(matches!(refused, Err(RemoveError::Unfit { found: Presence::Symlink, .. })), "{refused:?}");
    for canary in &canaries {
        assert_eq!(fs::read(canary).unwrap(), b"alive");
    }
}

/// Anchors (f) 23: a leftover file is not taken for a device, neither to be used nor to be removed.
#[tokio::test]
async fn a_file_in_the_place_of_a_device_is_refused() {
    let Some(directory) = private("a_file_in_the_place_of_a_device_is_refused") else { return };
    let mounts = mounts().await;
    let device = LoopDevice::with_ext4(&directory);
    let target = directory.join("target");
    let any = Expectation::block_device(&target);
    assert_eq!(judge(&mounts, &any).await, Verdict::MissingPath);
    fs::write(&target, b"").unwrap();
    assert_eq!(judge(&mounts, &any).await, Verdict::RegularFileAtTarget { size: 0 });

    rustix::mount::mount_bind(&device.0, &target).unwrap();
    let Presence::BlockDevice(number) = mounts.inspect(&target).await.unwrap().presence else {
        panic!("a device")
    };
    assert_eq!(judge(&mounts, &any.clone().device(number)).await, Verdict::AsExpected);
    let other = DeviceNumber { minor: number.minor + 1, ..number };
    let another = Verdict::AnotherDevice { expected: other, found: number };
    assert_eq!(judge(&mounts, &any.clone().device(other)).await, another);
    let removal = SafeRemoval::new(&target).unwrap();
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::Mounted { .. })));

    unmount(&target);
    fs::write(&target, b"meant for a device").unwrap();
    assert_eq!(judge(&mounts, &any).await, Verdict::RegularFileAtTarget { size: 18 });
    assert!(matches!(mounts.remove(&removal).await, Err(RemoveError::HasBytes { size: 18, .. })));
    assert_eq!(fs::read(&target).unwrap(), b"meant for a device");
}

#[tokio::test]
async fn a_program_that_is_no_probe_is_found_out_at_once() {
    for (program, wanted) in
        [("/bin/true", "gave no answer"), ("/nowhere/probe", "No such file"), ("/bin/cat", "gave no answer")]
    {
        let opened = LinuxMounts::open(ProbeCommand::new(program), Settings::default()).await;
        let Err(OpenError::Probe(trouble)) = opened else { panic!("{program}: {opened:?}") };
        let cause = trouble.source().expect("a cause").to_string();
        assert!(cause.contains(wanted), "{trouble}: {cause}");
    }
}
