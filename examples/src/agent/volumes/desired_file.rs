//! The set of volumes that is wanted, as a file: the request as it came, so that nothing of it is lost.
//!
//! A line with the format, the length and a checksum, then the bytes. It is replaced as a whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use volume_manager::message::{DesiredSet, MAX_REQUEST_BYTES, Request};

use crate::durable_file;

const FILE: &str = "desired-volumes";
const HEADING: &str = "edge-csi desired volumes 1";

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
pub(super) struct DesiredFile {
    directory: PathBuf,
}

impl DesiredFile {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Reads the file and leaves it as it is: nothing, a set, or why it is none.
    pub(super) fn read(&self) -> io::Result<Option<Result<DesiredSet, String>>> {
        match fs::read(self.path()) {
            Ok(bytes) => Ok(Some(read(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the file. One that is damaged is moved aside: the volumes that are recorded stay as they are, and the next
    /// set is taken under any number.
    pub(super) fn load(&self) -> io::Result<Found> {
        match self.read()? {
            None => Ok(Found::Nothing),
            Some(Ok(set)) => Ok(Found::Set(Box::new(set))),
            Some(Err(reason)) => {
                let kept = self.directory.join(format!("{FILE}.damaged"));
                fs::rename(self.path(), &kept)?;
                Ok(Found::Damaged { kept, reason })
            }
        }
    }

    /// Writes the request. It is on the disk when this returns.
    pub(super) fn save(&self, request: &[u8]) -> io::Result<()> {
        durable_file::replace(&self.directory, FILE, &[heading(request).as_bytes(), request])
    }
}

fn heading(request: &[u8]) -> String {
    format!("{HEADING} {} {:016x}\n", request.len(), fnv_1a(request))
}

fn read(bytes: &[u8]) -> Result<DesiredSet, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    let (found, request) = bytes.split_at(end);
    if found != heading(request).as_bytes() {
        let bytes = bytes.len();
        return Err(format!("its {bytes} bytes do not have the heading and the checksum of a set"));
    }
    debug_assert!(request.len() <= MAX_REQUEST_BYTES);
    match Request::decode(request) {
        Ok(Request::Desired(set)) => Ok(set),
        Ok(_) => Err("it is another request".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The hash of Fowler, Noll and Vo with 64 bits: finds what a disk does to a file, and withstands no attacker.
pub(super) fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
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
        let whole = fs::read(file.path()).unwrap();
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 4;
            for bytes in [&whole[..at], &bent[..]] {
                fs::write(file.path(), bytes).unwrap();
                let Found::Damaged { kept, .. } = file.load().unwrap() else { panic!("{at}") };
                assert_eq!(fs::read(kept).unwrap(), bytes);
                assert!(matches!(file.load().unwrap(), Found::Nothing));
            }
        }
    }
}
