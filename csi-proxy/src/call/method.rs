//! The gRPC method of a call.

use std::fmt;
use std::sync::Arc;

/// The maximum length of a [`MethodPath`] in bytes.
pub const MAX_METHOD_PATH: usize = 256;

/// A gRPC method as in the `:path` of a request: `/package.Service/Method`. Cheap to clone.
///
/// Accepts any service and method, including those of later CSI versions.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodPath(Arc<str>);

/// A method path is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMethodPath {
    /// The path is too long.
    #[error("method path has {found} bytes; expected at most {MAX_METHOD_PATH}")]
    TooLong {
        /// The length of the path in bytes.
        found: usize,
    },
    /// The path is not a slash, a service, a slash and a method.
    #[error("invalid method path; expected `/package.Service/Method`")]
    Form,
    /// The path contains a character that is not allowed.
    #[error("method path has {found:?} at byte {at}; expected letters, digits, `.`, `_` or `-`")]
    Character {
        /// The character.
        found: char,
        /// The position of the character, in bytes from the start.
        at: usize,
    },
}

impl MethodPath {
    /// Validates a path.
    ///
    /// # Errors
    /// If the path is longer than [`MAX_METHOD_PATH`] bytes or not of the form `/package.Service/Method`.
    pub fn new(path: impl AsRef<str>) -> Result<Self, InvalidMethodPath> {
        let path = path.as_ref();
        if path.len() > MAX_METHOD_PATH {
            return Err(InvalidMethodPath::TooLong { found: path.len() });
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        // By bytes, since this runs for every call: no byte of a multi-byte character is allowed.
        if !path.bytes().all(allowed)
            && let Some((at, found)) = path.char_indices().find(|(_, c)| !u8::try_from(*c).is_ok_and(allowed))
        {
            return Err(InvalidMethodPath::Character { found, at });
        }
        let parts = path.strip_prefix('/').and_then(|rest| rest.split_once('/'));
        match parts {
            Some((service, method)) if !service.is_empty() && !method.is_empty() && !method.contains('/') => {
                Ok(Self(path.into()))
            }
            _ => Err(InvalidMethodPath::Form),
        }
    }

    /// The whole path, with both slashes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The service with its package, for example `csi.v1.Controller`.
    #[must_use]
    pub fn service(&self) -> &str {
        self.0[1..].split_once('/').map_or("", |(service, _)| service)
    }

    /// Whether a caller on another host may call the method: those of the identity, controller, group controller and
    /// snapshot metadata services, `NodeGetInfo` and `NodeGetCapabilities`. Every other Node method mounts or unmounts on
    /// the node, and belongs to a caller on that node.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        match self.service() {
            "csi.v1.Identity"
            | "csi.v1.Controller"
            | "csi.v1.GroupController"
            | "csi.v1.SnapshotMetadata" => true,
            _ => matches!(self.as_str(), "/csi.v1.Node/NodeGetInfo" | "/csi.v1.Node/NodeGetCapabilities"),
        }
    }

    /// Whether the method is known and has exactly one response message.
    #[cfg(feature = "runtime")]
    pub(crate) fn is_unary(&self) -> bool {
        csi_proto::Method::from_path(self.as_str()).is_some_and(|method| !method.is_server_streaming())
    }
}

impl fmt::Display for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_paths() {
        for bad in ["", "/", "//", "/a", "/a/", "//b", "a/b", "/a/b/c"] {
            assert_eq!(MethodPath::new(bad), Err(InvalidMethodPath::Form), "{bad:?}");
        }
        assert_eq!(MethodPath::new("/a/b?c"), Err(InvalidMethodPath::Character { found: '?', at: 4 }));
        let long = format!("/a/{}", "b".repeat(300));
        assert_eq!(MethodPath::new(long), Err(InvalidMethodPath::TooLong { found: 303 }));
    }

    /// The schema has no other service or method that may be called from another host.
    #[test]
    fn remote_methods_mount_nothing() {
        for method in csi_proto::Method::ALL {
            let path = MethodPath::new(method.path()).unwrap();
            let harmless = !path.as_str().starts_with("/csi.v1.Node/")
                || ["/NodeGetInfo", "/NodeGetCapabilities"].iter().any(|name| path.as_str().ends_with(name));
            assert_eq!(path.is_remote(), harmless, "{path}");
        }
        for other in ["/csi.v2.Controller/CreateVolume", "/csi.v1.Node/NodeGetInfo2", "/vendor.Admin/Run"] {
            assert!(!MethodPath::new(other).unwrap().is_remote(), "{other}");
        }
    }

    #[test]
    fn service_includes_its_package() {
        let path = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
        assert_eq!(path.service(), "csi.v1.Controller");
    }
}
