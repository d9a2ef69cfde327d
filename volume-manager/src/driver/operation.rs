//! Operations of a driver.

use std::sync::Arc;

use csi_proto::Method;

use super::consumer_spec::ConsumerSpec;
use super::mount_path::MountPath;

/// One call about one volume, with its arguments besides the [`VolumeSpec`](super::VolumeSpec).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// ControllerPublishVolume: attach to this node.
    ControllerPublish,
    /// ControllerUnpublishVolume: detach from this node, under its present or an earlier node id.
    ControllerUnpublish {
        /// The node id under which the volume was attached; `None` for the present one. The call never detaches
        /// from all nodes.
        node_id: Option<String>,
    },
    /// NodeStageVolume
    NodeStage {
        /// The staging path, an existing directory.
        staging_path: MountPath,
    },
    /// NodeUnstageVolume
    NodeUnstage {
        /// The path where the volume was staged.
        staging_path: MountPath,
    },
    /// NodePublishVolume
    NodePublish {
        /// The consumer with its target path, whose parent directory must exist.
        consumer: Arc<ConsumerSpec>,
        /// The staging path; omitted for drivers that do not stage, and for ephemeral volumes.
        staging_path: MountPath,
    },
    /// NodeUnpublishVolume
    NodeUnpublish {
        /// The path where the volume was published.
        target_path: MountPath,
    },
    /// ControllerExpandVolume
    ControllerExpand {
        /// The minimum size, in bytes.
        required_bytes: u64,
    },
    /// NodeExpandVolume
    NodeExpand {
        /// The minimum size, in bytes.
        required_bytes: u64,
        /// A target path or the staging path.
        volume_path: MountPath,
        /// The staging path; omitted for drivers that do not stage.
        staging_path: MountPath,
    },
    /// NodeGetVolumeStats
    Stats {
        /// A target path or the staging path.
        volume_path: MountPath,
        /// The staging path; omitted for drivers that do not stage.
        staging_path: MountPath,
    },
    /// NodeGetVolumeHealth. Alpha.
    Health {
        /// The target path.
        volume_path: Option<MountPath>,
        /// The staging path; omitted for drivers that do not stage.
        staging_path: MountPath,
    },
}

impl Operation {
    /// The RPC of the operation.
    #[must_use]
    pub fn method(&self) -> Method {
        match self {
            Self::ControllerPublish => Method::ControllerPublishVolume,
            Self::ControllerUnpublish { .. } => Method::ControllerUnpublishVolume,
            Self::NodeStage { .. } => Method::NodeStageVolume,
            Self::NodeUnstage { .. } => Method::NodeUnstageVolume,
            Self::NodePublish { .. } => Method::NodePublishVolume,
            Self::NodeUnpublish { .. } => Method::NodeUnpublishVolume,
            Self::ControllerExpand { .. } => Method::ControllerExpandVolume,
            Self::NodeExpand { .. } => Method::NodeExpandVolume,
            Self::Stats { .. } => Method::NodeGetVolumeStats,
            Self::Health { .. } => Method::NodeGetVolumeHealth,
        }
    }
}
