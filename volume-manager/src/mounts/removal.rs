//! Removal that cannot destroy data.

use std::path::PathBuf;

use super::{AbsolutePath, InvalidPath};

/// What is allowed to be at the path of a [`SafeRemoval`].
#[allow(clippy::exhaustive_enums, reason = "only what holds no data can be removed")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removable {
    /// An empty directory.
    EmptyDirectory,
    /// An empty directory, or a file of no bytes, over which a device was bound.
    EmptyTarget,
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
    path: AbsolutePath,
    what: Removable,
}

impl SafeRemoval {
    /// Of an empty directory.
    ///
    /// # Errors
    /// If the path is refused, see [`AbsolutePath::new`].
    pub fn empty_directory(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        Ok(Self { path: AbsolutePath::new(path)?, what: Removable::EmptyDirectory })
    }

    /// Of what a target may be when nothing is mounted on it: an empty directory or an empty file.
    ///
    /// # Errors
    /// If the path is refused, see [`AbsolutePath::new`].
    pub fn target(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        Ok(Self { path: AbsolutePath::new(path)?, what: Removable::EmptyTarget })
    }

    /// Where.
    #[must_use]
    pub fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// What may be there.
    #[must_use]
    pub fn what(&self) -> Removable {
        self.what
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
