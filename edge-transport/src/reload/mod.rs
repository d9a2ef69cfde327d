//! Reloads files when they change: certificates, keys, authorities, tokens.
//!
//! [`FileWatch`] compares the contents of files, not their times: it detects swapped symlinks, files renamed into place and
//! overwritten files, and does not depend on the clock. Files that belong together are used only as a whole: while a
//! certificate is newer than its key, the old pair stays in use. A reload does not affect open links, except that a hub ends
//! the sessions of identities that are not valid any more.
//!
//! Files may also be missing or invalid at the start (`*_when_valid`): handshakes fail with the cause until a check finds valid
//! files. Invalid files are evaluated again at each check, because a corrected clock makes a certificate valid.

mod error;
mod expiry;
#[cfg(feature = "runtime")]
pub(crate) mod lines;
mod renewable;
pub(crate) mod watch;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::SystemTime;

pub use self::error::FileError;
pub use self::watch::FileWatch;
pub(crate) use self::watch::ReloadEvent;
use crate::tls::sha256;

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 32 * 1024 * 1024;

/// A file and its expected content.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) kind: &'static str,
    pub(crate) path: PathBuf,
}

impl Input {
    fn read(&self) -> Result<Vec<u8>, FileError> {
        let (kind, path) = (self.kind, self.path.clone());
        let mut content = Vec::new();
        let read =
            File::open(&path).and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut content));
        match read {
            Ok(_) if content.len() > MAX_FILE => Err(FileError::TooLarge { kind, path }),
            Ok(_) => Ok(content),
            Err(source) => Err(FileError::Io { kind, path, source }),
        }
    }
}

pub(crate) type Make<T, E> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync>;

/// The files of a value, and the function that creates the value from their contents.
pub(crate) type Recipe<T, E> = (Vec<Input>, Make<T, E>);

/// Until when the content of a file is valid.
#[derive(Debug, Clone)]
pub(crate) enum Expiry {
    /// A certificate, which is useless afterwards.
    Certificate { file: PathBuf, end: SystemTime },
    /// A revocation list, which should be replaced until then, and stays in use.
    RevocationList { file: PathBuf, end: SystemTime },
}

pub(crate) type Expiries = Vec<Expiry>;

/// A value that is reloaded from files.
trait Watched: Send + Sync {
    /// Reads the files and returns what has changed. Blocks on file I/O.
    fn check(&self) -> Option<ReloadEvent>;

    #[cfg(any(feature = "metrics", test))]
    /// Whether the files were invalid at the last check.
    fn is_invalid(&self) -> bool;

    /// Why there is no value: no valid files have been read yet. `None` if there is one.
    fn unusable(&self) -> Option<String>;

    /// The files, for logs.
    fn files(&self) -> String;

    /// Expiry times of the certificates and revocation lists in use.
    fn expiries(&self) -> Expiries;
}

/// A value that is created from files and recreated when they change.
pub(crate) struct Reloading<T, E> {
    inputs: Vec<Input>,
    make: Make<T, E>,
    expiries: fn(&T) -> Expiries,
    /// The value of the last valid files, or why there were none so far.
    current: RwLock<Result<Arc<T>, String>>,
    state: Mutex<FileState>,
    /// Rises with each new value.
    generation: AtomicU64,
}

#[derive(Default)]
struct FileState {
    in_use: Option<[u8; 32]>,
    /// Digest of the last read content, valid or not; `None` if it was not readable.
    last_read: Option<[u8; 32]>,
    invalid: Option<String>,
}

impl<T: Send + Sync, E: From<FileError> + Display> Reloading<T, E> {
    /// Reads the files and creates the first value. If they are invalid, there is no value until a check finds valid ones.
    pub(crate) fn open((inputs, make): Recipe<T, E>, expiries: fn(&T) -> Expiries) -> (Self, Result<(), E>) {
        let (current, state) = (RwLock::new(Err(String::new())), Mutex::default());
        let new = Self { inputs, make, expiries, current, state, generation: AtomicU64::new(0) };
        let outcome = read_all(&new.inputs).map_err(E::from).and_then(|contents| {
            *new.value() = Ok(Arc::new((new.make)(&contents)?));
            let found = Some(fingerprint(&contents));
            *new.state() = FileState { in_use: found, last_read: found, invalid: None };
            Ok(())
        });
        if let Err(error) = &outcome {
            // The first check reads the files again, and reports the error.
            *new.value() = Err(error.to_string());
        }
        (new, outcome)
    }

    /// Returns the value of the last valid files.
    ///
    /// # Errors
    /// Returns why the files are invalid, if they were never valid.
    pub(crate) fn current(&self) -> Result<Arc<T>, String> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number that rises with each new value.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn value(&self) -> RwLockWriteGuard<'_, Result<Arc<T>, String>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an error; returns an event only for a new cause.
    fn invalid(&self, state: &mut FileState, cause: String) -> Option<ReloadEvent> {
        let known = state.invalid.replace(cause.clone());
        let is_unusable = self.value().as_mut().map_err(|unusable| unusable.clone_from(&cause)).is_err();
        let (is_new, files) = (known.as_ref() != Some(&cause), self.files());
        is_new.then_some(if is_unusable {
            ReloadEvent::Unusable { files, cause }
        } else {
            ReloadEvent::Invalid { files, cause }
        })
    }
}

impl<T: Send + Sync, E: From<FileError> + Display> Watched for Reloading<T, E> {
    fn check(&self) -> Option<ReloadEvent> {
        let contents = match read_all(&self.inputs) {
            Ok(contents) => contents,
            Err(error) => {
                let mut state = self.state();
                state.last_read = None;
                return self.invalid(&mut state, error.to_string());
            }
        };
        let found = Some(fingerprint(&contents));
        let mut state = self.state();
        if state.last_read == found && state.invalid.is_none() {
            return None;
        }
        state.last_read = found;
        if found == state.in_use {
            return state.invalid.take().map(|_| ReloadEvent::Recovered { files: self.files() });
        }
        match (self.make)(&contents) {
            Ok(value) => {
                *self.value() = Ok(Arc::new(value));
                (state.in_use, state.invalid) = (found, None);
                self.generation.fetch_add(1, Ordering::AcqRel);
                Some(ReloadEvent::Reloaded { files: self.files() })
            }
            Err(error) => self.invalid(&mut state, error.to_string()),
        }
    }

    #[cfg(any(feature = "metrics", test))]
    fn is_invalid(&self) -> bool {
        self.state().invalid.is_some() || self.unusable().is_some()
    }

    fn unusable(&self) -> Option<String> {
        self.current().err()
    }

    fn files(&self) -> String {
        let paths: Vec<_> = self.inputs.iter().map(|input| input.path.display().to_string()).collect();
        paths.join(", ")
    }

    fn expiries(&self) -> Expiries {
        self.current().map(|value| (self.expiries)(&value)).unwrap_or_default()
    }
}

impl<T, E> fmt::Debug for Reloading<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

fn read_all(inputs: &[Input]) -> Result<Vec<Vec<u8>>, FileError> {
    inputs.iter().map(Input::read).collect()
}

fn fingerprint(contents: &[Vec<u8>]) -> [u8; 32] {
    let each: Vec<u8> = contents.iter().flat_map(|content| sha256(content)).collect();
    sha256(&each)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn open(paths: &[PathBuf]) -> Reloading<String, Refused> {
        let inputs = paths.iter().map(|path| Input { kind: "half", path: path.clone() }).collect();
        let make = |halves: &[Vec<u8>]| match halves {
            [one, other] if one == other => Ok(String::from_utf8_lossy(one).into_owned()),
            _ => Err(Refused("not a pair".to_owned())),
        };
        let (pair, outcome) = Reloading::open((inputs, Box::new(make)), |_| Expiries::new());
        outcome.unwrap();
        pair
    }

    #[derive(Debug)]
    struct Refused(String);

    impl Display for Refused {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl From<FileError> for Refused {
        fn from(error: FileError) -> Self {
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
        assert_eq!(*pair.current().unwrap(), "a", "the old value stays");
        write(1, "b");
        assert!(matches!(check(), Some(ReloadEvent::Reloaded { .. })));
        assert!(!pair.is_invalid());
        assert_eq!(*pair.current().unwrap(), "b");

        fs::remove_file(&paths[1]).unwrap();
        assert!(
            matches!(check(), Some(ReloadEvent::Invalid { cause, .. }) if cause.contains("cannot read half"))
        );
        assert_eq!(check(), None, "reported once");
        write(1, "b");
        assert!(matches!(check(), Some(ReloadEvent::Recovered { .. })));
        assert_eq!(check(), None);
        assert_eq!(*pair.current().unwrap(), "b");
    }

    /// Missing files are a state, not an error of the start; the value appears with the first valid files.
    #[test]
    fn waits_for_the_first_valid_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one");
        let is_correct = Arc::new(AtomicBool::new(false));
        let (clock, inputs) = (Arc::clone(&is_correct), vec![Input { kind: "half", path: path.clone() }]);
        let make = move |contents: &[Vec<u8>]| match (contents, clock.load(Ordering::Relaxed)) {
            ([one], true) => Ok(one.clone()),
            _ => Err(Refused("the clock is wrong".to_owned())),
        };
        let (one, outcome) = Reloading::open((inputs, Box::new(make)), |_| Expiries::new());
        assert!(outcome.unwrap_err().0.contains("cannot read half"));
        assert!(one.current().unwrap_err().contains("cannot read half") && one.is_invalid());
        assert!(matches!(one.check(), Some(ReloadEvent::Unusable { cause, .. }) if cause.contains("half")));
        assert_eq!(one.check(), None, "reported once");
        fs::write(&path, "a").unwrap();
        assert!(matches!(one.check(), Some(ReloadEvent::Unusable { cause, .. }) if cause.contains("clock")));
        assert_eq!((one.check(), one.unusable()), (None, Some("the clock is wrong".to_owned())));
        is_correct.store(true, Ordering::Relaxed);
        assert!(
            matches!(one.check(), Some(ReloadEvent::Reloaded { .. })),
            "the same content, at another time"
        );
        assert_eq!((one.check(), one.unusable(), one.is_invalid()), (None, None, false));
        assert_eq!(*one.current().unwrap(), b"a");
    }

    #[test]
    fn rejects_endless_files() {
        let endless = Input { kind: "tokens", path: "/dev/zero".into() };
        assert!(matches!(endless.read(), Err(FileError::TooLarge { .. })));
    }
}
