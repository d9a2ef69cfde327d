//! The state of a path, and a removal that cannot destroy data.

use std::fmt;
use std::path::Path;

use super::{DeviceNumber, MountId};
use crate::driver::{InvalidMountPath, MountPath};

/// The state of a path, without following symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathState {
    /// The path does not exist.
    Missing,
    /// A directory.
    Directory,
    /// A file.
    RegularFile {
        /// The length in bytes.
        size: u64,
    },
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A symbolic link.
    Symlink,
    /// A socket or a pipe.
    Other,
    /// The root of a mount that lost its server, such as a FUSE process that was killed (ENOTCONN) or a share that
    /// was unexported (ESTALE). Such a mount can only be unmounted.
    ///
    /// Only errors that mean a permanently ended connection count. A temporary error (EIO, ETIMEDOUT,
    /// EHOSTUNREACH), and any error in a parent directory, is an error of the inspection: a healthy mount with an
    /// interrupted link must not be unmounted.
    Dead {
        /// The errno.
        errno: i32,
    },
    /// The system did not answer in time; the state is unknown.
    Hung,
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("nothing"),
            Self::Directory => f.write_str("a directory"),
            Self::RegularFile { size } => write!(f, "a file of {size} bytes"),
            Self::BlockDevice(device) => write!(f, "the block device {device}"),
            Self::CharacterDevice(device) => write!(f, "the character device {device}"),
            Self::Symlink => f.write_str("a symbolic link"),
            Self::Other => f.write_str("a socket or pipe"),
            Self::Dead { errno } => {
                write!(f, "a dead mount ({})", std::io::Error::from_raw_os_error(*errno))
            }
            Self::Hung => f.write_str("a path that does not answer"),
        }
    }
}

/// The state of a path, and the mount at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Inspection {
    /// The state of the path.
    pub state: PathState,
    /// The mount whose root is exactly at the path. `None` if the path is an ordinary entry of its directory, or is missing or
    /// hung. A dead mount is reported.
    ///
    /// Unlike a lookup in the mount table, which has paths without symbolic links, this also works through symbolic links.
    pub mount: Option<MountId>,
}

impl Inspection {
    /// Creates the inspection of a path that is not a mount point.
    #[must_use]
    pub const fn of(state: PathState) -> Self {
        Self { state, mount: None }
    }

    /// Creates the inspection of the root of a mount.
    #[must_use]
    pub const fn mounted(state: PathState, mount: MountId) -> Self {
        Self { state, mount: Some(mount) }
    }
}

/// The removal of one entry without data: an empty directory, or an empty file. No other removal exists.
///
/// Its rules:
///
/// - It is not recursive. A directory with entries is an error that has the first entry and the count.
/// - It does not cross mounts. The root of a mount is an error, even after the driver reported an unmount.
/// - It works relative to a descriptor of the parent directory and does not follow a link at the last component, so the
///   checked entry is in the directory where it is removed.
/// - A file with bytes is an error: a stale file may hold data that a workload wrote to it in place of a device.
/// - The kernel's `rmdir` has the final check of a directory: it fails on one that got an entry, or a mount of this mount
///   namespace, after the other checks.
///
/// Remaining races, all within the microseconds between check and removal, or in another mount namespace:
///
/// - A file that is written in between is not noticed.
/// - The kernel removes by name. Another empty directory, or any file, that is renamed to the name in between is removed
///   instead. Only the driver and its caller may write in the directory.
/// - A mount on the entry in *another* mount namespace does not stop the kernel: it is silently detached there, and the mounted
///   data is unchanged. The directory of the volumes should therefore be on a shared mount (`rshared`), where a mount of
///   another namespace is visible here too, and rejected; see [`MountTable::covering`](super::MountTable::covering) with
///   [`Mount::receives_propagation`](super::Mount::receives_propagation).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SafeRemoval {
    path: MountPath,
}

impl SafeRemoval {
    /// Creates the removal of an unmounted target or staging directory.
    ///
    /// # Errors
    /// If the path is invalid, see [`MountPath::new`].
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidMountPath> {
        Ok(Self { path: MountPath::new(path)? })
    }

    /// The path of the entry.
    #[must_use]
    pub fn path(&self) -> &MountPath {
        &self.path
    }

    /// Whether an entry of this state can be removed, if nothing is mounted on it and it has no entries.
    #[cfg(any(feature = "linux", feature = "testing"))]
    pub(super) fn is_removable(found: PathState) -> bool {
        matches!(found, PathState::Directory | PathState::RegularFile { size: 0 })
    }

    /// Returns the result for an entry that cannot be removed.
    #[cfg(any(feature = "linux", feature = "testing"))]
    pub(super) fn reject(&self, found: PathState) -> Result<Removed, super::RemoveError> {
        let path = self.path.as_path().to_owned();
        match found {
            PathState::Missing => Ok(Removed::AlreadyAbsent),
            PathState::RegularFile { size } => Err(super::RemoveError::HasData { path, size }),
            found => Err(super::RemoveError::NotRemovable { path, found }),
        }
    }
}

/// The result of a successful [`SafeRemoval`].
#[allow(clippy::exhaustive_enums, reason = "the entry existed or did not")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removed {
    /// The entry was removed.
    Removed,
    /// The entry did not exist.
    AlreadyAbsent,
}
