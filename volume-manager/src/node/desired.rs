//! What is wanted of a node, and what came of it.

use std::sync::Arc;

use super::error::PublishError;
use crate::driver::{ConsumerSpec, MountPath, OwnershipChange, VolumeSpec};
use crate::name::{ConsumerId, VolumeKey};

/// A volume with all consumers that shall have it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a volume and its consumers")]
pub struct DesiredVolume {
    /// The volume.
    pub spec: Arc<VolumeSpec>,
    /// Who shall have it. With none, the volume is taken down.
    pub consumers: Vec<Arc<ConsumerSpec>>,
}

/// A volume is at its target, and the mount table agrees.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// Where.
    pub target_path: MountPath,
    /// Who gives its files to the group that was asked for (`fsGroup`).
    ///
    /// Nothing here ever walks over the files of a volume: that may take hours, and the files are not ours.
    pub group: OwnershipChange,
}

/// What a desired set changed. It is on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciled {
    /// How many consumers are wanted that were not before.
    pub wanted: usize,
    /// How many consumers are not wanted any more.
    pub released: usize,
    /// What was not taken, and why. The others were.
    pub refused: Vec<(VolumeKey, ConsumerId, PublishError)>,
}
