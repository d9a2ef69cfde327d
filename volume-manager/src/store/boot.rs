//! The boot id of the machine.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The kernel's id of the present boot: a UUID in lower case. It changes with every reboot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId([u8; Self::BYTES]);

impl BootId {
    /// The file of the boot id on Linux.
    pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

    /// The size of a boot id in bytes.
    pub const BYTES: usize = 36;

    /// Validates the text of a boot id: a UUID in lower case.
    ///
    /// # Errors
    /// If the text is not a UUID in lower case.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidBootId> {
        let text = text.as_ref();
        Self::from_bytes(text.as_bytes()).ok_or(InvalidBootId { bytes: text.len() })
    }

    /// Reads the id from a file: [`BootId::PATH`], except in tests that fake a reboot.
    ///
    /// # Errors
    /// If the file cannot be read, or does not contain a boot id.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, BootIdError> {
        let path = path.as_ref();
        let unreadable = |source| BootIdError::Unreadable { path: path.into(), source };
        let mut text = Vec::new();
        // One byte more than an id and its newline, so that a longer text is detected.
        let most = Self::BYTES as u64 + 2;
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut text)).map_err(unreadable)?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        Self::from_bytes(text)
            .ok_or_else(|| BootIdError::Invalid { path: path.into(), found: text.escape_ascii().to_string() })
    }

    fn from_bytes(text: &[u8]) -> Option<Self> {
        let id: [u8; Self::BYTES] = text.try_into().ok()?;
        let fits = |(at, byte): (usize, &u8)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        };
        id.iter().enumerate().all(fits).then_some(Self(id))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Validated to be ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl FromStr for BootId {
    type Err = InvalidBootId;

    fn from_str(text: &str) -> Result<Self, InvalidBootId> {
        Self::new(text)
    }
}

impl TryFrom<String> for BootId {
    type Error = InvalidBootId;

    fn try_from(text: String) -> Result<Self, InvalidBootId> {
        Self::new(text)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({self})")
    }
}

/// The error of an invalid [`BootId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid boot id of {bytes} bytes; expected a UUID in lower case of {} bytes", BootId::BYTES)]
#[non_exhaustive]
pub struct InvalidBootId {
    /// The size of the text in bytes.
    pub bytes: usize,
}

/// Why the boot id could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootIdError {
    /// The file cannot be read.
    #[error("the boot id cannot be read from {}; mount /proc, or give another file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not contain a boot id.
    #[error("{} contains \"{found}\", not a boot id; expected a UUID in lower case", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The beginning of its content.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5c6b3a1e-0d43-4a53-9f5e-2f6d1c0b7a89";

    #[test]
    fn reads_valid_boot_ids_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("boot_id");
        for text in [ID.to_owned(), format!("{ID}\n")] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(BootId::read(&path).unwrap().as_str(), ID);
        }
        for text in [
            "",
            "\n",
            &ID[1..],
            &format!("{ID}0"),
            &format!("{ID}\n\n"),
            &ID.to_uppercase(),
            &ID.replace('-', "0"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(BootId::read(&path), Err(BootIdError::Invalid { .. })), "{text:?}");
            assert!(text.parse::<BootId>().is_err());
        }
        assert!(matches!(
            BootId::read(directory.path().join("missing")),
            Err(BootIdError::Unreadable { .. })
        ));
        assert_eq!(ID.parse::<BootId>().unwrap().to_string(), ID);
        assert_eq!(BootId::new(ID).unwrap(), BootId::try_from(ID.to_owned()).unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn boot_id_of_this_machine_is_stable() {
        assert_eq!(BootId::read(BootId::PATH).unwrap(), BootId::read(BootId::PATH).unwrap());
    }
}
