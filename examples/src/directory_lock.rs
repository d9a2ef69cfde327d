//! One process at a time in a directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The directory could not be had for this process alone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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

    /// Takes the lock, or says at once that it is taken.
    ///
    /// # Errors
    /// If another has it, or the file cannot be made, opened or locked.
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(directory.join(Self::FILE)).map_err(LockError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::InUse),
            Err(cause) => Err(LockError::Io(cause.into())),
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
}
