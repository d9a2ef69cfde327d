//! Paths in requests to a driver.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;

use crate::excerpt::short;

/// A path of this host in a request: absolute, UTF-8, 2 to 4095 bytes, normalized (no `.`, `..`, double or
/// trailing slash) and without control characters. Two different paths refer to the same file only through a link.
///
/// ```
/// use volume_manager::driver::MountPath;
///
/// let path = MountPath::new("/var/lib/edge/pods/1/volumes/data")?;
/// assert_eq!(path.as_str(), "/var/lib/edge/pods/1/volumes/data");
/// assert!(MountPath::new("relative").is_err());
/// # Ok::<(), volume_manager::driver::InvalidMountPath>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountPath(Arc<str>);

impl MountPath {
    /// The maximum size of a path in bytes: Linux' `PATH_MAX` of 4096 without the terminating zero byte.
    pub const MAX_BYTES: usize = 4095;

    /// Validates a path.
    ///
    /// # Errors
    /// If the path is relative, too long, the root, not UTF-8, or not normalized.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidMountPath> {
        let path = path.as_ref();
        let excerpt = || short(&path.to_string_lossy());
        let text = path.to_str().ok_or_else(|| InvalidMountPath::NotUtf8 { found: excerpt() })?;
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidMountPath::TooLong { found: text.len() });
        }
        if !path.is_absolute() {
            return Err(InvalidMountPath::NotAbsolute { found: excerpt() });
        }
        // `components` skips `.`, `//` and a trailing slash, so a comparison with the rebuilt path finds them.
        let mut normalized = String::with_capacity(text.len());
        for component in path.components() {
            match component {
                Component::RootDir => {}
                Component::Normal(name) => {
                    normalized.push('/');
                    normalized.push_str(name.to_str().unwrap_or_default());
                }
                _ => return Err(InvalidMountPath::NotNormalized { found: excerpt() }),
            }
        }
        if normalized != text || text.chars().any(char::is_control) {
            return Err(InvalidMountPath::NotNormalized { found: excerpt() });
        }
        Ok(Self(text.into()))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&*self.0)
    }

    /// The parent directory.
    #[must_use]
    pub fn parent(&self) -> &Path {
        self.as_path().parent().unwrap_or_else(|| Path::new("/"))
    }

    /// The last component.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        self.as_path().file_name().unwrap_or_default()
    }
}

impl AsRef<Path> for MountPath {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

impl fmt::Display for MountPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for MountPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a path is not a [`MountPath`]. The path in the messages is cut at 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMountPath {
    /// The path is relative.
    #[error("the path {found:?} is not absolute; begin it with /")]
    NotAbsolute {
        /// The path.
        found: String,
    },
    /// The path has more than [`MountPath::MAX_BYTES`] bytes.
    #[error("the path has {found} bytes; at most {} are allowed", MountPath::MAX_BYTES)]
    TooLong {
        /// The size of the path in bytes.
        found: usize,
    },
    /// The path is not UTF-8, as CSI requires of paths in requests.
    #[error("the path {found:?} is not UTF-8, as CSI requires")]
    NotUtf8 {
        /// The path, with its invalid bytes replaced.
        found: String,
    },
    /// The path is the root, is not normalized, or contains a control character.
    #[error(
        "the path {found:?} is not normalized; expected a path below / without '.', '..', empty components, a trailing slash or control characters"
    )]
    NotNormalized {
        /// The path.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_absolute_bounded_normalized_paths() {
        assert_eq!(MountPath::new("/a/b c/ä").unwrap().as_str(), "/a/b c/ä");
        assert!(MountPath::new(format!("/{}", "x".repeat(4094))).is_ok());
        let too_long = MountPath::new(format!("/{}", "x".repeat(4095)));
        assert_eq!(too_long, Err(InvalidMountPath::TooLong { found: 4096 }));
        for bad in ["", "a", "./a"] {
            assert_eq!(MountPath::new(bad), Err(InvalidMountPath::NotAbsolute { found: bad.into() }));
        }
        for bad in ["/", "//a", "/a/", "/a//b", "/a/./b", "/a/../b", "/a/.", "/.."] {
            assert_eq!(
                MountPath::new(bad),
                Err(InvalidMountPath::NotNormalized { found: bad.into() }),
                "{bad:?}"
            );
        }
        assert_eq!(MountPath::new("/a\nb"), Err(InvalidMountPath::NotNormalized { found: "/a b".into() }));
    }

    #[cfg(unix)]
    #[test]
    fn rejects_a_path_that_is_not_utf8() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(OsStr::from_bytes(b"/a\xff"));
        assert!(matches!(MountPath::new(path), Err(InvalidMountPath::NotUtf8 { .. })));
    }
}
