//! Which nodes are gone for good, kept over a restart of the hub.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use edge_transport::PeerId;
use edge_transport::presence::KeepGone;

use crate::durable_file;
use crate::process::Fatal;
use crate::state::StateDirectory;

/// The file in the state directory: a name a line.
const FILE: &str = "gone";

/// Largest file that is read, in bytes: more than the names that a hub remembers can have.
const MAX_SIZE: u64 = 1 << 20;

/// The file. No other hub uses it.
#[derive(Debug)]
pub(super) struct GoneFile {
    state: StateDirectory,
}

impl GoneFile {
    /// The file, and the names in it.
    pub(super) fn open(state: StateDirectory) -> Result<(BTreeSet<PeerId>, Self), Fatal> {
        let path = state.path().join(FILE);
        let wrong = |what: String| Fatal::Runtime(format!("--state-dir: {path:?} {what}"));
        let text = match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > MAX_SIZE => {
                let found = metadata.len();
                return Err(wrong(format!(
                    "has {found} bytes; expected a name a line, at most {MAX_SIZE} bytes"
                )));
            }
            Ok(_) => fs::read_to_string(&path).map_err(|error| wrong(format!("cannot be read: {error}")))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        };
        let mut gone = BTreeSet::new();
        for (line, name) in text.lines().enumerate() {
            // What cannot be read may be a node that proxies have to be told of.
            let name = PeerId::new(name).map_err(|error| {
                wrong(format!("line {}: {error}; mend it, or take the line out", line.saturating_add(1)))
            })?;
            gone.insert(name);
        }
        Ok((gone, Self { state }))
    }
}

impl KeepGone for GoneFile {
    fn keep(&self, gone: &BTreeSet<PeerId>) -> io::Result<()> {
        let text: String = gone.iter().map(|name| format!("{name}\n")).collect();
        durable_file::replace(self.state.path(), FILE, &[text.as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(directory: &Path) -> Result<(BTreeSet<PeerId>, GoneFile), Fatal> {
        GoneFile::open(StateDirectory::open(directory).unwrap())
    }

    #[test]
    fn names_are_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["edge-1", "edge-2"].map(|name| PeerId::new(name).unwrap());
        let (gone, file) = open(directory.path()).unwrap();
        assert!(gone.is_empty());
        file.keep(&names.clone().into()).unwrap();
        drop(file);
        let (gone, file) = open(directory.path()).unwrap();
        assert_eq!(gone, names.into());
        file.keep(&BTreeSet::new()).unwrap();
        drop(file);
        assert!(open(directory.path()).unwrap().0.is_empty());
    }

    #[test]
    fn a_damaged_file_is_named_with_its_line_and_nothing_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "edge-1\nno name\n").unwrap();
        let error = open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("gone\" line 2") && error.contains("take the line out"), "{error}");
        let long = "a".repeat(usize::try_from(MAX_SIZE).unwrap() + 1);
        fs::write(directory.path().join(FILE), long).unwrap();
        let error = open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("1048577 bytes"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let (_, file) = open(directory.path()).unwrap();
        fs::create_dir(directory.path().join("gone.new")).unwrap();
        assert!(file.keep(&BTreeSet::new()).is_err());
    }
}
