//! Access type and access mode of a volume.

use std::fmt;

#[cfg(feature = "runtime")]
use csi_proto::csi::v1::{
    VolumeCapability,
    volume_capability::{AccessType, MountVolume},
};

pub use csi_proto::csi::v1::volume_capability::access_mode::Mode as AccessMode;

/// The access type of a volume.
#[allow(clippy::exhaustive_enums, reason = "the two access types of the spec")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Access {
    /// A mounted file system.
    Filesystem {
        /// The file system type, such as `ext4`, at most 128 bytes. If empty, the driver chooses.
        fs_type: String,
        /// The mount options, at most 64 KiB together. They may be sensitive (spec, message `MountVolume`), so `Debug`
        /// leaves them out.
        mount_flags: Vec<String>,
    },
    /// A raw block device.
    Block,
}

impl Access {
    /// A file system of the driver's choice, without mount options.
    #[must_use]
    pub fn filesystem() -> Self {
        Self::Filesystem { fs_type: String::new(), mount_flags: Vec::new() }
    }

    /// Whether the volume is a raw block device.
    #[must_use]
    pub fn is_block(&self) -> bool {
        matches!(self, Self::Block)
    }

    /// The mount options; none for a block device.
    #[cfg(feature = "runtime")]
    pub(super) fn mount_flags(&self) -> &[String] {
        match self {
            Self::Filesystem { mount_flags, .. } => mount_flags,
            Self::Block => &[],
        }
    }

    /// The `VolumeCapability` of a request.
    #[cfg(feature = "runtime")]
    pub(super) fn capability(
        &self,
        mode: AccessMode,
        selinux_flag: Option<String>,
        mount_group: Option<u32>,
    ) -> VolumeCapability {
        let capability = match self {
            Self::Block => VolumeCapability::block(),
            Self::Filesystem { fs_type, mount_flags } => {
                let mount = MountVolume {
                    fs_type: fs_type.clone(),
                    mount_flags: mount_flags.iter().cloned().chain(selinux_flag).collect(),
                    volume_mount_group: mount_group.map(|group| group.to_string()).unwrap_or_default(),
                };
                VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: None }
            }
        };
        capability.with_mode(mode)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filesystem { fs_type, mount_flags } => f
                .debug_struct("Filesystem")
                .field("fs_type", fs_type)
                .field("mount_flags", &format_args!("{} stripped", mount_flags.len()))
                .finish(),
            Self::Block => f.write_str("Block"),
        }
    }
}

/// Returns the access mode to send to a driver with or without the capability `SINGLE_NODE_MULTI_WRITER`.
///
/// The alpha modes `SINGLE_NODE_SINGLE_WRITER` and `SINGLE_NODE_MULTI_WRITER` count the workloads of one node. A
/// driver without the capability receives `SINGLE_NODE_WRITER` instead, as from Kubernetes. A driver with the
/// capability may limit `SINGLE_NODE_WRITER` to one workload. It receives `SINGLE_NODE_MULTI_WRITER` instead, as
/// from Kubernetes, since a volume of that mode may have several consumers here.
#[cfg(any(feature = "runtime", test))]
pub(super) fn sent_mode(mode: AccessMode, single_node_multi_writer: bool) -> AccessMode {
    match mode {
        AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter
            if !single_node_multi_writer =>
        {
            AccessMode::SingleNodeWriter
        }
        AccessMode::SingleNodeWriter if single_node_multi_writer => AccessMode::SingleNodeMultiWriter,
        mode => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_workload_modes_only_to_capable_drivers() {
        use AccessMode::*;
        for mode in [SingleNodeSingleWriter, SingleNodeMultiWriter] {
            assert_eq!((sent_mode(mode, true), sent_mode(mode, false)), (mode, SingleNodeWriter));
        }
        assert_eq!(sent_mode(SingleNodeWriter, true), SingleNodeMultiWriter);
        assert_eq!(sent_mode(SingleNodeWriter, false), SingleNodeWriter);
        for mode in [SingleNodeReaderOnly, MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter] {
            assert_eq!((sent_mode(mode, true), sent_mode(mode, false)), (mode, mode));
        }
    }

    #[test]
    fn mount_flags_are_not_printed() {
        let access =
            Access::Filesystem { fs_type: "cifs".into(), mount_flags: vec!["password=hunter2".into()] };
        let printed = format!("{access:?}");
        assert!(!printed.contains("hunter2") && printed.contains("cifs"), "{printed}");
    }
}
