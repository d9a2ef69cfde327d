//! What is at a path, and a removal of it that cannot destroy data.

use std::fmt;
use std::path::Path;

use super::{DeviceNumber, MountId};
use crate::driver::{InvalidMountPath, MountPath};

/// What is at a path, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Presence {
    /// Nothing.
    Missing,
    /// A directory.
    Directory,
    /// A file.
    RegularFile {
        /// Its length in bytes.
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
    /// The root of a mount whose server is gone, such as a FUSE process that was killed (ENOTCONN) or a share that was
    /// unexported (ESTALE). It can be unmounted, and nothing else.
    ///
    /// Only what says that the connection has ended for good counts. An error that may pass (EIO, ETIMEDOUT, EHOSTUNREACH),
    /// and any error on the way to the path, is an error of the inspection: of a healthy mount whose server lost its
    /// link for a while nothing may be undone.
    Dead {
        /// The number of the system's error.
        errno: i32,
    },
    /// The system did not answer in time. What is there is not known.
    Hung,
}

impl fmt::Display for Presence {
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
            Self::Hung => f.write_str("something that does not answer"),
        }
    }
}

/// What is at a path, and in which mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Inspection {
    /// What is there.
    pub presence: Presence,
    /// The mount whose root is exactly at the path. `None` if the path is an ordinary entry of its directory, and also
    /// if nobody could say: it is missing or hung. That of a dead mount is told.
    ///
    /// This holds where a lookup of the path in a mount table does not: the table has paths without symbolic links.
    pub mount: Option<MountId>,
}

impl Inspection {
    /// What is there, in no mount of its own.
    #[must_use]
    pub const fn of(presence: Presence) -> Self {
        Self { presence, mount: None }
    }

    /// What is there, as the root of a mount.
    #[must_use]
    pub const fn mounted(presence: Presence, mount: MountId) -> Self {
        Self { presence, mount: Some(mount) }
    }
}

/// The removal of one entry that holds no data: an empty directory, or an empty file. There is no other.
///
/// Whoever carries it out keeps these rules:
///
/// - It is not recursive. A directory with an entry is an error that names the first entry and the count.
/// - It does not cross mounts. If the entry is the root of a mount, it is an error, whatever the driver said of an unmount.
/// - It works relative to a descriptor of the parent directory and follows no link at the last part of the path, so the
///   entry that was checked is in the directory where it is removed.
/// - A file with bytes is an error: behind a leftover file there may be what somebody wrote and took for a device.
/// - The kernel's `rmdir` is the last judge of a directory: it refuses one that got an entry, or a mount of this mount
///   namespace, after the checks.
///
/// What they do not keep out, all within the microseconds between the check and the removal or in another namespace:
///
/// - A file that is written in between is not noticed.
/// - The kernel removes by name. Another empty directory, or any file, that is renamed to the name in between goes instead.
///   Nobody but the driver and its caller may write in the directory.
/// - A mount on the entry in *another* mount namespace does not hinder the kernel: it is detached there without a word,
///   and what was mounted is not changed. So the directory of the volumes should be in a mount that
///   spreads (`rshared`), where a mount of another namespace is seen here too, and refused; see
///   [`MountTable::covering`](super::MountTable::covering) with [`Mount::spreads`](super::Mount::spreads).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SafeRemoval {
    path: MountPath,
}

impl SafeRemoval {
    /// Of what a target or a staging directory may be when nothing is mounted on it.
    ///
    /// # Errors
    /// If the path is refused, see [`MountPath::new`].
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidMountPath> {
        Ok(Self { path: MountPath::new(path)? })
    }

    /// Where.
    #[must_use]
    pub fn path(&self) -> &MountPath {
        &self.path
    }

    /// Whether what is there goes, if nothing is mounted on it and it has no entries.
    #[cfg(any(feature = "linux", feature = "testing"))]
    pub(super) fn admits(found: Presence) -> bool {
        matches!(found, Presence::Directory | Presence::RegularFile { size: 0 })
    }

    /// What it means that something else is there.
    #[cfg(any(feature = "linux", feature = "testing"))]
    pub(super) fn refused(&self, found: Presence) -> Result<Removed, super::RemoveError> {
        let path = self.path.as_path().to_owned();
        match found {
            Presence::Missing => Ok(Removed::WasMissing),
            Presence::RegularFile { size } => Err(super::RemoveError::HasBytes { path, size }),
            found => Err(super::RemoveError::Unfit { path, found }),
        }
    }
}

/// How a [`SafeRemoval`] ended well.
#[allow(clippy::exhaustive_enums, reason = "it was there or it was not")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removed {
    /// The entry is gone.
    Removed,
    /// There was none.
    WasMissing,
}
