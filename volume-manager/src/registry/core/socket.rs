//! Sockets as a directory shows them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

/// The name of a registration socket in its directory. It is one path component and does not begin with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketName(OsString);

impl SocketName {
    /// Takes a name, or answers `None` if it is empty, begins with a dot (the socket is still being made) or has a
    /// slash.
    #[must_use]
    pub fn new(name: impl Into<OsString>) -> Option<Self> {
        let name = name.into();
        let bytes = name.as_encoded_bytes();
        let usable = !matches!(bytes.first(), None | Some(b'.')) && !bytes.contains(&b'/');
        usable.then_some(Self(name))
    }
}

impl AsRef<Path> for SocketName {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

impl AsRef<OsStr> for SocketName {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Tells a socket from an earlier one with the same name.
///
/// Binding a socket makes a new file, but file systems hand out the number of a removed file again at once, so its
/// time counts as well. Changes of owner and permissions alter neither.
#[allow(
    clippy::exhaustive_structs,
    reason = "the driver of the core builds it, and the two together are the identity"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// The file's number in its file system.
    pub inode: u64,
    /// The time of the file's last modification, in nanoseconds since 1970.
    pub modified_nanos: i128,
}

/// A socket in a listing of the directory.
#[allow(clippy::exhaustive_structs, reason = "the driver of the core builds it")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFile {
    /// The file's name.
    pub name: SocketName,
    /// Which of the files that had this name.
    pub generation: Generation,
}
