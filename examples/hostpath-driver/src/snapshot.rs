//! The records of snapshots and of groups of them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csi_proto::csi::v1 as csi;
use serde::{Deserialize, Serialize};

use super::identifier::ResourceId;
use super::store::Record;
use super::volume::{Phase, VolumeKind};

/// The record of a snapshot, which is a full copy, independent of its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The id.
    pub id: ResourceId,
    /// The name in the create request.
    pub name: String,
    /// The progress of its creation or removal.
    pub phase: Phase,
    /// The volume that was copied.
    pub source_volume: ResourceId,
    /// The kind of its content.
    pub kind: VolumeKind,
    /// The size of its source at that time.
    pub size_bytes: u64,
    /// The time of the snapshot, since 1970.
    pub created: Duration,
    /// The group to which the snapshot belongs.
    pub group: Option<ResourceId>,
}

impl Record for SnapshotRecord {
    const FOLDER: &'static str = "snapshots";

    fn id(&self) -> &ResourceId {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl SnapshotRecord {
    /// Returns true if callers can see the snapshot.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Converts the record to the spec's message.
    pub fn to_csi(&self, topology: Option<csi::Topology>) -> csi::Snapshot {
        csi::Snapshot {
            size_bytes: i64::try_from(self.size_bytes).unwrap_or(i64::MAX),
            snapshot_id: self.id.to_string(),
            source_volume_id: self.source_volume.to_string(),
            creation_time: Some((UNIX_EPOCH + self.created).into()),
            ready_to_use: self.is_ready(),
            group_snapshot_id: self.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            accessible_topology: topology.into_iter().collect(),
        }
    }
}

/// The record of a group of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The id.
    pub id: ResourceId,
    /// The name in the create request.
    pub name: String,
    /// The progress of its creation or removal.
    pub phase: Phase,
    /// The snapshots of the group.
    pub snapshots: Vec<ResourceId>,
    /// The time of the snapshots, since 1970.
    pub created: Duration,
}

impl Record for GroupRecord {
    const FOLDER: &'static str = "groups";

    fn id(&self) -> &ResourceId {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the time since 1970.
pub fn since_epoch(now: SystemTime) -> Duration {
    now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
