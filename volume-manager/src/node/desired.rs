//! The desired volumes of a node, and the results of requests.

use std::sync::Arc;

use super::error::PublishError;
use crate::driver::{ConsumerSpec, MountPath, OwnershipChange, VolumeSpec};
use crate::name::{ConsumerId, VolumeKey};

/// A desired volume with all its consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a volume and its consumers")]
pub struct DesiredVolume {
    /// The volume.
    pub spec: Arc<VolumeSpec>,
    /// The consumers of the volume. Without consumers the volume is unpublished and unstaged.
    pub consumers: Vec<Arc<ConsumerSpec>>,
}

/// A published volume; the mount table agrees.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The path of the mount.
    pub target_path: MountPath,
    /// The component that applies the requested `fsGroup`.
    ///
    /// This crate never walks the files of a volume: a walk may take hours, and the files belong to the user.
    pub group: OwnershipChange,
}

/// The changes that a desired set caused; all are on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciled {
    /// The number of consumers that were added.
    pub wanted: usize,
    /// The number of consumers that were released.
    pub released: usize,
    /// The rejected consumers, with reasons. All others were accepted.
    pub refused: Vec<(VolumeKey, ConsumerId, PublishError)>,
}
