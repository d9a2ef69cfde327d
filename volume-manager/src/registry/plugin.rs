//! Validates the answer of a registrar.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use csi_proto::DriverName;
use csi_proto::name::InvalidDriverName;
use csi_proto::pluginregistration::v1::PluginInfo;

use super::core::SocketName;
use crate::excerpt::short;

/// The only supported plugin type.
const CSI_PLUGIN: &str = "CSIPlugin";

/// The supported major version of CSI.
const SUPPORTED_MAJOR: u32 = 1;

/// The maximum number of versions that a driver may list.
const MAX_VERSIONS: usize = 16;

/// A driver as reported by its registrar, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plugin {
    pub(super) name: DriverName,
    pub(super) endpoint: DriverEndpoint,
}

impl Plugin {
    /// Validates an answer of GetInfo. An empty endpoint means that the driver serves on `socket`.
    pub(super) fn check(info: PluginInfo, socket: &Path) -> Result<Self, RejectReason> {
        if info.r#type != CSI_PLUGIN {
            return Err(RejectReason::Type { found: short(&info.r#type) });
        }
        let name = DriverName::new(info.name)?;
        let endpoint = match info.endpoint.as_str() {
            "" => DriverEndpoint::from_path(socket)?,
            text => text.parse()?,
        };
        check_versions(&info.supported_versions)?;
        Ok(Self { name, endpoint })
    }
}

/// Checks that one of the versions is supported.
fn check_versions(listed: &[String]) -> Result<(), RejectReason> {
    if listed.len() > MAX_VERSIONS {
        return Err(RejectReason::TooManyVersions { found: listed.len() });
    }
    if listed.iter().any(|version| major(version) == Some(SUPPORTED_MAJOR)) {
        return Ok(());
    }
    Err(RejectReason::Version { found: listed.iter().map(|text| short(text)).collect() })
}

/// The major number of a version: `1`, `1.13` or `1.13.0`, with or without a leading `v`.
fn major(version: &str) -> Option<u32> {
    let parts: Vec<&str> = version.strip_prefix('v').unwrap_or(version).split('.').collect();
    let mut numbers = Vec::new();
    for part in parts {
        // `parse` would accept a sign.
        let digits = Some(part).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        numbers.push(digits.parse::<u32>().ok()?);
    }
    numbers.first().copied().filter(|_| numbers.len() <= 3)
}

/// Why a driver was rejected. The registrar receives the text of this error and its cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// The plugin is of another type.
    #[error("type is {found:?}; expected {CSI_PLUGIN:?}")]
    Type {
        /// The type from GetInfo, cut at 64 bytes.
        found: String,
    },
    /// The name is not a valid driver name.
    #[error("name is not valid")]
    Name(#[from] InvalidDriverName),
    /// The name is registered through another socket.
    #[error(
        "name {name} is already registered through the socket {holder}; remove that socket, or give the driver another name"
    )]
    DuplicateName {
        /// The driver name.
        name: DriverName,
        /// The other socket.
        holder: SocketName,
    },
    /// No listed version is supported.
    #[error("supported_versions is {found:?}; expected one version {SUPPORTED_MAJOR}.x.y")]
    Version {
        /// The listed versions, cut at 64 bytes each.
        found: Vec<String>,
    },
    /// The list of versions is too long.
    #[error("supported_versions has {found} entries; at most {MAX_VERSIONS} are allowed")]
    TooManyVersions {
        /// The number of entries.
        found: usize,
    },
    /// The endpoint is invalid.
    #[error("endpoint is not valid")]
    Endpoint(#[from] InvalidDriverEndpoint),
}

/// The unix socket on which a driver serves CSI: an absolute path that fits into a socket address.
///
/// ```
/// use volume_manager::registry::DriverEndpoint;
///
/// let endpoint: DriverEndpoint = "/plugins/csi-hostpath/csi.sock".parse()?;
/// assert_eq!(endpoint.to_string(), "unix:///plugins/csi-hostpath/csi.sock");
/// # Ok::<(), volume_manager::registry::InvalidDriverEndpoint>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DriverEndpoint(PathBuf);

impl DriverEndpoint {
    /// The maximum size in bytes of a path in a unix socket address on Linux.
    pub const MAX_PATH_BYTES: usize = 107;

    /// Validates a path.
    ///
    /// # Errors
    /// If the path is relative or too long.
    pub fn from_path(path: impl Into<PathBuf>) -> Result<Self, InvalidDriverEndpoint> {
        let path = path.into();
        let bytes = path.as_os_str().len();
        if bytes > Self::MAX_PATH_BYTES {
            return Err(InvalidDriverEndpoint::TooLong { found: bytes });
        }
        if !path.is_absolute() || path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(InvalidDriverEndpoint::NotAbsolute { found: short(&path.to_string_lossy()) });
        }
        Ok(Self(path))
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for DriverEndpoint {
    type Err = InvalidDriverEndpoint;

    /// Parses `/path`, `unix:/path` or `unix:///path`.
    fn from_str(text: &str) -> Result<Self, InvalidDriverEndpoint> {
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        Self::from_path(path)
    }
}

impl fmt::Display for DriverEndpoint {
    /// Writes `unix:///path`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

/// Why a text or a path is not a [`DriverEndpoint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDriverEndpoint {
    /// The path is relative.
    #[error("{found:?} is not an absolute path; expected /path/to/csi.sock or unix:///path/to/csi.sock")]
    NotAbsolute {
        /// The text, cut at 64 bytes.
        found: String,
    },
    /// The path does not fit into a socket address.
    #[error(
        "the path has {found} bytes; at most {} fit into a unix socket address",
        DriverEndpoint::MAX_PATH_BYTES
    )]
    TooLong {
        /// The size of the path in bytes.
        found: usize,
    },
}
