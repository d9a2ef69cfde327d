//! Reaps killed processes.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::super::ProbeError;
use super::limits::ProbeTarget;

/// The poll interval for the exit of a process without a pidfd.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Opens a pidfd, which becomes readable when the process has exited.
#[allow(deprecated, reason = "sound for an owned descriptor; what replaces it is unsafe")]
pub(super) fn open_pidfd(child: &Child) -> std::io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Waits until a process has exited, and reaps it. Polls if no pidfd can be opened, since an unreaped process stays in the
/// process table.
async fn wait_for_exit(child: &mut Child, open_pidfd: impl Fn(&Child) -> std::io::Result<AsyncFd<OwnedFd>>) {
    // An error means that the process is not a child any more.
    while let Ok(None) = child.try_wait() {
        match open_pidfd(child) {
            Ok(end) if end.readable().await.is_ok() => {}
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Reaps killed processes, and tracks the paths on which they hang.
#[derive(Debug)]
pub(super) struct ChildReaper {
    limit: usize,
    hung: Mutex<Hung>,
}

#[derive(Debug, Default)]
struct Hung {
    next: u64,
    /// The processes that have not exited, with their targets.
    processes: Vec<(u64, ProbeTarget)>,
}

impl ChildReaper {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, hung: Mutex::default() }
    }

    /// Checks whether another process may be started. One storage may use a quarter of the limit, so that others are not
    /// affected.
    pub(super) fn admit(&self, target: &ProbeTarget) -> Result<(), ProbeError> {
        let state = self.state();
        let of_path = |hung: &ProbeTarget| hung.path == target.path;
        let of_storage = |hung: &ProbeTarget| target.storage.is_some() && hung.storage == target.storage;
        let hung = || state.processes.iter().map(|(_, target)| target);
        let quarter = (self.limit / 4).max(1);
        if hung().any(of_path) || hung().filter(|hung| of_storage(hung)).count() >= quarter {
            return Err(ProbeError::Hung { path: target.path.clone() });
        }
        if state.processes.len() >= self.limit {
            return Err(ProbeError::TooManyHung { limit: self.limit });
        }
        Ok(())
    }

    /// Kills a process, and waits for its exit in a task, for as long as the kernel takes.
    pub(super) fn reap(self: &Arc<Self>, mut child: Child, target: ProbeTarget) {
        let _ = child.kill();
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        // Without a runtime the whole program is exiting.
        let Ok(runtime) = Handle::try_current() else { return };
        let entry = Entry { id: self.add(target), reaper: Arc::clone(self) };
        runtime.spawn(async move {
            wait_for_exit(&mut child, open_pidfd).await;
            drop(entry);
        });
    }

    /// The number of processes that have not exited.
    pub(super) fn count(&self) -> usize {
        self.state().processes.len()
    }

    fn add(&self, target: ProbeTarget) -> u64 {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.processes.push((id, target));
        id
    }

    fn state(&self) -> MutexGuard<'_, Hung> {
        // A panic cannot leave the state inconsistent.
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a process in the list; removed on drop, when the process has exited or the runtime shuts down.
struct Entry {
    id: u64,
    reaper: Arc<ChildReaper>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.reaper.state().processes.retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::DeviceNumber;
    use super::super::limits::Storage;
    use super::*;

    fn target(path: &str, minor: u32) -> ProbeTarget {
        ProbeTarget { path: path.into(), storage: Some(Storage::Device(DeviceNumber { major: 0, minor })) }
    }

    #[tokio::test(start_paused = true)]
    async fn reaps_a_process_without_a_pidfd() {
        let stdin = std::process::Stdio::piped();
        let mut child = std::process::Command::new("cat").stdin(stdin).spawn().unwrap();
        child.kill().unwrap();
        wait_for_exit(&mut child, |_| Err(rustix::io::Errno::MFILE.into())).await;
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn hanging_storage_is_limited_to_a_quarter() {
        let reaper = ChildReaper::new(8);
        for path in ["/a", "/b"] {
            reaper.admit(&target(path, 1)).unwrap();
            reaper.add(target(path, 1));
        }
        assert!(
            matches!(reaper.admit(&target("/c", 1)), Err(ProbeError::Hung { path }) if path == Path::new("/c"))
        );
        reaper.admit(&target("/d", 2)).unwrap();
        for minor in 2..8 {
            reaper.add(target("/x", minor));
        }
        assert!(matches!(reaper.admit(&target("/e", 9)), Err(ProbeError::TooManyHung { limit: 8 })));
    }
}
