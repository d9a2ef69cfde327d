//! The node's objects on its disk, so that pods have their volumes when nobody can be asked.

use std::io;
use std::path::{Path, PathBuf};

use prost::Message;

use super::super::checked_file::CheckedFile;
use super::metadata::Metadata;
use crate::kubernetes::message::Update;

/// What the file holds.
#[derive(Debug)]
pub(super) enum Found {
    /// There is no file.
    Nothing,
    /// The objects.
    Metadata(Box<Metadata>),
    /// Something else, which is kept under this name. The hub is asked for all, and until it has answered nothing is
    /// unmounted.
    Damaged { kept: PathBuf, reason: String },
}

/// The place of the file.
#[derive(Debug, Clone)]
pub(super) struct MetadataFile(CheckedFile);

impl MetadataFile {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self(CheckedFile::new(directory, "kubernetes-objects", "edge-csi kubernetes objects 1"))
    }

    /// Reads the file. One that is damaged is moved aside.
    pub(super) fn load(&self) -> io::Result<Found> {
        let read = match self.0.read()? {
            None => return Ok(Found::Nothing),
            Some(bytes) => bytes.and_then(|bytes| read(&bytes)),
        };
        match read {
            Ok(metadata) => Ok(Found::Metadata(Box::new(metadata))),
            Err(reason) => Ok(Found::Damaged { kept: self.0.set_aside()?, reason }),
        }
    }

    /// Writes the objects. They are on the disk when this returns.
    pub(super) fn save(&self, metadata: &Metadata) -> io::Result<()> {
        self.0.save(&metadata.to_update().encode_to_vec())
    }
}

fn read(bytes: &[u8]) -> Result<Metadata, String> {
    let update = Update::decode(bytes).map_err(|error| error.to_string())?;
    if !(update.whole && update.complete) {
        return Err("it is not a whole set".to_owned());
    }
    Metadata::default().after(update).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::kubernetes::message::object::Kind;
    use crate::kubernetes::message::{Object, Pod};

    fn some(pods: u32) -> Metadata {
        let changed = (0..pods).map(|number| {
            let pod = Pod { namespace: "ns".into(), name: format!("pod-{number}"), ..Pod::default() };
            Object { object: Some(Kind::Pod(pod)) }
        });
        let update = Update {
            source: 7,
            revision: u64::from(pods),
            whole: true,
            complete: true,
            changed: changed.collect(),
            ..Update::default()
        };
        Metadata::default().after(update).unwrap()
    }

    #[test]
    fn objects_come_back_and_damage_at_any_byte_is_found_and_kept_aside() {
        let directory = tempfile::tempdir().unwrap();
        let file = MetadataFile::in_directory(directory.path());
        assert!(matches!(file.load().unwrap(), Found::Nothing));
        file.save(&some(2)).unwrap();
        let Found::Metadata(found) = file.load().unwrap() else { panic!() };
        assert_eq!(*found, some(2));
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

    #[test]
    fn a_crash_while_it_is_written_leaves_what_was_there_before() {
        let directory = tempfile::tempdir().unwrap();
        let file = MetadataFile::in_directory(directory.path());
        file.save(&some(3)).unwrap();
        let later = fs::read(file.0.path()).unwrap();
        file.save(&some(2)).unwrap();
        for end in 0..later.len() {
            fs::write(directory.path().join("kubernetes-objects.new"), &later[..end]).unwrap();
            let Found::Metadata(found) = file.load().unwrap() else { panic!("{end}") };
            assert_eq!(*found, some(2));
        }
    }
}
