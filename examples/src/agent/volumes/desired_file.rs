//! The set of volumes that is wanted, as a file: the request as it came, so that nothing of it is lost.

use std::io;
use std::path::{Path, PathBuf};

use volume_manager::message::{DesiredSet, Request};

use super::super::checked_file::CheckedFile;

/// What the file holds.
#[derive(Debug)]
pub(super) enum Found {
    /// There is no file.
    Nothing,
    /// A set.
    Set(Box<DesiredSet>),
    /// Something that is no set. It is kept under this name.
    Damaged { kept: PathBuf, reason: String },
}

/// The place of the file.
#[derive(Debug, Clone)]
pub(super) struct DesiredFile(CheckedFile);

impl DesiredFile {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self(CheckedFile::new(directory, "desired-volumes", "edge-csi desired volumes 1"))
    }

    /// Reads the file and leaves it as it is: nothing, a set, or why it is none.
    pub(super) fn read(&self) -> io::Result<Option<Result<DesiredSet, String>>> {
        Ok(self.0.read()?.map(|bytes| read(&bytes?)))
    }

    /// Reads the file. One that is damaged is moved aside: the volumes that are recorded stay as they are, and the next
    /// set is taken under any number.
    pub(super) fn load(&self) -> io::Result<Found> {
        match self.read()? {
            None => Ok(Found::Nothing),
            Some(Ok(set)) => Ok(Found::Set(Box::new(set))),
            Some(Err(reason)) => Ok(Found::Damaged { kept: self.0.set_aside()?, reason }),
        }
    }

    /// Writes the request. It is on the disk when this returns.
    pub(super) fn save(&self, request: &[u8]) -> io::Result<()> {
        self.0.save(request)
    }
}

fn read(request: &[u8]) -> Result<DesiredSet, String> {
    match Request::decode(request) {
        Ok(Request::Desired(set)) => Ok(set),
        Ok(_) => Err("it is another request".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_set_comes_back_and_a_damaged_one_is_kept_aside_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = DesiredFile::in_directory(directory.path());
        assert!(matches!(file.load().unwrap(), Found::Nothing));
        let set = DesiredSet::new(7, vec![]);
        file.save(&set.encode()).unwrap();
        let Found::Set(found) = file.load().unwrap() else { panic!() };
        assert_eq!(*found, set);
        let whole = fs::read(file.0.path()).unwrap();
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 4;
            for bytes in [&whole[..at], &bent[..]] {
                fs::write(file.0.path(), bytes).unwrap();
                let Found::Damaged { kept, .. } = file.load().unwrap() else { panic!("{at}") };
                assert_eq!(fs::read(kept).unwrap(), bytes);
                assert!(matches!(file.load().unwrap(), Found::Nothing));
            }
        }
    }
}
