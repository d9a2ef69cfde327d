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
        /// The new size.
        size: CapacityRange,
    },
    /// NodeExpandVolume
    NodeExpand {
        /// The new size.
        size: CapacityRange,
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

/// Bounds of a size, in bytes: at least one byte, at most 2^63 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CapacityRange {
    required: u64,
    limit: Option<u64>,
}

impl CapacityRange {
    /// Not smaller than `required`, and not larger than `limit` if there is one.
    ///
    /// # Errors
    /// If nothing is required, a bound is more than the schema can say, or the limit is below what is required.
    pub fn new(required: u64, limit: Option<u64>) -> Result<Self, InvalidCapacityRange> {
        if required == 0 {
            return Err(InvalidCapacityRange::Zero);
        }
        if let Some(found) =
            [Some(required), limit].into_iter().flatten().find(|found| i64::try_from(*found).is_err())
        {
            return Err(InvalidCapacityRange::TooLarge { found });
        }
        match limit {
            Some(limit) if limit < required => Err(InvalidCapacityRange::Contradiction { required, limit }),
            _ => Ok(Self { required, limit }),
        }
    }

    /// The least size, in bytes.
    #[must_use]
    pub fn required(&self) -> u64 {
        self.required
    }

    /// The largest size, in bytes, if there is a bound.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    #[cfg(any(feature = "runtime", test))]
    pub(super) fn message(self) -> csi_proto::csi::v1::CapacityRange {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        csi_proto::csi::v1::CapacityRange {
            required_bytes: bytes(self.required),
            limit_bytes: self.limit.map_or(0, bytes),
        }
    }
}

/// Why two numbers are not a [`CapacityRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCapacityRange {
    /// The spec takes 0 for "no bound".
    #[error("required_bytes is 0; give the size that is wanted")]
    Zero,
    /// More than the schema can say.
    #[error("a size of {found} bytes; at most {} are allowed", i64::MAX)]
    TooLarge {
        /// The size.
        found: u64,
    },
    /// No size is within the bounds.
    #[error("limit_bytes {limit} is less than required_bytes {required}; raise the limit, or leave it out")]
    Contradiction {
        /// The lower bound.
        required: u64,
        /// The upper bound.
        limit: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_size_in_it_that_the_schema_can_say() {
        assert_eq!(CapacityRange::new(5, Some(5)).unwrap().limit(), Some(5));
        let message = CapacityRange::new(5, None).unwrap().message();
        assert_eq!((message.required_bytes, message.limit_bytes), (5, 0));
        assert_eq!(CapacityRange::new(0, None), Err(InvalidCapacityRange::Zero));
        let found = 1 << 63;
        assert_eq!(CapacityRange::new(found, None), Err(InvalidCapacityRange::TooLarge { found }));
        assert_eq!(CapacityRange::new(1, Some(found)), Err(InvalidCapacityRange::TooLarge { found }));
        let contradiction = InvalidCapacityRange::Contradiction { required: 5, limit: 4 };
        assert_eq!(CapacityRange::new(5, Some(4)), Err(contradiction));
    }
}
