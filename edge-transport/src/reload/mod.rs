//! Files that are read again when they change: certificates, keys, authorities, tokens.
//!
//! [`FileWatch`] compares what is in the files, not their times: a link that is swapped, a file that is renamed into place and one
//! that is written over are all noticed, and a clock that was set back changes nothing. Several files that belong together are
//! used only as a whole: a certificate whose key has not come yet is a broken state, in which the old pair stays in use. What
//! was made of the old files goes on: links that stand live on.

mod expiry;
mod watch;

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

pub use self::watch::{FileWatch, Notice};
use crate::tls::sha256;

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 32 * 1024 * 1024;

/// A file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refuses.
    #[error("cannot read {what} {}: {source}", path.display())]
    Io {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("{what} {} has more than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// A file, and what it should hold.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) what: &'static str,
    pub(crate) path: PathBuf,
}

impl Input {
    fn read(&self) -> Result<Vec<u8>, ReadError> {
        let (what, path) = (self.what, self.path.clone());
        let mut content = Vec::new();
        let read =
            File::open(&path).and_then(|file| file.take(MAX_FILE as u64 + 1).read_to_end(&mut content));
        match read {
            Ok(_) if content.len() > MAX_FILE => Err(ReadError::TooLarge { what, path }),
            Ok(_) => Ok(content),
            Err(source) => Err(ReadError::Io { what, path, source }),
        }
    }
}

type Make<T, E> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync>;

/// Certificates by the file that they come from, and when they end.
pub(crate) type Ends = Vec<(PathBuf, SystemTime)>;

/// What is made of files, whatever that is.
trait Watched: Send + Sync {
    /// Looks at the files, and says what is new. Blocks for as long as reading them takes.
    fn check(&self) -> Option<Notice>;

    #[cfg(any(feature = "metrics", test))]
    /// Whether the files, as they were when last looked at, cannot be used.
    fn is_broken(&self) -> bool;

    /// The files, for people.
    fn files(&self) -> String;

    /// The certificates in use.
    fn ends(&self) -> Ends;
}

/// A value made of files, and made anew when they change.
pub(crate) struct Reloading<T, E> {
    inputs: Vec<Input>,
    make: Make<T, E>,
    ends: fn(&T) -> Ends,
    current: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

struct Seen {
    in_use: [u8; 32],
    /// What was read last, whether or not it could be used; `None` if it could not be read.
    tried: Option<[u8; 32]>,
    broken: Option<String>,
}

impl<T, E: From<ReadError> + Display> Reloading<T, E> {
    /// Reads the files and makes the first value.
    pub(crate) fn open(
        inputs: Vec<Input>,
        ends: fn(&T) -> Ends,
        make: impl Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let contents = read_all(&inputs)?;
        let current = RwLock::new(Arc::new(make(&contents)?));
        let in_use = fingerprint(&contents);
        let seen = Mutex::new(Seen { in_use, tried: Some(in_use), broken: None });
        Ok(Self { inputs, make: Box::new(make), ends, current, seen })
    }

    /// The value of the last good files.
    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync, E: From<ReadError> + Display> Watched for Reloading<T, E> {
    fn check(&self) -> Option<Notice> {
        let files = self.files();
        let contents = match read_all(&self.inputs) {
            Ok(contents) => contents,
            Err(error) => {
                let mut seen = self.seen();
                seen.tried = None;
                return seen.broken(files, error.to_string());
            }
        };
        let found = fingerprint(&contents);
        let mut seen = self.seen();
        if seen.tried == Some(found) {
            return None;
        }
        seen.tried = Some(found);
        if found == seen.in_use {
            return seen.broken.take().map(|_| Notice::Mended { files });
        }
        match (self.make)(&contents) {
            Ok(made) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                (seen.in_use, seen.broken) = (found, None);
                Some(Notice::Renewed { files })
            }
            Err(error) => seen.broken(files, error.to_string()),
        }
    }

    #[cfg(any(feature = "metrics", test))]
    fn is_broken(&self) -> bool {
        self.seen().broken.is_some()
    }

    fn files(&self) -> String {
        let paths: Vec<_> = self.inputs.iter().map(|input| input.path.display().to_string()).collect();
        paths.join(", ")
    }

    fn ends(&self) -> Ends {
        (self.ends)(&self.current())
    }
}

impl Seen {
    /// The same cause again and again is told once.
    fn broken(&mut self, files: String, cause: String) -> Option<Notice> {
        let known = self.broken.replace(cause.clone());
        (known.as_ref() != Some(&cause)).then_some(Notice::Broken { files, cause })
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
        let inputs = paths.iter().map(|path| Input { what: "half", path: path.clone() }).collect();
        Reloading::open(
            inputs,
            |_| Ends::new(),
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
    fn files_that_belong_together_are_used_as_a_whole_and_a_broken_state_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["one", "other"].map(|name| directory.path().join(name));
        let write = |at: usize, text: &str| fs::write(&paths[at], text).unwrap();
        let mut check: Box<dyn FnMut() -> Option<Notice>>;
        write(0, "a");
        write(1, "a");
        let pair = Arc::new(open(&paths));
        {
            let pair = Arc::clone(&pair);
            check = Box::new(move || pair.check());
        }
        assert_eq!(check(), None);

        write(0, "b");
        assert!(matches!(check(), Some(Notice::Broken { cause, .. }) if cause == "not a pair"));
        assert_eq!(check(), None, "told once");
        assert!(pair.is_broken());
        assert_eq!(*pair.current(), "a", "the old stays");
        write(1, "b");
        assert!(matches!(check(), Some(Notice::Renewed { .. })));
        assert!(!pair.is_broken());
        assert_eq!(*pair.current(), "b");

        fs::remove_file(&paths[1]).unwrap();
        assert!(matches!(check(), Some(Notice::Broken { cause, .. }) if cause.contains("cannot read half")));
        assert_eq!(check(), None, "told once");
        write(1, "b");
        assert!(matches!(check(), Some(Notice::Mended { .. })));
        assert_eq!(check(), None);
        assert_eq!(*pair.current(), "b");
    }

    #[test]
    fn a_file_without_end_is_refused_by_its_bound() {
        let endless = Input { what: "tokens", path: "/dev/zero".into() };
        assert!(matches!(endless.read(), Err(ReadError::TooLarge { .. })));
    }
}
