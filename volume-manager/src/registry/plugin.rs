//! What a registrar says of its driver, checked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use csi_proto::DriverName;
use csi_proto::name::InvalidDriverName;
use csi_proto::pluginregistration::v1::PluginInfo;

use super::core::SocketName;
use crate::excerpt::short;

/// The one type of plugin that is registered here.
const CSI_PLUGIN: &str = "CSIPlugin";

/// The one major version of CSI that is spoken here.
const SUPPORTED_MAJOR: u32 = 1;

/// The most versions that a driver may list.
const MAX_VERSIONS: usize = 16;

/// A driver as its registrar announced it, with every field checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plugin {
    pub(super) name: DriverName,
    pub(super) endpoint: DriverEndpoint,
}

impl Plugin {
    /// Checks what GetInfo answered. An empty endpoint means that the driver serves on `socket` too.
    pub(super) fn check(info: PluginInfo, socket: &Path) -> Result<Self, Refusal> {
        if info.r#type != CSI_PLUGIN {
            return Err(Refusal::Type { found: short(&info.r#type) });
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

/// Whether one of the versions is spoken here.
fn check_versions(listed: &[String]) -> Result<(), Refusal> {
    if listed.len() > MAX_VERSIONS {
        return Err(Refusal::TooManyVersions { found: listed.len() });
    }
    if listed.iter().any(|version| major(version) == Some(SUPPORTED_MAJOR)) {
        return Ok(());
    }
    Err(Refusal::Version { found: listed.iter().map(|text| short(text)).collect() })
}

/// The first number of a version: `1`, `1.13` or `1.13.0`, with or without a `v` before it.
fn major(version: &str) -> Option<u32> {
    let parts: Vec<&str> = version.strip_prefix('v').unwrap_or(version).split('.').collect();
    let mut numbers = Vec::new();
    for part in parts {
        // A sign is accepted by the parser of numbers, but not in a version.
        let digits = Some(part).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        numbers.push(digits.parse::<u32>().ok()?);
    }
    numbers.first().copied().filter(|_| numbers.len() <= 3)
}

/// Why a driver is not registered. The text of this error and its cause is what the registrar is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The plugin is of another type.
    #[error("type is {found:?}; only plugins of type {CSI_PLUGIN:?} are registered here")]
    Type {
        /// The type that GetInfo answered, at most 64 bytes of it.
        found: String,
    },
    /// The name is not a driver name.
    #[error("name is not valid")]
    Name(#[from] InvalidDriverName),
    /// Another registrar holds the name.
    #[error(
        "name {name} is registered already, through the socket {holder}; remove that socket, or give the driver another name"
    )]
    DuplicateName {
        /// The name that both want.
        name: DriverName,
        /// The socket that came first.
        holder: SocketName,
    },
    /// No listed version is supported.
    #[error("supported_versions is {found:?}; one version of the form {SUPPORTED_MAJOR}.x.y is needed")]
    Version {
        /// The listed versions, cut at 64 bytes each.
        found: Vec<String>,
    },
    /// The list of versions is too long.
    #[error("supported_versions has {found} entries; at most {MAX_VERSIONS} are read")]
    TooManyVersions {
        /// How many there are.
        found: usize,
    },
    /// The endpoint cannot be dialled.
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
    /// The longest path, in bytes, that Linux takes as the address of a unix socket.
    pub const MAX_PATH_BYTES: usize = 107;

    /// Checks a path.
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

    /// Takes `/path`, `unix:/path` and `unix:///path`.
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
    /// No absolute path.
    #[error("{found:?} is not an absolute path; give /path/to/csi.sock or unix:///path/to/csi.sock")]
    NotAbsolute {
        /// What was given, at most 64 bytes of it.
        found: String,
    },
    /// No address can hold the path.
    #[error(
        "the path has {found} bytes; the address of a unix socket holds {}",
        DriverEndpoint::MAX_PATH_BYTES
    )]
    TooLong {
        /// How many bytes the path has.
        found: usize,
    },
}
