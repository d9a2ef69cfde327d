//! Which gRPC method a call is of.

use std::fmt;
use std::sync::Arc;

/// Longest [`MethodPath`] in bytes.
pub const MAX_METHOD_PATH: usize = 256;

/// A gRPC method as it stands in the `:path` of a request: `/package.Service/Method`. Cheap to clone.
///
/// Any service and method may stand there, also one that no CSI version has yet.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodPath(Arc<str>);

/// A method path is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMethodPath {
    /// It is too long.
    #[error("the method path has {found} bytes; at most {MAX_METHOD_PATH} are allowed")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// It is not a slash, a service, a slash and a method.
    #[error("the method path has not the form `/package.Service/Method`")]
    Form,
    /// It holds a character that names may not hold.
    #[error("the method path holds {found:?} at byte {at}; allowed are letters, digits, `.`, `_` and `-`")]
    Character {
        /// The character.
        found: char,
        /// Its place in bytes from the start.
        at: usize,
    },
}

impl MethodPath {
    /// Checks and takes a path.
    ///
    /// # Errors
    /// If it is longer than [`MAX_METHOD_PATH`] bytes or not of the form `/package.Service/Method`.
    pub fn new(path: impl AsRef<str>) -> Result<Self, InvalidMethodPath> {
        let path = path.as_ref();
        if path.len() > MAX_METHOD_PATH {
            return Err(InvalidMethodPath::TooLong { found: path.len() });
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        // By bytes, since every call has a path: no part of a longer character is allowed by itself.
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

    /// Whether exactly one message answers the method. Of a method that is not known here it cannot be said.
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
    fn a_path_outside_its_form_is_refused() {
        for bad in ["", "/", "//", "/a", "/a/", "//b", "a/b", "/a/b/c"] {
            assert_eq!(MethodPath::new(bad), Err(InvalidMethodPath::Form), "{bad:?}");
        }
        assert_eq!(MethodPath::new("/a/b?c"), Err(InvalidMethodPath::Character { found: '?', at: 4 }));
        let long = format!("/a/{}", "b".repeat(300));
        assert_eq!(MethodPath::new(long), Err(InvalidMethodPath::TooLong { found: 303 }));
    }

    #[test]
    fn the_service_of_a_path_has_its_package() {
        let path = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
        assert_eq!(path.service(), "csi.v1.Controller");
    }
}
