//! What a mount is, beyond that one is there.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{DeviceNumber, Mount};

/// What tells one mount from another, to be kept with the record of a volume.
///
/// It holds while the file system is mounted somewhere. The number of one without a device, such as a network share or FUSE,
/// is given to another as soon as its last mount is gone; that of a device, when the device is.
///
/// `==` compares all its parts, also the source; [`is_of`](Self::is_of) does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MountIdentity {
    /// The device of the file system.
    pub device: DeviceNumber,
    /// Which part of the file system.
    pub root: PathBuf,
    /// The type of the file system.
    pub fs_type: OsString,
    /// What was mounted. Told to people, and not compared with that of a mount: some drivers word it anew each time.
    pub source: OsString,
}

impl MountIdentity {
    /// From its parts, as a record has them.
    #[must_use]
    pub fn new(device: DeviceNumber, root: PathBuf, fs_type: OsString, source: OsString) -> Self {
        Self { device, root, fs_type, source }
    }

    /// That of a mount.
    #[must_use]
    pub fn of(mount: &Mount) -> Self {
        Self {
            device: mount.device,
            root: mount.root.clone(),
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
        }
    }

    /// Whether a mount is of the same part of the same file system.
    #[must_use]
    pub fn is_of(&self, mount: &Mount) -> bool {
        self.device == mount.device && self.root == mount.root && self.fs_type == mount.fs_type
    }
}
