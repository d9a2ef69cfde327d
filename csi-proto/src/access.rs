//! How a volume is used: [`VolumeCapability`] and its access mode.

use crate::csi::v1::VolumeCapability;
use crate::csi::v1::volume_capability::access_mode::Mode;
use crate::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// ```
/// use csi_proto::csi::v1::VolumeCapability;
/// use csi_proto::csi::v1::volume_capability::access_mode::Mode;
///
/// let capability = VolumeCapability::mount("ext4", ["noatime"]).with_mode(Mode::SingleNodeWriter);
/// assert!(!capability.is_block());
/// assert_eq!(capability.mode(), Some(Mode::SingleNodeWriter));
/// ```
impl VolumeCapability {
    /// Creates the capability of a mounted file system. With an empty `fs_type`, the plugin chooses the type. The
    /// flags are sensitive; the spec limits their total size to
    /// [`MOUNT_FLAGS_MAX_BYTES`](crate::validate::MOUNT_FLAGS_MAX_BYTES).
    #[must_use]
    pub fn mount<F: Into<String>>(
        fs_type: impl Into<String>,
        mount_flags: impl IntoIterator<Item = F>,
    ) -> Self {
        let mount_flags = mount_flags.into_iter().map(Into::into).collect();
        let mount = MountVolume { fs_type: fs_type.into(), mount_flags, volume_mount_group: String::new() };
        Self { access_type: Some(AccessType::Mount(mount)), access_mode: None }
    }

    /// Creates the capability of a raw block device.
    #[must_use]
    pub fn block() -> Self {
        Self { access_type: Some(AccessType::Block(BlockVolume {})), access_mode: None }
    }

    /// Sets the access mode, which is required in every request with a capability.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.access_mode = Some(AccessMode { mode: mode.into() });
        self
    }

    /// The access mode; `None` if it is absent, `UNKNOWN`, or of a later version of the spec.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        let mode = Mode::try_from(self.access_mode?.mode).ok()?;
        (mode != Mode::Unknown).then_some(mode)
    }

    /// Whether the volume is used as a raw block device.
    #[must_use]
    pub fn is_block(&self) -> bool {
        matches!(self.access_type, Some(AccessType::Block(_)))
    }

    /// How the volume is mounted; `None` for a block device.
    #[must_use]
    pub fn as_mount(&self) -> Option<&MountVolume> {
        match &self.access_type {
            Some(AccessType::Mount(mount)) => Some(mount),
            _ => None,
        }
    }
}

impl Mode {
    /// Whether only one node may use the volume at a time.
    #[must_use]
    pub const fn is_single_node(self) -> bool {
        matches!(
            self,
            Self::SingleNodeWriter
                | Self::SingleNodeReaderOnly
                | Self::SingleNodeSingleWriter
                | Self::SingleNodeMultiWriter
        )
    }

    /// Whether several nodes may use the volume at once.
    #[must_use]
    pub const fn is_multi_node(self) -> bool {
        matches!(self, Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Whether the volume is read-only.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether a second target path on the same node is allowed (spec, table of NodePublishVolume).
    #[must_use]
    pub const fn allows_several_targets(self) -> bool {
        self.is_multi_node() || matches!(self, Self::SingleNodeMultiWriter)
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessMode, Mode, VolumeCapability};

    #[test]
    fn modes_allow_nodes_and_targets() {
        use Mode::*;
        for (mode, single, multi, read_only, several) in [
            (Unknown, false, false, false, false),
            (SingleNodeWriter, true, false, false, false),
            (SingleNodeReaderOnly, true, false, true, false),
            (MultiNodeReaderOnly, false, true, true, true),
            (MultiNodeSingleWriter, false, true, false, true),
            (MultiNodeMultiWriter, false, true, false, true),
            (SingleNodeSingleWriter, true, false, false, false),
            (SingleNodeMultiWriter, true, false, false, true),
        ] {
            let found = (
                mode.is_single_node(),
                mode.is_multi_node(),
                mode.is_read_only(),
                mode.allows_several_targets(),
            );
            assert_eq!(found, (single, multi, read_only, several), "{mode:?}");
        }
    }

    #[test]
    fn absent_or_unknown_mode_is_none() {
        assert_eq!(VolumeCapability::block().mode(), None);
        for number in [0, 99] {
            let access_mode = Some(AccessMode { mode: number });
            assert_eq!(
                VolumeCapability { access_mode, ..VolumeCapability::block() }.mode(),
                None,
                "{number}"
            );
        }
    }

    #[test]
    fn capability_is_block_or_mount() {
        let block = VolumeCapability::block();
        assert!(block.is_block() && block.as_mount().is_none());
        let mount = VolumeCapability::mount("xfs", ["ro"]);
        assert!(!mount.is_block());
        assert_eq!(
            mount.as_mount().map(|mount| (mount.fs_type.as_str(), mount.mount_flags.len())),
            Some(("xfs", 1))
        );
    }
}
