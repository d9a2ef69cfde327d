//! The processes that were killed and have not ended yet.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::super::Trouble;
use super::turns::Walk;

/// How often it is asked whether a process has ended, if nothing tells of it.
const AGAIN: Duration = Duration::from_secs(1);

/// The end of a process, to be waited for.
#[allow(deprecated, reason = "sound for an owned descriptor; what replaces it is unsafe")]
pub(super) fn end_of(child: &Child) -> std::io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Waits until a process has ended, and takes its end. Asks again and again where no descriptor is to be had for
/// being told: what is not asked stays in the process table.
async fn collect(child: &mut Child, end_of: impl Fn(&Child) -> std::io::Result<AsyncFd<OwnedFd>>) {
    // An error means that it is no child any more.
    while let Ok(None) = child.try_wait() {
        match end_of(child) {
            Ok(end) if end.readable().await.is_ok() => {}
            _ => tokio::time::sleep(AGAIN).await,
        }
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

    /// Whether one more process may be tried. Of one storage a quarter of those that are allowed may hang, so that the others
    /// have theirs.
    pub(super) fn admit(&self, walk: &Walk) -> Result<(), Trouble> {
        let left = self.left();
        let of_path = |hung: &Walk| hung.path == walk.path;
        let of_storage = |hung: &Walk| walk.storage.is_some() && hung.storage == walk.storage;
        let hung = || left.processes.iter().map(|(_, walk)| walk);
        let quarter = (self.limit / 4).max(1);
        if hung().any(of_path) || hung().filter(|hung| of_storage(hung)).count() >= quarter {
            return Err(Trouble::Hung { path: walk.path.clone() });
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
            collect(&mut child, end_of).await;
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::DeviceNumber;
    use super::super::turns::Storage;
    use super::*;

    fn walk(path: &str, minor: u32) -> Walk {
        Walk { path: path.into(), storage: Some(Storage::Device(DeviceNumber { major: 0, minor })) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_collected_also_where_no_descriptor_is_left() {
        let stdin = std::process::Stdio::piped();
        let mut child = std::process::Command::new("cat").stdin(stdin).spawn().unwrap();
        child.kill().unwrap();
        collect(&mut child, |_| Err(rustix::io::Errno::MFILE.into())).await;
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_storage_that_hangs_uses_up_its_quarter_and_not_what_the_others_may() {
        let reaping = Reaping::new(8);
        for path in ["/a", "/b"] {
            reaping.admit(&walk(path, 1)).unwrap();
            reaping.enter(walk(path, 1));
        }
        assert!(
            matches!(reaping.admit(&walk("/c", 1)), Err(Trouble::Hung { path }) if path == Path::new("/c"))
        );
        reaping.admit(&walk("/d", 2)).unwrap();
        for minor in 2..8 {
            reaping.enter(walk("/x", minor));
        }
        assert!(matches!(reaping.admit(&walk("/e", 9)), Err(Trouble::TooManyHung { limit: 8 })));
    }
}
