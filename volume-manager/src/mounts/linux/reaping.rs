//! The processes that were killed and have not ended yet.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::super::Trouble;

/// The end of a process, to be waited for.
#[allow(deprecated, reason = "sound for an owned descriptor; what replaces it is unsafe")]
pub(super) fn end_of(child: &Child) -> std::io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// What a process walks. One that unmounts is let onto a path on which another hangs, since that is what may end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) paths: Vec<PathBuf>,
    pub(super) unmounts: bool,
}

impl Walk {
    /// Where, for an error.
    pub(super) fn first(&self) -> &Path {
        self.paths.first().map_or_else(|| Path::new("/"), PathBuf::as_path)
    }
}

/// Takes processes that have to end, and knows on which paths they hang.
#[derive(Debug)]
pub(super) struct Reaping {
    limit: usize,
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Left {
    next: u64,
    /// Processes that have not ended, with what they walk.
    processes: Vec<(u64, Walk)>,
}

impl Reaping {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, left: Mutex::default() }
    }

    /// Whether one more process may be tried.
    pub(super) fn admit(&self, walk: &Walk) -> Result<(), Trouble> {
        let left = self.left();
        let alike = || left.processes.iter().filter(|(_, hung)| hung.unmounts == walk.unmounts);
        let hangs = |path: &&PathBuf| alike().any(|(_, hung)| hung.paths.contains(path));
        if let Some(path) = walk.paths.iter().find(hangs) {
            return Err(Trouble::Hung { path: path.clone() });
        }
        if left.processes.len() >= self.limit {
            return Err(Trouble::TooManyHung { limit: self.limit });
        }
        Ok(())
    }

    /// Kills a process, and waits for its end in a task, which may take as long as the kernel likes.
    pub(super) fn take(self: &Arc<Self>, mut child: Child, walk: Walk) {
        let _ = child.kill();
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        // Without a runtime the whole program is about to end, and with it what it left.
        let Ok(runtime) = Handle::try_current() else { return };
        let entry = Entry { id: self.enter(walk), reaping: Arc::clone(self) };
        runtime.spawn(async move {
            if let Ok(end) = end_of(&child) {
                let _ = end.readable().await;
            }
            let _ = child.try_wait();
            drop(entry);
        });
    }

    /// How many have not ended.
    pub(super) fn count(&self) -> usize {
        self.left().processes.len()
    }

    fn enter(&self, walk: Walk) -> u64 {
        let mut left = self.left();
        let id = left.next;
        left.next += 1;
        left.processes.push((id, walk));
        id
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        // Whole between any two statements.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a process in the list, until it has ended or the runtime has.
struct Entry {
    id: u64,
    reaping: Arc<Reaping>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.reaping.left().processes.retain(|(id, _)| *id != self.id);
    }
}
