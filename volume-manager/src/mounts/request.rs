//! What is asked of mounts: plain data, checked when it is made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::MountId;

/// Why a path is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPath {
    /// It depends on the working directory.
    #[error("the path {} is not absolute; give it from the root on", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// It has `..`, `.` or a doubled or trailing slash: two spellings of one path would be two paths here.
    #[error("the path {} has `..`, `.` or an empty part; write it in its shortest form", path.display())]
    NotNormal {
        /// The path.
        path: PathBuf,
    },
    /// It is `/`.
    #[error("the path is the root directory, which is never a target")]
    Root,
    /// It is too long for the system.
    #[error("the path has {found} bytes; at most {} are allowed", AbsolutePath::MAX_BYTES)]
    TooLong {
        /// How many bytes there are.
        found: usize,
    },
    /// It has a zero byte, which ends a path for the system.
    #[error("the path has a zero byte at {at}; leave it out")]
    ZeroByte {
        /// Where it is, in bytes.
        at: usize,
    },
}

/// An absolute path below the root directory, in its shortest spelling, of at most 4095 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// The most bytes of a path: one less than the system's limit, which counts the zero byte at the end.
    pub const MAX_BYTES: usize = 4095;

    /// Checks a path.
    ///
    /// # Errors
    /// If the path is relative, the root, too long, has a zero byte, or is not in its shortest spelling.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        let path = path.into();
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() > Self::MAX_BYTES {
            return Err(InvalidPath::TooLong { found: bytes.len() });
        }
        if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
            return Err(InvalidPath::ZeroByte { at });
        }
        if !path.is_absolute() {
            return Err(InvalidPath::Relative { path });
        }
        let shortest: PathBuf = path.components().filter(|part| *part != Component::ParentDir).collect();
        if shortest.as_os_str() != path.as_os_str() {
            return Err(InvalidPath::NotNormal { path });
        }
        if path.file_name().is_none() {
            return Err(InvalidPath::Root);
        }
        Ok(Self(path))
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The directory that it is in.
    #[must_use]
    pub fn parent(&self) -> &Path {
        self.0.parent().unwrap_or_else(|| Path::new("/"))
    }

    /// Its last part.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        self.0.file_name().unwrap_or_default()
    }
}

impl AsRef<Path> for AbsolutePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// What is made at a path.
#[allow(clippy::exhaustive_enums, reason = "a target of CSI is one of these")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreationKind {
    /// A directory.
    Directory,
    /// An empty file, for a device to be bound over.
    Placeholder,
}

/// The wish for a directory or an empty file at a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Creation {
    /// Where.
    pub path: AbsolutePath,
    /// What.
    pub kind: CreationKind,
    /// The permission bits of all that is made, up to `0o7777`, whatever the umask of the process.
    pub mode: u32,
    /// Whether directories that are missing on the way are made too.
    pub parents: bool,
}

impl Creation {
    /// As kubelet makes its directories: open to its owner, readable to the group.
    pub const DEFAULT_MODE: u32 = 0o750;

    /// A directory, and those that are missing on the way to it.
    ///
    /// # Errors
    /// If the path is refused, see [`AbsolutePath::new`].
    pub fn directory(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        let path = AbsolutePath::new(path)?;
        Ok(Self { path, kind: CreationKind::Directory, mode: Self::DEFAULT_MODE, parents: true })
    }

    /// The directory that a target will be in, which is the caller's to make as the target itself is the driver's.
    ///
    /// # Errors
    /// If the path of the target, or of its directory, is refused, see [`AbsolutePath::new`].
    pub fn parent_of(target: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        Self::directory(AbsolutePath::new(target)?.parent())
    }

    /// An empty file in a directory that is there, mode `0o640`.
    ///
    /// # Errors
    /// If the path is refused, see [`AbsolutePath::new`].
    pub fn placeholder(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        let path = AbsolutePath::new(path)?;
        Ok(Self { path, kind: CreationKind::Placeholder, mode: 0o640, parents: false })
    }

    /// With these permission bits; bits above `0o7777` are dropped.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o7777;
        self
    }
}

/// How a [`Creation`] ended well.
#[allow(clippy::exhaustive_enums, reason = "it was made or it was there")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Created {
    /// It was made.
    Made,
    /// It was there, and was left as it is.
    WasThere,
}

/// The wish that what is at one path is seen at another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Bind {
    /// What is bound: a directory, a file or a device.
    pub source: AbsolutePath,
    /// Where it is seen: a directory for a directory, and otherwise an empty file. No mount may be on it yet.
    pub target: AbsolutePath,
    /// Whether it can be only read there.
    pub read_only: bool,
}

impl Bind {
    /// A bind that can be written through.
    ///
    /// # Errors
    /// If a path is refused, see [`AbsolutePath::new`].
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        let (source, target) = (AbsolutePath::new(source)?, AbsolutePath::new(target)?);
        Ok(Self { source, target, read_only: false })
    }

    /// As one that can be only read. The mount is there a moment before it is read-only: tell nobody of it until the
    /// bind has ended. If it ends with an error or not at all, the mount may be there and take writes: hold it against an
    /// [`Expectation`](super::Expectation) that is read-only before it is used.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// How hard an unmount tries.
#[allow(clippy::exhaustive_enums, reason = "the system offers these")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnmountMode {
    /// Refused while the mount is in use.
    Normal,
    /// What waits for the server of a share or of FUSE fails first, and frees the mount of who hangs on it. Then as
    /// [`Normal`](Self::Normal): it may take a second one until all have let go. What was not written yet is lost: only
    /// for a server that will not come back.
    Force,
    /// The mount is taken from sight now and ends when its last user does. Data may still be written to the volume
    /// after it: never as a matter of course, only as the explicit and recorded decision of an operator.
    Lazy,
}

/// The wish that the topmost mount at a path goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Unmount {
    /// Where.
    pub path: AbsolutePath,
    /// How hard.
    pub mode: UnmountMode,
    /// Which mount it must be. With `None`, any.
    ///
    /// The system cannot be asked for a mount by its id: it is looked at first and then unmounted by its path. What is
    /// mounted over it in between goes instead.
    pub only: Option<MountId>,
}

impl Unmount {
    /// Of any mount that is topmost at the path and not in use.
    ///
    /// # Errors
    /// If the path is refused, see [`AbsolutePath::new`].
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, InvalidPath> {
        Ok(Self { path: AbsolutePath::new(path)?, mode: UnmountMode::Normal, only: None })
    }

    /// Of this mount alone.
    #[must_use]
    pub fn only(mut self, mount: MountId) -> Self {
        self.only = Some(mount);
        self
    }

    /// With another mode.
    #[must_use]
    pub fn mode(mut self, mode: UnmountMode) -> Self {
        self.mode = mode;
        self
    }
}

/// How an [`Unmount`] ended well.
#[allow(clippy::exhaustive_enums, reason = "there was a mount or there was none")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unmounted {
    /// One mount is gone. There may be another below it.
    Unmounted,
    /// Nothing was mounted there, or nothing is there.
    WasNotMounted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        assert!(AbsolutePath::new("/a/b").is_ok());
        assert!(AbsolutePath::new("/a/..b/.c").is_ok());
        for path in ["/a/../b", "/a/./b", "/a//b", "/a/b/", "//a", "/..", "/a/.."] {
            assert_eq!(AbsolutePath::new(path), Err(InvalidPath::NotNormal { path: path.into() }), "{path}");
        }
        assert_eq!(AbsolutePath::new("/"), Err(InvalidPath::Root));
        assert_eq!(AbsolutePath::new(""), Err(InvalidPath::Relative { path: "".into() }));
        assert_eq!(AbsolutePath::new("a/b"), Err(InvalidPath::Relative { path: "a/b".into() }));
        assert_eq!(AbsolutePath::new("/a\0b"), Err(InvalidPath::ZeroByte { at: 2 }));
        let long = format!("/{}", "x".repeat(4095));
        assert_eq!(AbsolutePath::new(long), Err(InvalidPath::TooLong { found: 4096 }));
        assert!(AbsolutePath::new(format!("/{}", "x".repeat(4094))).is_ok());
    }

    #[test]
    fn the_parent_of_a_target_is_wished_for_and_the_target_is_not() {
        let creation = Creation::parent_of("/pods/1/mount").unwrap();
        assert_eq!(creation.path.as_path(), Path::new("/pods/1"));
        assert_eq!(Creation::parent_of("/mount"), Err(InvalidPath::Root));
        assert_eq!(Creation::directory("/a").unwrap().mode(0o170_755).mode, 0o755);
    }
}
