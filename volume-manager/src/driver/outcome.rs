//! What a driver answers when a call is good.

use std::collections::BTreeMap;

/// What a call that ended with OK brought.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallOutcome {
    /// Nothing besides: ControllerUnpublishVolume and the four node calls.
    Done,
    /// ControllerPublishVolume: the volume is attached.
    Attached {
        /// For the stage and publish calls of this node; at most 64 KiB.
        publish_context: BTreeMap<String, String>,
    },
    /// ControllerExpandVolume or NodeExpandVolume: the storage or the file system has grown.
    Expanded {
        /// The size now, in bytes, as the driver says it, which may be less than was required; 0 if it is not said, as
        /// NodeExpandVolume may.
        capacity_bytes: u64,
        /// Whether NodeExpandVolume must follow.
        node_expansion_required: bool,
    },
    /// NodeGetVolumeStats
    Stats(VolumeStats),
    /// NodeGetVolumeHealth: what is wrong; empty if nothing is known to be.
    Health(Vec<HealthIssue>),
}

/// How full a volume is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeStats {
    /// In bytes.
    pub bytes: Option<Usage>,
    /// In inodes.
    pub inodes: Option<Usage>,
    /// The condition, from drivers of versions before 1.13 that have `VOLUME_CONDITION`.
    pub condition: Option<VolumeCondition>,
}

/// How full, in one unit. A driver that sends negative numbers is taken to mean 0.
#[allow(clippy::exhaustive_structs, reason = "the fields of the spec's VolumeUsage")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Usage {
    /// How much there is.
    pub total: u64,
    /// How much is taken.
    pub used: u64,
    /// How much is free.
    pub available: u64,
}

/// A volume's condition as versions before 1.13 told it.
#[allow(clippy::exhaustive_structs, reason = "a message that the spec has given up")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VolumeCondition {
    /// Whether something is wrong.
    pub abnormal: bool,
    /// What, at most 1 KiB.
    pub message: String,
}

/// One thing that is wrong with a volume. Alpha.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HealthIssue {
    /// How bad it is.
    pub status: HealthStatus,
    /// Its cause in one word for machines, at most 128 bytes.
    pub reason: String,
    /// Its description, at most 1 KiB.
    pub message: String,
}

/// How bad the health of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HealthStatus {
    /// Not said, or a kind of a later version.
    Unknown,
    /// Usable, but worse than it should be.
    Degraded,
    /// Not reachable from this node.
    Inaccessible,
    /// Data is lost, or probably so.
    DataLoss,
}
