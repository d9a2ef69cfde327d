//! What is at a path.

use std::fmt;

use super::{DeviceNumber, MountId};

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
