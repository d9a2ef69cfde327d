//! The address of a CSI socket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path of a unix socket on Linux, in bytes: 108 with the terminating zero byte.
pub const MAX_SOCKET_PATH: usize = 107;

/// The address of a unix socket in the form of `CSI_ENDPOINT`: `unix:///csi/csi.sock`, or the absolute path alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketAddress(PathBuf);

/// A socket address is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSocketAddress {
    /// The text is not the address of a unix socket.
    #[error("{found:?} is not the address of a unix socket; expected `unix:///absolute/path.sock`")]
    Form {
        /// The rejected text.
        found: String,
    },
    /// The path is longer than the operating system allows.
    #[error(
        "socket path {path:?} has {found} bytes; expected at most {MAX_SOCKET_PATH}; choose a shorter directory"
    )]
    TooLong {
        /// The path without its scheme.
        path: String,
        /// The length of the path in bytes.
        found: usize,
    },
}

impl SocketAddress {
    /// Parses an address.
    ///
    /// # Errors
    /// If the path is not absolute, with or without `unix://`, or is longer than [`MAX_SOCKET_PATH`] bytes.
    pub fn new(address: impl AsRef<str>) -> Result<Self, InvalidSocketAddress> {
        let address = address.as_ref();
        let path =
            address.strip_prefix("unix://").or_else(|| address.strip_prefix("unix:")).unwrap_or(address);
        if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
            return Err(InvalidSocketAddress::Form { found: address.to_owned() });
        }
        if path.len() > MAX_SOCKET_PATH {
            return Err(InvalidSocketAddress::TooLong { path: path.to_owned(), found: path.len() });
        }
        Ok(Self(path.into()))
    }

    /// The path of the socket; absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

impl FromStr for SocketAddress {
    type Err = InvalidSocketAddress;

    fn from_str(address: &str) -> Result<Self, InvalidSocketAddress> {
        Self::new(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_absolute_paths_with_or_without_scheme() {
        for valid in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            let address = SocketAddress::new(valid).unwrap();
            assert_eq!(address.path(), Path::new("/csi/csi.sock"), "{valid}");
            assert_eq!(address.to_string(), "unix:///csi/csi.sock");
        }
        for bad in ["", "csi.sock", "unix://csi.sock", "tcp://1.2.3.4:5", "unix:///", "/csi/"] {
            assert_eq!(
                SocketAddress::new(bad),
                Err(InvalidSocketAddress::Form { found: bad.into() }),
                "{bad:?}"
            );
        }
        let long = format!("/{}", "a".repeat(107));
        assert!(matches!(SocketAddress::new(&long), Err(InvalidSocketAddress::TooLong { found: 108, .. })));
        assert!(SocketAddress::new(&long[..107]).is_ok());
    }
}
