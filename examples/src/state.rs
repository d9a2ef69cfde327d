//! `--state-dir`: what a binary keeps over a restart. One process at a time.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use edge_transport::Epoch;

use crate::directory_lock::{DirectoryLock, LockError};
use crate::durable_file;

const EPOCH_FILE: &str = "epoch";

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// The record of the last start is damaged.
    #[error(
        "--state-dir: {path:?} holds {found:?} where a number belongs; remove the file if the host's clock is right"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The beginning of what it holds.
        found: String,
    },
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
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The epoch of this start: above every earlier one even if the clock has gone back, and on disk before it is used.
    ///
    /// # Errors
    /// If the record cannot be read or written.
    pub fn next_epoch(&self, now: SystemTime) -> Result<Epoch, StateError> {
        let path = self.path.join(EPOCH_FILE);
        let last = match fs::read_to_string(&path) {
            Ok(text) => Some(text.trim().parse::<u64>().map_err(|_| StateError::Damaged {
                path: path.clone(),
                found: text.chars().take(40).collect(),
            })?),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(during("read", &path)(cause)),
        };
        let next = last.map_or(0, |last| last.saturating_add(1)).max(wall_clock_epoch(now).number());
        let line = format!("{next}\n");
        durable_file::replace(&self.path, EPOCH_FILE, &[line.as_bytes()]).map_err(during("write", &path))?;
        Ok(Epoch::new(next))
    }
}

/// The epoch of a process without a state directory: microseconds of wall time.
#[must_use]
pub fn wall_clock_epoch(now: SystemTime) -> Epoch {
    let micros = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    Epoch::new(u64::try_from(micros).unwrap_or(u64::MAX))
}

fn during(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_epoch_rises_with_every_start_even_when_the_clock_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let state = StateDirectory::open(directory.path().join("new")).unwrap();
        assert_eq!(state.next_epoch(now).unwrap(), Epoch::new(1_000_000_000));
        assert_eq!(state.next_epoch(UNIX_EPOCH).unwrap(), Epoch::new(1_000_000_001));
        assert_eq!(state.next_epoch(now + Duration::from_secs(1)).unwrap(), Epoch::new(1_001_000_000));
    }

    #[test]
    fn a_directory_has_one_user_at_a_time_and_damage_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::open(directory.path()).unwrap();
        assert!(matches!(StateDirectory::open(directory.path()), Err(StateError::InUse { .. })));
        fs::write(directory.path().join(EPOCH_FILE), "x").unwrap();
        assert!(matches!(state.next_epoch(SystemTime::now()), Err(StateError::Damaged { .. })));
        drop(state);
        assert!(StateDirectory::open(directory.path()).is_ok());
    }
}
