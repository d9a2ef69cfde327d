//! Limits the concurrent probe processes per storage.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::super::{DeviceNumber, Mount};

/// The target of a probe process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeTarget {
    pub(super) path: PathBuf,
    /// The storage behind the path; `None` if the mount table could not be read.
    pub(super) storage: Option<Storage>,
}

/// The storage behind a mount, whose mounts hang together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Storage {
    /// One file system.
    Device(DeviceNumber),
    /// A file server, whose shares may be separate file systems.
    Server(Vec<u8>),
}

impl Storage {
    pub(super) fn of(mount: &Mount) -> Self {
        let source = mount.source.as_bytes();
        let host = match source.strip_prefix(b"//") {
            Some(share) => share.split(|&byte| byte == b'/').next(),
            None => source.windows(2).position(|pair| pair == b":/").map(|end| &source[..end]),
        };
        match host {
            Some(host) if mount.device.major == 0 && !host.is_empty() => Self::Server(host.to_vec()),
            _ => Self::Device(mount.device),
        }
    }
}

/// Limits the processes, so that a hanging storage does not block the others: one storage uses at most half of them, and all
/// storages whose last operation hung (suspects) together use a quarter.
#[derive(Debug)]
pub(super) struct ProbeLimits {
    running: Semaphore,
    suspects: Semaphore,
    per_storage: usize,
    storages: Mutex<HashMap<Storage, State>>,
}

#[derive(Debug)]
struct State {
    permits: Arc<Semaphore>,
    /// Whether the last operation on the storage hung.
    is_suspect: bool,
}

/// The maximum number of storages that are tracked, besides those in use.
const MAX_STORAGES: usize = 4096;

/// A permit to run a process, released on drop.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "released on drop")]
pub(super) struct Permit<'a> {
    storage: Option<OwnedSemaphorePermit>,
    suspects: Option<SemaphorePermit<'a>>,
    running: Option<SemaphorePermit<'a>>,
}

impl ProbeLimits {
    pub(super) fn new(processes: usize) -> Self {
        Self {
            running: Semaphore::new(processes),
            suspects: Semaphore::new((processes / 4).max(1)),
            per_storage: (processes / 2).max(1),
            storages: Mutex::default(),
        }
    }

    /// Waits for a permit.
    pub(super) async fn acquire(&self, target: &ProbeTarget) -> Permit<'_> {
        let mut permit = Permit::default();
        // The semaphores are never closed.
        if let Some(storage) = &target.storage {
            permit.storage = self.storage_permits(storage).acquire_owned().await.ok();
        }
        // Checked after the wait, since another operation on the storage may have hung meanwhile.
        if self.is_suspect(target) {
            permit.suspects = self.suspects.acquire().await.ok();
        }
        permit.running = self.running.acquire().await.ok();
        permit
    }

    /// Marks a storage as suspect after an operation hung.
    pub(super) fn mark_suspect(&self, target: &ProbeTarget) {
        self.set_suspect(target, true);
    }

    /// Clears the suspect mark of a storage after an operation was answered.
    pub(super) fn unmark_suspect(&self, target: &ProbeTarget) {
        self.set_suspect(target, false);
    }

    fn set_suspect(&self, target: &ProbeTarget, is_suspect: bool) {
        if let Some(storage) = &target.storage
            && let Some(state) = self.storages().get_mut(storage)
        {
            state.is_suspect = is_suspect;
        }
    }

    fn is_suspect(&self, target: &ProbeTarget) -> bool {
        let Some(storage) = &target.storage else { return false };
        self.storages().get(storage).is_some_and(|state| state.is_suspect)
    }

    fn storage_permits(&self, storage: &Storage) -> Arc<Semaphore> {
        let mut storages = self.storages();
        if storages.len() >= MAX_STORAGES && !storages.contains_key(storage) {
            storages.retain(|_, state| state.is_in_use() || state.is_suspect);
            if storages.len() >= MAX_STORAGES {
                storages.retain(|_, state| state.is_in_use());
            }
        }
        let new = || State { permits: Arc::new(Semaphore::new(self.per_storage)), is_suspect: false };
        Arc::clone(&storages.entry(storage.clone()).or_insert_with(new).permits)
    }

    fn storages(&self) -> MutexGuard<'_, HashMap<Storage, State>> {
        // A panic cannot leave the map inconsistent.
        self.storages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.permits) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(minor: u32) -> ProbeTarget {
        ProbeTarget { path: "/".into(), storage: Some(Storage::Device(DeviceNumber { major: 0, minor })) }
    }

    async fn is_free(limits: &ProbeLimits, target: &ProbeTarget) -> bool {
        tokio::select! {
            biased;
            _ = limits.acquire(target) => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Many volumes of one server that hang for the first time do not block other storages.
    #[tokio::test]
    async fn one_storage_has_half_and_suspects_a_quarter() {
        let limits = ProbeLimits::new(8);
        let mut hanging = Vec::new();
        for _ in 0..4 {
            hanging.push(limits.acquire(&target(1)).await);
        }
        assert!(!is_free(&limits, &target(1)).await, "more than half");
        assert!(is_free(&limits, &target(2)).await);
        limits.mark_suspect(&target(1));
        hanging.clear();
        hanging.push(limits.acquire(&target(1)).await);
        hanging.push(limits.acquire(&target(1)).await);
        assert!(!is_free(&limits, &target(1)).await, "more than a quarter");
        assert!(is_free(&limits, &target(2)).await);
        limits.unmark_suspect(&target(1));
        assert!(is_free(&limits, &target(1)).await);
    }

    #[tokio::test]
    async fn tracked_storages_are_bounded() {
        let limits = ProbeLimits::new(2);
        for minor in 0..u32::try_from(2 * MAX_STORAGES).unwrap() {
            drop(limits.acquire(&target(minor)).await);
            limits.mark_suspect(&target(minor));
        }
        assert!(limits.storages().len() <= MAX_STORAGES);
    }

    #[test]
    fn shares_of_a_server_are_one_storage_and_disks_are_not() {
        let of = |device: &str, fs_type: &str, source: &str| {
            let line = format!("20 1 {device} / /m rw - {fs_type} {source} rw");
            Storage::of(&Mount::parse(line.as_bytes()).unwrap())
        };
        let server = |host: &str| Storage::Server(host.as_bytes().to_vec());
        for (fs_type, source, host) in [
            ("nfs4", "10.0.0.1:/a", "10.0.0.1"),
            ("nfs", "10.0.0.1:/b", "10.0.0.1"),
            ("nfs", "[fe80::1]:/a", "[fe80::1]"),
            ("cifs", "//files/share", "files"),
            ("fuse.sshfs", "me@there:/home", "me@there"),
        ] {
            assert_eq!(of("0:50", fs_type, source), server(host));
        }
        let device = |major, minor| Storage::Device(DeviceNumber { major, minor });
        assert_eq!(of("8:1", "ext4", "/dev/sda1"), device(8, 1));
        assert_eq!(of("8:1", "ext4", "odd:/name"), device(8, 1));
        assert_eq!(of("0:51", "fuse.driver", "driver"), device(0, 51));
        assert_eq!(of("0:52", "tmpfs", ":/"), device(0, 52));
    }
}
