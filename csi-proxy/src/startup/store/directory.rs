//! A directory with one small file for each driver and node.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{FactsStore, KeepError, Kept, LoadError, MAX_RECORD, RecordError};
use crate::startup::Subject;

/// Most drivers, each on its node, of which a directory keeps the facts, unless set otherwise.
pub const MAX_DRIVERS: usize = 1024;

/// Most records that are kept for people to look at because they could not be used.
pub const MAX_SET_ASIDE: usize = 8;

const RECORD: &str = ".facts";
const DRAFT: &str = ".facts.new";
const ASIDE: &str = ".facts.damaged";

/// Longest part of a node's name in a file's name, which has at most 255 bytes.
const NODE_IN_NAME: usize = 150;

/// Facts in files named `DRIVER@NODE.facts`, readable by their owner only (0600).
///
/// A file is replaced as a whole: a draft is written, made durable and renamed. One that cannot be used is renamed to
/// `….facts.damaged`. When there is a file more than the bound, the one that was not written for the longest time goes; what it
/// said is learnt again when its driver is asked. One process at a time may use a directory.
#[derive(Debug, Clone)]
pub struct DirectoryFacts {
    directory: PathBuf,
    max_drivers: usize,
}

impl DirectoryFacts {
    /// A store in this directory, which is made (0700) when the first record is kept.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), max_drivers: MAX_DRIVERS }
    }

    /// The same for at most so many drivers; at least 1.
    #[must_use]
    pub fn with_max_drivers(mut self, drivers: usize) -> Self {
        self.max_drivers = drivers.max(1);
        self
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn file(&self, subject: &Subject, ending: &str) -> PathBuf {
        self.directory.join(file_name(subject) + ending)
    }

    fn set_aside(&self, subject: &Subject, cause: RecordError) -> LoadError {
        let (file, place) = (self.file(subject, RECORD), self.file(subject, ASIDE));
        match fs::rename(&file, &place) {
            Ok(()) => {
                // Space is all that is lost if one stays.
                let _ = self.thin_out(ASIDE, MAX_SET_ASIDE, &place);
                LoadError::SetAside { cause, place }
            }
            Err(source) => LoadError::NotSetAside { cause, source },
        }
    }

    fn write(&self, subject: &Subject, bytes: &[u8]) -> Result<(), KeepError> {
        let during = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| KeepError::Io { doing, path, source }
        };
        if !self.directory.is_dir() {
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.recursive(true).create(&self.directory).map_err(during("make", &self.directory))?;
        }
        let (file, draft) = (self.file(subject, RECORD), self.file(subject, DRAFT));
        let written = (|| {
            match fs::remove_file(&draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut to = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
            to.write_all(bytes)?;
            to.sync_all()
        })();
        if let Err(source) = written {
            // A full disk needs the room that the draft has taken.
            let _ = fs::remove_file(&draft);
            return Err(during("write", &draft)(source));
        }
        fs::rename(&draft, &file).map_err(during("replace", &file))?;
        let directory = File::open(&self.directory).and_then(|directory| directory.sync_all());
        directory.map_err(during("make durable", &self.directory))?;
        // The record is kept; what goes is only room.
        let _ = self.thin_out(RECORD, self.max_drivers, &file);
        Ok(())
    }

    /// Removes the files of this ending that are too many, those first that were not written for the longest time.
    fn thin_out(&self, ending: &str, max: usize, but: &Path) -> io::Result<()> {
        let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.ends_with(ending)) && entry.path() != but {
                files.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        files.sort_unstable();
        let extra = (files.len() + 1).saturating_sub(max);
        files.iter().take(extra).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

impl FactsStore for DirectoryFacts {
    fn load(&self, subject: &Subject) -> Result<Option<Kept>, LoadError> {
        let path = self.file(subject, RECORD);
        match read(&path) {
            Ok(bytes) => {
                Kept::decode(&bytes, subject).map(Some).map_err(|cause| self.set_aside(subject, cause))
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LoadError::Io { path, source }),
        }
    }

    fn keep(&self, subject: &Subject, kept: &Kept) -> Result<(), KeepError> {
        let bytes = kept.encode(subject);
        if bytes.len() > MAX_RECORD {
            return Err(KeepError::TooLarge { found: bytes.len(), max: MAX_RECORD });
        }
        self.write(subject, &bytes)
    }
}

/// The file, or so much of it that it is seen to be too large.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_RECORD as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `DRIVER@NODE`, or `DRIVER` where the node is decided call by call. The names of neither hold an `@` or a slash. Of a long node
/// name only the beginning stands there, with a checksum of all: should two be equal all the same, the record says whose it is.
fn file_name(subject: &Subject) -> String {
    let driver = &subject.driver;
    match &subject.node {
        None => driver.to_string(),
        Some(node) => match node.as_str().get(..NODE_IN_NAME) {
            Some(beginning) if node.as_str().len() > NODE_IN_NAME => {
                format!("{driver}@{beginning}~{:08x}", crc32fast::hash(node.as_str().as_bytes()))
            }
            _ => format!("{driver}@{node}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, UNIX_EPOCH};

    use csi_proto::DriverName;
    use tempfile::TempDir;

    use super::*;
    use crate::startup::Facts;

    fn subject(node: &str) -> Subject {
        Subject { driver: DriverName::new("vendor").unwrap(), node: Some(node.parse().unwrap()) }
    }

    fn kept() -> Kept {
        Kept { facts: Facts::default(), as_of: UNIX_EPOCH + Duration::from_secs(60) }
    }

    fn store() -> (TempDir, DirectoryFacts) {
        let directory = tempfile::tempdir().unwrap();
        let store = DirectoryFacts::new(directory.path().join("facts"));
        (directory, store)
    }

    fn names(store: &DirectoryFacts) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(store.directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_cannot_be_used_is_set_aside_once_and_the_next_record_takes_its_place() {
        let (_directory, store) = store();
        let ours = subject("edge-1");
        store.keep(&ours, &kept()).unwrap();
        let good = fs::read(store.file(&ours, RECORD)).unwrap();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        let last = good.len() - 1;
        let cases: [(&str, Vec<u8>); 6] = [
            ("damaged", changed(last, good[last] ^ 1)),
            ("truncated", good[..last].to_vec()),
            ("empty", Vec::new()),
            ("of another version", changed(4, 9)),
            ("too large", vec![0; 10 * MAX_RECORD]),
            ("another node's", kept().encode(&subject("edge-2"))),
        ];
        for (what, bytes) in cases {
            fs::write(store.file(&ours, RECORD), &bytes).unwrap();
            let error = store.load(&ours).unwrap_err();
            assert!(matches!(error, LoadError::SetAside { .. }), "{what}: {error}");
            assert_eq!(fs::read(store.file(&ours, ASIDE)).unwrap(), bytes, "{what}: no byte is changed");
            assert_eq!(store.load(&ours).unwrap(), None, "{what}: it is said once");
            store.keep(&ours, &kept()).unwrap();
            assert_eq!(store.load(&ours).unwrap(), Some(kept()), "{what}");
        }
    }

    #[test]
    fn drafts_of_a_process_that_was_killed_are_no_record_and_are_replaced() {
        let (_directory, store) = store();
        let ours = subject("edge-1");
        store.keep(&ours, &kept()).unwrap();
        fs::write(store.file(&ours, DRAFT), "half of a rec").unwrap();
        assert_eq!(store.load(&ours).unwrap(), Some(kept()));
        store.keep(&ours, &kept()).unwrap();
        assert_eq!(names(&store), ["vendor@edge-1.facts"]);
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(store.file(&ours, RECORD)), 0o600);
        assert_eq!(mode(store.directory().to_owned()), 0o700);
    }

    #[test]
    fn drivers_beyond_the_bound_push_out_the_one_that_was_not_written_for_the_longest_time() {
        let (_directory, store) = store();
        let store = store.with_max_drivers(3);
        for (age, node) in [(30, "a"), (50, "b"), (40, "c")] {
            store.keep(&subject(node), &kept()).unwrap();
            let file = File::options().write(true).open(store.file(&subject(node), RECORD)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        store.keep(&subject("d"), &kept()).unwrap();
        assert_eq!(names(&store), ["vendor@a.facts", "vendor@c.facts", "vendor@d.facts"]);
        store.keep(&subject("a"), &kept()).unwrap();
        assert_eq!(names(&store).len(), 3);
    }

    #[test]
    fn what_was_set_aside_is_bounded_too() {
        let (_directory, store) = store();
        for number in 0..2 * MAX_SET_ASIDE {
            let ours = subject(&format!("edge-{number}"));
            store.keep(&ours, &kept()).unwrap();
            fs::write(store.file(&ours, RECORD), "junk").unwrap();
            store.load(&ours).unwrap_err();
        }
        assert_eq!(names(&store).len(), MAX_SET_ASIDE);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let store = DirectoryFacts::new(file.join("facts"));
        let error = store.keep(&subject("edge-1"), &kept()).unwrap_err();
        assert!(error.to_string().contains("file/facts"), "{error}");
    }
}
