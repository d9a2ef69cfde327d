//! `--state-dir`: the directory for state that survives a restart, used by one process at a time.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::process::Fatal;

/// The file that is locked. The file stays when the lock is released: removing it could let two processes lock.
const LOCK: &str = "lock";
/// The maximum wait for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two attempts to lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A failed operation on a path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct PathError {
    /// The operation, such as `open`; the message continues with the path.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Returns a function that converts an I/O error to a [`PathError`].
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PathError {
    let path = path.to_owned();
    move |source| PathError { action, path, source }
}

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or the directory cannot be created or written.
    #[error("--state-dir: {0}")]
    Path(#[from] PathError),
    /// Another process uses the directory.
    #[error("--state-dir: {path:?} is in use by another process; give each its own directory")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// Replaces a file (0600) durably: after a power cut the file has either content, complete. Blocks.
///
/// # Errors
/// If the file cannot be written. The old content then stays, unless only the last step has failed.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), PathError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = || {
        // A file of an attempt before may have another mode.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()
    };
    written().map_err(failed("write", &new))?;
    fs::rename(&new, path).map_err(failed("replace", path))?;
    let directory = path.parent().unwrap_or(path);
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", directory))
}

/// Creates a directory (0750) if it is missing, and returns its path as in the mount table. `option` is named in
/// the error.
pub fn directory(option: &str, path: &Path) -> Result<PathBuf, Fatal> {
    let made = DirBuilder::new().recursive(true).mode(0o750).create(path);
    made.and_then(|()| fs::canonicalize(path))
        .map_err(|error| Fatal::Input(format!("{option}: cannot create or use {}: {error}", path.display())))
}

/// A directory that only this process uses, until the value is dropped or the process ends.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    lock: File,
}

impl StateDirectory {
    /// Creates the directory (0700) if it is missing, and locks it. Blocks the thread for up to a second while the
    /// lock is held: a forked child of a killed process holds a copy of the descriptor until it runs its program.
    ///
    /// # Errors
    /// If the directory cannot be created or written, or if another process holds the lock.
    #[allow(clippy::disallowed_methods, reason = "runs at the start of the process, before any task")]
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StateError> {
        let end = Instant::now() + LOCK_TIMEOUT;
        Self::open_while(path.into(), || {
            std::thread::sleep(RETRY_INTERVAL);
            Instant::now() < end
        })
    }

    /// Retries to lock while `again` returns true.
    fn open_while(path: PathBuf, mut again: impl FnMut() -> bool) -> Result<Self, StateError> {
        if !path.is_dir() {
            fs::create_dir_all(&path).map_err(failed("make", &path))?;
            fs::set_permissions(&path, Permissions::from_mode(0o700))
                .map_err(failed("set the mode of", &path))?;
        }
        let file = path.join(LOCK);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&file).map_err(failed("open", &file))?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { path, lock }),
                Err(Errno::WOULDBLOCK) if again() => {}
                Err(Errno::WOULDBLOCK) => return Err(StateError::InUse { path }),
                Err(cause) => return Err(failed("lock", &file)(cause.into()).into()),
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StateDirectory {
    // Closing is not enough: a child that another thread has just forked holds a copy of the descriptor until it
    // runs its program, and the lock lasts as long as any copy. Unlocking releases the lock for all copies.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_is_complete_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.pem");
        let left_over = directory.path().join("file.pem.new");
        fs::write(&left_over, "half of an attempt before").unwrap();
        for content in ["one", "other"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(!left_over.exists());
        }
        fs::create_dir(&left_over).unwrap();
        assert!(replace(&path, b"third").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "other", "the old content stays");
    }

    #[test]
    fn a_directory_has_one_user_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        let state = StateDirectory::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(StateDirectory::open(&path), Err(StateError::InUse { .. })));
        drop(state);
        assert!(StateDirectory::open(&path).is_ok());
    }

    #[test]
    fn dropped_lock_is_free_while_a_forked_child_holds_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let open = || StateDirectory::open(directory.path());
        let state = open().unwrap();
        assert!(matches!(open(), Err(StateError::InUse { .. })));
        // What fork gives a child: another descriptor of the same open file.
        let copy = state.lock.try_clone().unwrap();
        drop(state);
        let again = open();
        assert!(again.is_ok(), "{again:?}");
        drop(copy);
        assert!(matches!(open(), Err(StateError::InUse { .. })));
    }

    #[test]
    fn waits_for_a_lock_held_by_the_child_of_a_killed_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = || directory.path().to_owned();
        let mut child = StateDirectory::open(path()).ok();
        let state = StateDirectory::open_while(path(), || child.take().is_some());
        assert!(state.is_ok(), "{state:?}");
        let (mut tries, mut again) = (0, true);
        let refused = StateDirectory::open_while(path(), || {
            tries += 1;
            std::mem::replace(&mut again, false)
        });
        assert!(matches!(refused, Err(StateError::InUse { .. })) && tries == 2, "{refused:?} after {tries}");
    }
}
