//! `--state-dir`: what a binary keeps over a restart. One process at a time.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::directory_lock::{DirectoryLock, LockError};
use crate::process::Fatal;

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or the directory cannot be read, made or written.
    #[error("--state-dir: cannot {doing} {path:?}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process has it.
    #[error("--state-dir: {path:?} is in use by another process; give each its own directory")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// A directory under the name that the mount table has for it, made (0750) if it is missing. `option` names it.
pub(crate) fn directory(option: &str, path: &Path) -> Result<PathBuf, Fatal> {
    let made = DirBuilder::new().recursive(true).mode(0o750).create(path);
    made.and_then(|()| fs::canonicalize(path)).map_err(|error| {
        Fatal::Input(format!("{option}: {} cannot be made or used: {error}", path.display()))
    })
}

/// A directory that this process alone uses until it ends.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    _lock: DirectoryLock,
}

impl StateDirectory {
    /// Makes the directory (0700) if it is missing, and locks it.
    ///
    /// # Errors
    /// If it cannot be made or written, or another process has it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StateError> {
        let path = path.into();
        if !path.is_dir() {
            fs::create_dir_all(&path).map_err(during("make", &path))?;
            fs::set_permissions(&path, Permissions::from_mode(0o700)).map_err(during("protect", &path))?;
        }
        match DirectoryLock::acquire(&path) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(LockError::InUse) => Err(StateError::InUse { path }),
            Err(LockError::Io(cause)) => Err(during("lock", &path.join(DirectoryLock::FILE))(cause)),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn during(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
