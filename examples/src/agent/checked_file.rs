//! Bytes in a file that tells whether they are all there: a line with what they are, their length and a checksum, then
//! the bytes. It is replaced as a whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::durable_file;

/// The place of such a file, and what it is.
#[derive(Debug, Clone)]
pub(super) struct CheckedFile {
    directory: PathBuf,
    name: &'static str,
    heading: &'static str,
}

impl CheckedFile {
    /// The file of this name; `heading` says of what kind and version its bytes are.
    pub(super) fn new(directory: &Path, name: &'static str, heading: &'static str) -> Self {
        Self { directory: directory.to_owned(), name, heading }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    /// Reads the file and leaves it as it is: nothing, its bytes, or why they are not whole.
    pub(super) fn read(&self) -> io::Result<Option<Result<Vec<u8>, String>>> {
        match fs::read(self.path()) {
            Ok(bytes) => Ok(Some(self.checked(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves the file aside, in place of one that was before, and answers where it is now.
    pub(super) fn set_aside(&self) -> io::Result<PathBuf> {
        let kept = self.directory.join(format!("{}.damaged", self.name));
        fs::rename(self.path(), &kept)?;
        Ok(kept)
    }

    /// Writes the bytes. They are on the disk when this returns.
    pub(super) fn save(&self, bytes: &[u8]) -> io::Result<()> {
        durable_file::replace(&self.directory, self.name, &[self.line(bytes).as_bytes(), bytes])
    }

    fn line(&self, bytes: &[u8]) -> String {
        format!("{} {} {:016x}\n", self.heading, bytes.len(), fnv_1a(bytes))
    }

    fn checked(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let rest = bytes.split_off(end);
        if bytes == self.line(&rest).as_bytes() {
            return Ok(rest);
        }
        let (found, heading) = (end + rest.len(), self.heading);
        Err(format!("its {found} bytes are not a heading of {heading:?} and the bytes that this one checks"))
    }
}

/// The hash of Fowler, Noll and Vo with 64 bits: finds what a disk does to a file, and withstands no attacker.
pub(super) fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
