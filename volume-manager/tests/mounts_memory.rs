//! The mounts in memory, and those that fail on purpose.
#![cfg(feature = "runtime")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io;
use std::path::Path;

use volume_manager::mounts::conformance::{self, Ground};
use volume_manager::mounts::*;

struct Memory(MemoryMounts);

impl Ground for Memory {
    fn directory(&self) -> &Path {
        Path::new("/ground")
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
    mounts.make_directory(Path::new("/ground")).unwrap();
    mounts
}

#[tokio::test]
async fn the_mounts_in_memory_conform() {
    let mounts = node();
    conformance::check(&mounts, &Memory(mounts.clone())).await.unwrap();
    assert_eq!(mounts.table().await.unwrap().len(), 1, "nothing is left mounted");
}

#[tokio::test]
async fn without_a_fault_faulty_mounts_conform_and_tell_their_calls() {
    let mounts = FaultyMounts::new(node());
    conformance::check(&mounts, &Memory(mounts.inner().clone())).await.unwrap();
    let calls = mounts.calls();
    assert!(calls.contains(&(Operation::Remove, "/ground/target".into())), "{calls:?}");
    assert!(calls.contains(&(Operation::Table, "".into())));
}

/// The suite is worth something only if it notices.
#[tokio::test]
async fn the_suite_finds_each_lie_and_each_failure() {
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
async fn a_fault_meets_the_call_it_is_meant_for() {
    let mounts = FaultyMounts::new(node());
    mounts.inject(Operation::Inspect, 1, Fault::Fail(5));
    mounts.inject(Operation::Inspect, 0, Fault::Hang);
    let path = Path::new("/ground");
    assert_eq!(mounts.inspect(path).await.unwrap().presence, Presence::Hung);
    assert!(matches!(mounts.inspect(path).await, Err(Trouble::Io { .. })));
    assert_eq!(mounts.inspect(path).await.unwrap().presence, Presence::Directory);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_call_ends_only_with_who_waits_for_it() {
    let mounts = FaultyMounts::new(node());
    mounts.inject(Operation::Remove, 0, Fault::Stall);
    let removal = SafeRemoval::new("/ground").unwrap();
    let waited = tokio::time::timeout(std::time::Duration::from_secs(3600), mounts.remove(&removal)).await;
    assert!(waited.is_err());
}

#[tokio::test]
async fn a_file_system_keeps_its_files_over_unmount_and_reboot() {
    let mounts = node();
    let fs = mounts.file_system("ext4", "/dev/sdb", false);
    let (place, file) = (Path::new("/ground"), Path::new("/ground/canary"));
    mounts.mount(fs, place, false).unwrap();
    mounts.write(file, b"bytes").unwrap();
    mounts.reboot();
    assert!(mounts.table().await.unwrap().at(place).is_none());
    assert_eq!(mounts.inspect(file).await.unwrap().presence, Presence::Missing);
    mounts.mount(fs, place, true).unwrap();
    assert_eq!(mounts.read(file).unwrap(), b"bytes");
    assert!(mounts.write(file, b"").is_err(), "it is read-only now");
    assert_eq!(mounts.table().await.unwrap().at(place).unwrap().device, fs.device());
}

/// Anchors (f) 15, in memory: as on Linux, a dead mount is seen by who looks into it, and can be unmounted.
#[tokio::test]
async fn a_dead_or_hanging_file_system_is_seen_and_unmounted() {
    let mounts = node();
    let fs = mounts.file_system("fuse", "driver", true);
    let place = Path::new("/ground");
    let id = mounts.mount(fs, place, false).unwrap();
    mounts.kill(fs, 107);
    let wish = Expectation::file_system(place);
    let table = mounts.table().await.unwrap();
    let seen = mounts.inspect(place).await.unwrap();
    assert_eq!(verdict(&wish, &table, Some(&seen)), Verdict::DeadMount { errno: 107 });
    assert_eq!(seen.mount, Some(id));
    let below = mounts.inspect(&place.join("below")).await;
    assert!(matches!(below, Err(Trouble::Io { .. })), "no mount is there: {below:?}");
    mounts.kill(fs, 5);
    let failing = mounts.inspect(place).await;
    assert!(matches!(failing, Err(Trouble::Io { .. })), "it may pass: {failing:?}");
    mounts.hang(fs);
    let seen = mounts.inspect(place).await.unwrap();
    assert_eq!(verdict(&wish, &table, Some(&seen)), Verdict::Unreachable);
    assert!(mounts.detach(place));
    assert_eq!(mounts.inspect(place).await.unwrap(), Inspection::of(Presence::Directory));
}

#[tokio::test]
async fn many_changes_are_told_as_one_and_none_is_missed() {
    let mounts = node();
    let mut changes = mounts.changes().unwrap();
    let fs = mounts.file_system("ext4", "/dev/sdb", false);
    for _ in 0..3 {
        mounts.mount(fs, Path::new("/ground"), false).unwrap();
    }
    changes.changed().await.unwrap();
    let waits = tokio::select! {
        biased;
        _ = changes.changed() => false,
        () = std::future::ready(()) => true,
    };
    assert!(waits, "three changes were told as one");
    assert!(mounts.detach(Path::new("/ground")));
    changes.changed().await.unwrap();
}
