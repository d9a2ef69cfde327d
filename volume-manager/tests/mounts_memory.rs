//! The in-memory mounts, and fault injection.
#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io;
use std::path::Path;

use volume_manager::advanced::mounts::*;
use volume_manager::mounts::conformance::{self, Fixture};
use volume_manager::mounts::*;

struct Memory(MemoryMounts);

impl Fixture for Memory {
    fn directory(&self) -> &Path {
        Path::new("/fixture")
    }
    fn mount(&self, path: &Path) -> io::Result<()> {
        let fs = self.0.file_system("tmpfs", "tmpfs", true);
        self.0.mount(fs, path, false).map(|_| ())
    }
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        self.0.bind_over(source, target, read_only).map(|_| ())
    }
    fn unmount(&self, path: &Path) -> io::Result<()> {
        if self.0.detach(path) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.write(path, bytes)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }
}

fn node() -> MemoryMounts {
    let mounts = MemoryMounts::new();
    mounts.make_directory(Path::new("/fixture")).unwrap();
    mounts
}

#[tokio::test]
async fn memory_mounts_conform() {
    let mounts = node();
    conformance::check(&mounts, &Memory(mounts.clone())).await.unwrap();
    assert_eq!(mounts.table().await.unwrap().len(), 1, "nothing is left mounted");
}

#[tokio::test]
async fn faulty_mounts_without_faults_conform_and_record_calls() {
    let mounts = FaultyMounts::new(node());
    conformance::check(&mounts, &Memory(mounts.inner().clone())).await.unwrap();
    let calls = mounts.calls();
    assert!(calls.contains(&(Operation::Remove, "/fixture/target".into())), "{calls:?}");
    assert!(calls.contains(&(Operation::Table, "".into())));
}

/// Verifies the suite itself.
#[tokio::test]
async fn suite_detects_every_fault() {
    for operation in [Operation::Inspect, Operation::CreateDirectory, Operation::Remove] {
        for fault in [Fault::Lie, Fault::Fail(5), Fault::DoAndFail(5), Fault::Hang] {
            let mounts = FaultyMounts::new(node());
            mounts.inject(operation, 0, fault);
            let checked = conformance::check(&mounts, &Memory(mounts.inner().clone())).await;
            assert!(checked.is_err(), "{operation:?} {fault:?}");
        }
    }
    let mounts = FaultyMounts::new(node());
    mounts.inject(Operation::Table, 1, Fault::Lie);
    assert!(conformance::check(&mounts, &Memory(mounts.inner().clone())).await.is_err());
}

#[tokio::test]
async fn fault_is_injected_into_the_right_call() {
    let mounts = FaultyMounts::new(node());
    mounts.inject(Operation::Inspect, 1, Fault::Fail(5));
    mounts.inject(Operation::Inspect, 0, Fault::Hang);
    let path = Path::new("/fixture");
    assert_eq!(mounts.inspect(path).await.unwrap().state, PathState::Hung);
    assert!(matches!(mounts.inspect(path).await, Err(ProbeError::Io { .. })));
    assert_eq!(mounts.inspect(path).await.unwrap().state, PathState::Directory);
}

#[tokio::test(start_paused = true)]
async fn stalled_call_never_returns() {
    let mounts = FaultyMounts::new(node());
    mounts.inject(Operation::Remove, 0, Fault::Stall);
    let removal = SafeRemoval::new("/fixture").unwrap();
    let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), mounts.remove(&removal)).await;
    assert!(waited.is_err());
}

#[tokio::test]
async fn file_system_keeps_its_files_over_unmount_and_reboot() {
    let mounts = node();
    let fs = mounts.file_system("ext4", "/dev/sdb", false);
    let (place, file) = (Path::new("/fixture"), Path::new("/fixture/canary"));
    mounts.mount(fs, place, false).unwrap();
    mounts.write(file, b"bytes").unwrap();
    mounts.reboot();
    assert!(mounts.table().await.unwrap().at(place).is_none());
    assert_eq!(mounts.inspect(file).await.unwrap().state, PathState::Missing);
    mounts.mount(fs, place, true).unwrap();
    assert_eq!(mounts.read(file).unwrap(), b"bytes");
    assert!(mounts.write(file, b"").is_err(), "it is read-only now");
    assert_eq!(mounts.table().await.unwrap().at(place).unwrap().device, fs.device());
}

/// A dead mount in memory is detected by an inspection and can be unmounted, as on Linux.
#[tokio::test]
async fn dead_or_hanging_file_system_is_found_and_unmounted() {
    let mounts = node();
    let fs = mounts.file_system("fuse", "driver", true);
    let place = Path::new("/fixture");
    let id = mounts.mount(fs, place, false).unwrap();
    mounts.kill(fs, 107);
    let expectation = Expectation::file_system(place);
    let table = mounts.table().await.unwrap();
    let seen = mounts.inspect(place).await.unwrap();
    assert_eq!(check_mount(&expectation, &table, Some(&seen)), MountCheck::DeadMount { errno: 107 });
    assert_eq!(seen.mount, Some(id));
    let below = mounts.inspect(&place.join("below")).await;
    assert!(matches!(below, Err(ProbeError::Io { .. })), "not a mount point: {below:?}");
    mounts.kill(fs, 5);
    let failing = mounts.inspect(place).await;
    assert!(matches!(failing, Err(ProbeError::Io { .. })), "a temporary error: {failing:?}");
    mounts.hang(fs);
    let seen = mounts.inspect(place).await.unwrap();
    assert_eq!(check_mount(&expectation, &table, Some(&seen)), MountCheck::Unreachable);
    assert!(mounts.detach(place));
    assert_eq!(mounts.inspect(place).await.unwrap(), Inspection::of(PathState::Directory));
}

#[tokio::test]
async fn changes_are_coalesced_and_none_is_missed() {
    let mounts = node();
    let mut changes = mounts.changes().unwrap();
    let fs = mounts.file_system("ext4", "/dev/sdb", false);
    for _ in 0..3 {
        mounts.mount(fs, Path::new("/fixture"), false).unwrap();
    }
    changes.changed().await.unwrap();
    let waits = tokio::select! {
        biased;
        _ = changes.changed() => false,
        () = std::future::ready(()) => true,
    };
    assert!(waits, "three changes were reported as one");
    assert!(mounts.detach(Path::new("/fixture")));
    changes.changed().await.unwrap();
}
