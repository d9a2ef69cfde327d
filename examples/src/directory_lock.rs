//! One process at a time in a directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// How long a lock that is taken is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// The directory could not be had for this process alone.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("the directory is in use by another process")]
    InUse,
    /// The lock file cannot be made or locked.
    #[error("the lock file: {0}")]
    Io(#[source] io::Error),
}

/// A directory that nobody else has until this is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock(File);

impl DirectoryLock {
    /// The name of the file that is locked. It stays when the lock goes: removing it would let two in.
    pub const FILE: &str = "lock";

    /// Takes the lock. One that is taken is waited for, up to a second and blocking: a child that a process had just forked when it was
    /// killed holds a copy of the descriptor until it runs its program.
    ///
    /// # Errors
    /// If another has it and keeps it, or the file cannot be made, opened or locked.
    #[allow(clippy::disallowed_methods, reason = "a process begins with this, and nothing of it runs yet")]
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        let end = Instant::now() + PATIENCE;
        Self::acquire_while(directory, || {
            std::thread::sleep(PAUSE);
            Instant::now() < end
        })
    }

    /// Tries as long as `again` says so.
    fn acquire_while(directory: &Path, mut again: impl FnMut() -> bool) -> Result<Self, LockError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(directory.join(Self::FILE)).map_err(LockError::Io)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::WOULDBLOCK) if again() => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::InUse),
                Err(cause) => return Err(LockError::Io(cause.into())),
            }
        }
    }
}

impl Drop for DirectoryLock {
    // Closing is not enough: a child that another thread has just forked holds a copy of the descriptor until it
    // runs its program, and the lock lasts as long as any copy. Unlocking ends it for all of them.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_even_while_a_forked_child_has_a_copy_of_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(directory.path()).unwrap();
        assert!(matches!(DirectoryLock::acquire(directory.path()), Err(LockError::InUse)));
        // What fork gives a child: another descriptor of the same open file.
        let copy = lock.0.try_clone().unwrap();
        drop(lock);
        let again = DirectoryLock::acquire(directory.path());
        assert!(again.is_ok(), "{again:?}");
        drop(copy);
        assert!(matches!(DirectoryLock::acquire(directory.path()), Err(LockError::InUse)));
    }

    #[test]
    fn a_lock_that_the_child_of_a_killed_process_still_has_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = DirectoryLock::acquire(directory.path()).ok();
        let lock = DirectoryLock::acquire_while(directory.path(), || child.take().is_some());
        assert!(lock.is_ok(), "{lock:?}");
        let (mut tries, mut again) = (0, true);
        let refused = DirectoryLock::acquire_while(directory.path(), || {
            tries += 1;
            std::mem::replace(&mut again, false)
        });
        assert!(matches!(refused, Err(LockError::InUse)) && tries == 2, "{refused:?} after {tries}");
    }
}
