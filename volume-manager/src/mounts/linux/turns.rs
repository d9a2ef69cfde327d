//! Who may run a process now, by what the process walks.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::super::{DeviceNumber, Mount};

/// What a process walks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) path: PathBuf,
    /// What is asked on the way. `None` if the mount table is not known.
    pub(super) storage: Option<Storage>,
}

/// What a mount gets its answers from. If it does not answer one, it answers none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Storage {
    /// One file system.
    Device(DeviceNumber),
    /// The server of shares, each of which may be a file system of its own.
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

/// Shares the processes out, so that a storage that does not answer leaves the others theirs: one storage has half of them
/// at most, and all those together that hung the last time a quarter.
#[derive(Debug)]
pub(super) struct Turns {
    running: Semaphore,
    suspects: Semaphore,
    of_one: usize,
    storages: Mutex<HashMap<Storage, State>>,
}

#[derive(Debug)]
struct State {
    turns: Arc<Semaphore>,
    /// Whether it hung the last time.
    is_suspect: bool,
}

/// How many storages are remembered besides those that are in use.
const MAX_STORAGES: usize = 4096;

/// A turn. It is given back when this is dropped.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "held, and not read")]
pub(super) struct Turn<'a> {
    of_storage: Option<OwnedSemaphorePermit>,
    of_suspects: Option<SemaphorePermit<'a>>,
    of_all: Option<SemaphorePermit<'a>>,
}

impl Turns {
    pub(super) fn new(processes: usize) -> Self {
        Self {
            running: Semaphore::new(processes),
            suspects: Semaphore::new((processes / 4).max(1)),
            of_one: (processes / 2).max(1),
            storages: Mutex::default(),
        }
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self, walk: &Walk) -> Turn<'_> {
        let mut turn = Turn::default();
        // None of the semaphores is ever closed.
        if let Some(storage) = &walk.storage {
            turn.of_storage = self.turns_of(storage).acquire_owned().await.ok();
        }
        // Asked only now, since another of the storage may have hung while this one waited.
        if self.is_suspect(walk) {
            turn.of_suspects = self.suspects.acquire().await.ok();
        }
        turn.of_all = self.running.acquire().await.ok();
        turn
    }

    /// An operation has hung.
    pub(super) fn suspect(&self, walk: &Walk) {
        self.mark(walk, true);
    }

    /// An operation was answered.
    pub(super) fn clear(&self, walk: &Walk) {
        self.mark(walk, false);
    }

    fn mark(&self, walk: &Walk, is_suspect: bool) {
        if let Some(storage) = &walk.storage
            && let Some(state) = self.storages().get_mut(storage)
        {
            state.is_suspect = is_suspect;
        }
    }

    fn is_suspect(&self, walk: &Walk) -> bool {
        let Some(storage) = &walk.storage else { return false };
        self.storages().get(storage).is_some_and(|state| state.is_suspect)
    }

    fn turns_of(&self, storage: &Storage) -> Arc<Semaphore> {
        let mut storages = self.storages();
        if storages.len() >= MAX_STORAGES && !storages.contains_key(storage) {
            storages.retain(|_, state| state.is_in_use() || state.is_suspect);
            if storages.len() >= MAX_STORAGES {
                storages.retain(|_, state| state.is_in_use());
            }
        }
        let new = || State { turns: Arc::new(Semaphore::new(self.of_one)), is_suspect: false };
        Arc::clone(&storages.entry(storage.clone()).or_insert_with(new).turns)
    }

    fn storages(&self) -> MutexGuard<'_, HashMap<Storage, State>> {
        // Whole between any two statements.
        self.storages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.turns) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(minor: u32) -> Walk {
        Walk { path: "/".into(), storage: Some(Storage::Device(DeviceNumber { major: 0, minor })) }
    }

    async fn is_given(turns: &Turns, walk: &Walk) -> bool {
        tokio::select! {
            biased;
            _ = turns.turn(walk) => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Five hundred volumes of one server hang for the first time, and the others do not wait for them.
    #[tokio::test]
    async fn one_storage_has_half_and_those_that_hung_a_quarter() {
        let turns = Turns::new(8);
        let mut hanging = Vec::new();
        for _ in 0..4 {
            hanging.push(turns.turn(&walk(1)).await);
        }
        assert!(!is_given(&turns, &walk(1)).await, "more than half");
        assert!(is_given(&turns, &walk(2)).await);
        turns.suspect(&walk(1));
        hanging.clear();
        hanging.push(turns.turn(&walk(1)).await);
        hanging.push(turns.turn(&walk(1)).await);
        assert!(!is_given(&turns, &walk(1)).await, "more than a quarter");
        assert!(is_given(&turns, &walk(2)).await);
        turns.clear(&walk(1));
        assert!(is_given(&turns, &walk(1)).await);
    }

    #[tokio::test]
    async fn no_more_storages_are_remembered_than_the_bound() {
        let turns = Turns::new(2);
        for minor in 0..u32::try_from(2 * MAX_STORAGES).unwrap() {
            drop(turns.turn(&walk(minor)).await);
            turns.suspect(&walk(minor));
        }
        assert!(turns.storages().len() <= MAX_STORAGES);
    }

    #[test]
    fn the_shares_of_one_server_hang_together_and_disks_do_not() {
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
