//! Reloads files when they change: certificates, keys, authorities, tokens.
//!
//! [`FileWatch`] compares the contents of files, not their times: it detects swapped symlinks, files renamed into place and
//! overwritten files, and does not depend on the clock. Files that belong together are used only as a whole: while a
//! certificate is newer than its key, the old pair stays in use. Open links are not affected by a reload.

mod expiry;
mod watch;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

pub use self::watch::{FileWatch, ReloadEvent};
use crate::tls::sha256;

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 32 * 1024 * 1024;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system call failed.
    #[error("cannot read {kind} {}: {source}", path.display())]
    Io {
        /// Kind of the file, for example `private key`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{kind} {} has more than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// Kind of the file, for example `private key`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// A file and its expected content.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) kind: &'static str,
    pub(crate) path: PathBuf,
}

impl Input {
    fn read(&self) -> Result<Vec<u8>, ReadError> {
        let (kind, path) = (self.kind, self.path.clone());
        let mut content = Vec::new();
        let read =
            File::open(&path).and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut content));
        match read {
            Ok(_) if content.len() > MAX_FILE => Err(ReadError::TooLarge { kind, path }),
            Ok(_) => Ok(content),
            Err(source) => Err(ReadError::Io { kind, path, source }),
        }
    }
}

type Make<T, E> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync>;

/// Expiry times of certificates, by file.
pub(crate) type Expiries = Vec<(PathBuf, SystemTime)>;

/// A value that is reloaded from files.
trait Watched: Send + Sync {
    /// Reads the files and returns what has changed. Blocks on file I/O.
    fn check(&self) -> Option<ReloadEvent>;

    #[cfg(any(feature = "metrics", test))]
    /// Whether the files were invalid at the last check.
    fn is_invalid(&self) -> bool;

    /// The files, for logs.
    fn files(&self) -> String;

    /// Expiry times of the certificates in use.
    fn expiries(&self) -> Expiries;
}

/// A value that is created from files and recreated when they change.
pub(crate) struct Reloading<T, E> {
    inputs: Vec<Input>,
    make: Make<T, E>,
    expiries: fn(&T) -> Expiries,
    current: RwLock<Arc<T>>,
    state: Mutex<FileState>,
}

struct FileState {
    in_use: [u8; 32],
    /// Digest of the last read content, valid or not; `None` if it was not readable.
    last_read: Option<[u8; 32]>,
    invalid: Option<String>,
}

impl<T, E: From<ReadError> + Display> Reloading<T, E> {
    /// Reads the files and creates the first value.
    pub(crate) fn open(
        inputs: Vec<Input>,
        expiries: fn(&T) -> Expiries,
        make: impl Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let contents = read_all(&inputs)?;
        let current = RwLock::new(Arc::new(make(&contents)?));
        let in_use = fingerprint(&contents);
        let state = Mutex::new(FileState { in_use, last_read: Some(in_use), invalid: None });
        Ok(Self { inputs, make: Box::new(make), expiries, current, state })
    }

    /// Returns the value of the last valid files.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync, E: From<ReadError> + Display> Watched for Reloading<T, E> {
    fn check(&self) -> Option<ReloadEvent> {
        let files = self.files();
        let contents = match read_all(&self.inputs) {
            Ok(contents) => contents,
            Err(error) => {
                let mut state = self.state();
                state.last_read = None;
                return state.invalid(files, error.to_string());
            }
        };
        let found = fingerprint(&contents);
        let mut state = self.state();
        if state.last_read == Some(found) {
            return None;
        }
        state.last_read = Some(found);
        if found == state.in_use {
            return state.invalid.take().map(|_| ReloadEvent::Recovered { files });
        }
        match (self.make)(&contents) {
            Ok(value) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
                (state.in_use, state.invalid) = (found, None);
                Some(ReloadEvent::Reloaded { files })
            }
            Err(error) => state.invalid(files, error.to_string()),
        }
    }

    #[cfg(any(feature = "metrics", test))]
    fn is_invalid(&self) -> bool {
        self.state().invalid.is_some()
    }

    fn files(&self) -> String {
        let paths: Vec<_> = self.inputs.iter().map(|input| input.path.display().to_string()).collect();
        paths.join(", ")
    }

    fn expiries(&self) -> Expiries {
        (self.expiries)(&self.current())
    }
}

impl FileState {
    /// Records an error; returns an event only for a new cause.
    fn invalid(&mut self, files: String, cause: String) -> Option<ReloadEvent> {
        let known = self.invalid.replace(cause.clone());
        (known.as_ref() != Some(&cause)).then_some(ReloadEvent::Invalid { files, cause })
    }
}

impl<T, E> fmt::Debug for Reloading<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

fn read_all(inputs: &[Input]) -> Result<Vec<Vec<u8>>, ReadError> {
    inputs.iter().map(Input::read).collect()
}

fn fingerprint(contents: &[Vec<u8>]) -> [u8; 32] {
    let each: Vec<u8> = contents.iter().flat_map(|content| sha256(content)).collect();
    sha256(&each)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(paths: &[PathBuf]) -> Reloading<String, Refused> {
        let inputs = paths.iter().map(|path| Input { kind: "half", path: path.clone() }).collect();
        Reloading::open(
            inputs,
            |_| Expiries::new(),
            |halves| match halves {
                [one, other] if one == other => Ok(String::from_utf8_lossy(one).into_owned()),
                _ => Err(Refused("not a pair".to_owned())),
            },
        )
        .unwrap()
    }

    #[derive(Debug)]
    struct Refused(String);

    impl Display for Refused {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl From<ReadError> for Refused {
        fn from(error: ReadError) -> Self {
            Self(error.to_string())
        }
    }

    #[test]
    fn uses_pairs_as_a_whole_and_reports_errors_once() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["one", "other"].map(|name| directory.path().join(name));
        let write = |at: usize, text: &str| fs::write(&paths[at], text).unwrap();
        let mut check: Box<dyn FnMut() -> Option<ReloadEvent>>;
        write(0, "a");
        write(1, "a");
        let pair = Arc::new(open(&paths));
        {
            let pair = Arc::clone(&pair);
            check = Box::new(move || pair.check());
        }
        assert_eq!(check(), None);

        write(0, "b");
        assert!(matches!(check(), Some(ReloadEvent::Invalid { cause, .. }) if cause == "not a pair"));
        assert_eq!(check(), None, "reported once");
        assert!(pair.is_invalid());
        assert_eq!(*pair.current(), "a", "the old value stays");
        write(1, "b");
        assert!(matches!(check(), Some(ReloadEvent::Reloaded { .. })));
        assert!(!pair.is_invalid());
        assert_eq!(*pair.current(), "b");

        fs::remove_file(&paths[1]).unwrap();
        assert!(
            matches!(check(), Some(ReloadEvent::Invalid { cause, .. }) if cause.contains("cannot read half"))
        );
        assert_eq!(check(), None, "reported once");
        write(1, "b");
        assert!(matches!(check(), Some(ReloadEvent::Recovered { .. })));
        assert_eq!(check(), None);
        assert_eq!(*pair.current(), "b");
    }

    #[test]
    fn rejects_endless_files() {
        let endless = Input { kind: "tokens", path: "/dev/zero".into() };
        assert!(matches!(endless.read(), Err(ReadError::TooLarge { .. })));
    }
}
