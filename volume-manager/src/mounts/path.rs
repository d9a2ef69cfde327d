//! Paths, checked when they are made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

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
}
