//! The volume capabilities of a request, checked.

use csi::volume_capability::AccessType as ProtoAccess;
use csi::volume_capability::access_mode::Mode;
use csi_proto::csi::v1 as csi;
use serde::{Deserialize, Serialize};

use super::error::CallError;
use super::filesystem::{FILE_SYSTEMS, FileSystem};

/// A volume capability that this driver can provide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// The access type: block device or filesystem.
    pub access: Access,
    /// The access mode, a number of the spec.
    mode: i32,
}

/// The access type of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// A device file.
    Block,
    /// A mounted filesystem.
    Mount {
        /// The filesystem that the request names, if any.
        fs_type: Option<FileSystem>,
        /// Flags of the mount.
        flags: Vec<String>,
    },
}

impl Capability {
    /// Checks a capability of a request.
    ///
    /// # Errors
    /// Returns an error if the capability is incomplete, or requests an unsupported feature.
    pub fn parse(capability: Option<&csi::VolumeCapability>) -> Result<Self, CallError> {
        const FIELD: &str = "volume_capability";
        let missing = |expected| CallError::Missing { field: FIELD, expected };
        let capability = capability.ok_or_else(|| missing("an access type and an access mode"))?;
        let mode =
            capability.access_mode.as_ref().map(|m| m.mode).ok_or_else(|| missing("an access mode"))?;
        if Mode::try_from(mode).unwrap_or_default() == Mode::Unknown {
            let expected = "one of the access modes 1 to 7 of the spec";
            return Err(CallError::invalid("volume_capability.access_mode", mode, expected));
        }
        let access =
            match capability.access_type.as_ref().ok_or_else(|| missing("an access type, block or mount"))? {
                ProtoAccess::Block(_) => Access::Block,
                ProtoAccess::Mount(mount) => Access::parse_mount(mount)?,
            };
        Ok(Self { access, mode })
    }

    /// Checks all capabilities of a request; at least one is required.
    ///
    /// # Errors
    /// Returns the errors of [`Capability::parse`], or an error if the list is empty.
    pub fn parse_all(capabilities: &[csi::VolumeCapability]) -> Result<Vec<Self>, CallError> {
        if capabilities.is_empty() {
            return Err(CallError::Missing {
                field: "volume_capabilities",
                expected: "at least one capability",
            });
        }
        capabilities.iter().map(|capability| Self::parse(Some(capability))).collect()
    }

    /// Returns the access mode.
    pub fn mode(&self) -> Mode {
        Mode::try_from(self.mode).unwrap_or_default()
    }

    /// Returns true if the access mode is read-only.
    pub fn is_read_only(&self) -> bool {
        matches!(self.mode(), Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    /// Returns true if a node may publish the volume at more than one target path (the table of NodePublishVolume).
    pub fn allows_more_targets(&self) -> bool {
        use Mode::{SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter};
        !matches!(self.mode(), SingleNodeWriter | SingleNodeReaderOnly | SingleNodeSingleWriter)
    }

    /// Returns the filesystem that the request names.
    pub const fn fs_type(&self) -> Option<FileSystem> {
        match &self.access {
            Access::Mount { fs_type, .. } => *fs_type,
            Access::Block => None,
        }
    }
}

impl Access {
    fn parse_mount(mount: &csi::volume_capability::MountVolume) -> Result<Self, CallError> {
        let fs_type = match mount.fs_type.as_str() {
            "" => None,
            name => Some(FileSystem::parse(name).ok_or_else(|| {
                CallError::invalid(
                    "volume_capability.mount.fs_type",
                    name,
                    format!(
                        "empty or one of {:?}",
                        FILE_SYSTEMS.iter().map(|(known, _)| known).collect::<Vec<_>>()
                    ),
                )
            })?),
        };
        if !mount.volume_mount_group.is_empty() {
            return Err(CallError::invalid(
                "volume_capability.mount.volume_mount_group",
                &mount.volume_mount_group,
                "empty, since the node has no capability VOLUME_MOUNT_GROUP",
            ));
        }
        Ok(Self::Mount { fs_type, flags: mount.mount_flags.clone() })
    }
}

#[cfg(test)]
mod tests {
    use csi::volume_capability::{AccessMode as ProtoMode, BlockVolume, MountVolume};

    use super::*;

    fn mount(fs_type: &str, mode: i32) -> csi::VolumeCapability {
        let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
        csi::VolumeCapability {
            access_mode: Some(ProtoMode { mode }),
            access_type: Some(ProtoAccess::Mount(mount)),
        }
    }

    #[test]
    fn refuses_invalid_capabilities() {
        let no_mode = csi::VolumeCapability {
            access_mode: None,
            access_type: Some(ProtoAccess::Block(BlockVolume {})),
        };
        let no_type = csi::VolumeCapability { access_mode: Some(ProtoMode { mode: 1 }), access_type: None };
        for (capability, names) in [
            (None, "volume_capability"),
            (Some(&no_mode), "access mode"),
            (Some(&no_type), "access type"),
            (Some(&mount("", 0)), "access_mode"),
            (Some(&mount("", 8)), "access_mode"),
            (Some(&mount("ntfs", 1)), "ntfs"),
        ] {
            let error = Capability::parse(capability).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.to_string().contains(names), "{error}");
        }
        assert_eq!(Capability::parse_all(&[]).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn more_targets_are_a_matter_of_the_mode() {
        let allows = |mode| Capability::parse(Some(&mount("", mode))).unwrap().allows_more_targets();
        let allowed: Vec<_> = (1..=7).map(allows).collect();
        assert_eq!(allowed, [false, false, true, true, true, false, true]);
    }
}
