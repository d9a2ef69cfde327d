//! What can be asked of a driver.

use std::sync::Arc;

use csi_proto::Method;

use super::consumer_spec::ConsumerSpec;
use super::mount_path::MountPath;

/// One call about one volume, with what it needs besides the [`VolumeSpec`](super::VolumeSpec).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// ControllerPublishVolume: attach to this node.
    ControllerPublish,
    /// ControllerUnpublishVolume: detach from this node, or from another one of the same name.
    ControllerUnpublish {
        /// The id of the node that the volume was attached to; the present one if `None`. Never all nodes.
        node_id: Option<String>,
    },
    /// NodeStageVolume
    NodeStage {
        /// A directory that exists.
        staging_path: MountPath,
    },
    /// NodeUnstageVolume
    NodeUnstage {
        /// Where it was staged.
        staging_path: MountPath,
    },
    /// NodePublishVolume
    NodePublish {
        /// Who it is for, and where. The parent of the target exists.
        consumer: Arc<ConsumerSpec>,
        /// Where it is staged; left out for drivers that do not stage, and for ephemeral volumes.
        staging_path: MountPath,
    },
    /// NodeUnpublishVolume
    NodeUnpublish {
        /// Where it was published.
        target_path: MountPath,
    },
    /// ControllerExpandVolume
    ControllerExpand {
        /// The size that it shall have at least, in bytes.
        required_bytes: u64,
    },
    /// NodeExpandVolume
    NodeExpand {
        /// The size that it shall have at least, in bytes.
        required_bytes: u64,
        /// Where it is published, or staged.
        volume_path: MountPath,
        /// Where it is staged; left out for drivers that do not stage.
        staging_path: MountPath,
    },
    /// NodeGetVolumeStats
    Stats {
        /// Where it is published, or staged.
        volume_path: MountPath,
        /// Where it is staged; left out for drivers that do not stage.
        staging_path: MountPath,
    },
    /// NodeGetVolumeHealth. Alpha.
    Health {
        /// Where it is published, or should be.
        volume_path: Option<MountPath>,
        /// Where it is staged; left out for drivers that do not stage.
        staging_path: MountPath,
    },
}

impl Operation {
    /// The method that is called.
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
