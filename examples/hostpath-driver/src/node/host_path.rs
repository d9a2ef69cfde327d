//! Staging and target paths in requests.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::driver::required;
use crate::error::CallError;

// PATH_MAX of Linux without the terminating zero byte.
const MAX_PATH: usize = 4095;

/// An absolute path without `..`, as in the mount table, with the links in its parents resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPath {
    path: String,
    parent_exists: bool,
}

impl HostPath {
    /// Checks a path of a request.
    ///
    /// # Errors
    /// Returns an error if the path is empty, relative or too long, or contains `..`.
    pub(super) fn parse(field: &'static str, text: &str) -> Result<Self, CallError> {
        required(field, "an absolute path", text)?;
        let invalid = |expected: &str| CallError::invalid(field, text, expected);
        let path = Path::new(text);
        let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain || text.contains('\0') {
            return Err(invalid("an absolute path without '..'"));
        }
        if text.len() > MAX_PATH {
            return Err(invalid("at most 4095 bytes"));
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(invalid("a path below the root directory"));
        };
        let (parent, parent_exists) = match parent.canonicalize() {
            Ok(parent) => (parent, true),
            // Nothing can be mounted there, so the path of the request is sufficient.
            Err(_) => (parent.to_owned(), false),
        };
        match parent.join(name).into_os_string().into_string() {
            Ok(path) => Ok(Self { path, parent_exists }),
            Err(_) => Err(invalid("a path with parents named in UTF-8")),
        }
    }

    pub(super) fn as_path(&self) -> &Path {
        Path::new(&self.path)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.path
    }

    /// Reads the metadata of the path itself, without following a link.
    ///
    /// # Errors
    /// Returns an error if the path is a symbolic link, or cannot be read.
    pub(super) fn metadata(&self, field: &'static str) -> Result<Option<fs::Metadata>, CallError> {
        match fs::symlink_metadata(self.as_path()) {
            Ok(found) if found.is_symlink() => {
                Err(CallError::invalid(field, &self.path, "a path that is not a symbolic link"))
            }
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CallError::path("read", self.as_path(), error)),
        }
    }

    /// Creates an error for a path that is not free for a mount.
    pub(super) fn occupied(&self, field: &'static str) -> CallError {
        CallError::Precondition {
            subject: format!("{field} {}", self.path),
            state: "has something else mounted on it".to_owned(),
            fix: "unmount that, or give another path",
        }
    }

    /// Fails if the parent of the path is missing.
    pub(super) fn need_parent(&self, field: &'static str) -> Result<(), CallError> {
        if self.parent_exists {
            return Ok(());
        }
        let parent = self.as_path().parent().map(PathBuf::from).unwrap_or_default();
        let expected = format!("a path in an existing directory; create {} first", parent.display());
        Err(CallError::invalid(field, &self.path, expected))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn accepts_absolute_normalized_paths_only() {
        let long = format!("/nowhere/{}", "a".repeat(MAX_PATH));
        for bad in ["", "some/path", "/", "/a/../b", "/a/..", "/a\0b", long.as_str()] {
            assert_eq!(
                HostPath::parse("target_path", bad).unwrap_err().code(),
                tonic::Code::InvalidArgument,
                "{bad:?}"
            );
        }
        let long_enough = format!("/nowhere/{}", "a".repeat(200));
        let path = HostPath::parse("target_path", &long_enough).unwrap();
        assert_eq!(path.as_str(), long_enough);
        assert!(path.need_parent("target_path").is_err());
    }

    #[test]
    fn resolves_links_in_parents_and_refuses_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        fs::create_dir(&real).unwrap();
        symlink(&real, dir.path().join("link")).unwrap();
        let through = HostPath::parse("target_path", dir.path().join("link/x").to_str().unwrap()).unwrap();
        assert_eq!(through.as_path(), real.join("x"));
        let link = HostPath::parse("target_path", dir.path().join("link").to_str().unwrap()).unwrap();
        assert!(link.metadata("target_path").is_err());
    }
}
