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
    /// ControllerUnpublishVolume: detach from this node, also under an earlier id.
    ControllerUnpublish {
        /// The id of the node that the volume was attached to; `None` for the present id. Never all nodes.
        node_id: Option<String>,
    },
    /// NodeStageVolume
    NodeStage {
        /// A directory that exists.
        staging_path: MountPath,
    },
    /// NodeUnstageVolume
    NodeUnstage {
        /// The path where it was staged.
        staging_path: MountPath,
    },
    /// NodePublishVolume
    NodePublish {
        /// The consumer with its target path. The parent directory of the target exists.
        consumer: Arc<ConsumerSpec>,
        /// The staging path; omitted for drivers that do not stage, and for ephemeral volumes.
        staging_path: MountPath,
    },
    /// NodeUnpublishVolume
    NodeUnpublish {
        /// The path where it was published.
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
    /// The RPC method of the operation.
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
