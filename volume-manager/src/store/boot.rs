//! Which boot of the machine this is.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The id that the kernel makes at each boot: a UUID in lower case. Two that differ have a reboot between them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId([u8; Self::BYTES]);

impl BootId {
    /// Where Linux shows it.
    pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

    /// How many bytes the text has.
    pub const BYTES: usize = 36;

    /// Reads the id from a file, which is [`BootId::PATH`] but in tests that fake a reboot.
    ///
    /// # Errors
    /// If the file cannot be read, or has no boot id.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, BootIdError> {
        let path = path.as_ref();
        let unreadable = |source| BootIdError::Unreadable { path: path.into(), source };
        let mut text = Vec::new();
        // One byte more than an id and its newline, so that a longer text shows as such.
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
        // It was checked to be ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl FromStr for BootId {
    type Err = InvalidBootId;

    fn from_str(text: &str) -> Result<Self, InvalidBootId> {
        Self::from_bytes(text.as_bytes()).ok_or(InvalidBootId { bytes: text.len() })
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

/// A text that is no [`BootId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a text of {bytes} bytes is no boot id; expected a UUID in lower case, which has {}", BootId::BYTES)]
#[non_exhaustive]
pub struct InvalidBootId {
    /// How many bytes the text has.
    pub bytes: usize,
}

/// Why the boot id is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootIdError {
    /// The file cannot be read.
    #[error("the boot id cannot be read from {}; mount /proc, or give another file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not hold a boot id.
    #[error("{} holds \"{found}\" and no boot id; expected a UUID in lower case", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// How it begins.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5c6b3a1e-0d43-4a53-9f5e-2f6d1c0b7a89";

    #[test]
    fn the_boot_id_is_read_from_a_file_and_nothing_else_is_taken_for_one() {
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
        assert!(matches!(BootId::read(directory.path().join("gone")), Err(BootIdError::Unreadable { .. })));
        assert_eq!(ID.parse::<BootId>().unwrap().to_string(), ID);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_boot_id_of_this_machine_stays_the_same() {
        assert_eq!(BootId::read(BootId::PATH).unwrap(), BootId::read(BootId::PATH).unwrap());
    }
}
