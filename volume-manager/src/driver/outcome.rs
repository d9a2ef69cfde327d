//! Results of successful calls.

use std::collections::BTreeMap;

/// The result of a call that returned OK.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// ControllerUnpublishVolume, or a stage, unstage, publish or unpublish call of the node service: no data is
    /// returned.
    Done,
    /// ControllerPublishVolume: the volume is attached.
    Attached {
        /// The context for the stage and publish calls on this node; at most 64 KiB.
        publish_context: BTreeMap<String, String>,
    },
    /// ControllerExpandVolume or NodeExpandVolume: the storage or the file system has grown.
    Expanded {
        /// The new size in bytes as the driver reports it, possibly less than required. 0 if NodeExpandVolume does not report it.
        capacity_bytes: u64,
        /// Whether NodeExpandVolume must follow.
        node_expansion_required: bool,
    },
    /// NodeGetVolumeStats
    Stats(VolumeStats),
    /// NodeGetVolumeHealth: the known issues.
    Health(Vec<HealthIssue>),
}

/// The usage of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeStats {
    /// The usage in bytes.
    pub bytes: Option<Usage>,
    /// The usage in inodes.
    pub inodes: Option<Usage>,
    /// The condition, from drivers of versions before 1.13 that have `VOLUME_CONDITION`.
    pub condition: Option<VolumeCondition>,
}

/// The usage in one unit. Negative numbers of a driver count as 0.
#[allow(clippy::exhaustive_structs, reason = "the fields of the spec's VolumeUsage")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Usage {
    /// The capacity.
    pub total: u64,
    /// The used amount.
    pub used: u64,
    /// The free amount.
    pub available: u64,
}

/// A volume's condition in CSI versions before 1.13.
#[allow(clippy::exhaustive_structs, reason = "a message that was removed from the spec")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VolumeCondition {
    /// Whether the volume is abnormal.
    pub abnormal: bool,
    /// The description, at most 1 KiB.
    pub message: String,
}

/// A health issue of a volume. Alpha.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HealthIssue {
    /// The severity.
    pub status: HealthStatus,
    /// The machine-readable cause, at most 128 bytes.
    pub reason: String,
    /// The description, at most 1 KiB.
    pub message: String,
}

/// The severity of a health issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Unspecified, or a value of a later version.
    Unknown,
    /// Usable, but degraded.
    Degraded,
    /// Not reachable from this node.
    Inaccessible,
    /// Data is lost or probably lost.
    DataLoss,
}
