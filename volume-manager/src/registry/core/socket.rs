//! Registration sockets in a directory listing.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

/// The file name of a registration socket: one path component that does not begin with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketName(OsString);

impl SocketName {
    /// Validates a name. `None` if it is empty, begins with a dot (the socket is still being created) or contains a slash.
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

/// Distinguishes a socket from an earlier one with the same name.
///
/// Binding a socket creates a new file, but file systems may reuse the inode number of a removed file at once, so the time
/// counts as well. Changes of owner and permissions change neither.
#[allow(clippy::exhaustive_structs, reason = "callers of the core build it from both fields")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity {
    /// The inode number.
    pub inode: u64,
    /// The modification time, in nanoseconds since 1970.
    pub modified_nanos: i128,
}

/// A socket in a listing of the directory.
#[allow(clippy::exhaustive_structs, reason = "callers of the core build it")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFile {
    /// The file name.
    pub name: SocketName,
    /// The identity of the file.
    pub identity: SocketIdentity,
}
