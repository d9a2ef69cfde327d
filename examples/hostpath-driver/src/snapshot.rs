//! What the driver remembers of snapshots and groups of them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use csi_proto::csi::v1 as csi;
use serde::{Deserialize, Serialize};

use super::identifier::ResourceId;
use super::store::Record;
use super::volume::{Phase, VolumeKind};

/// Everything that is remembered of a snapshot: a full copy, independent of its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its id.
    pub id: ResourceId,
    /// The name under which it was asked for.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// The volume that was copied.
    pub source_volume: ResourceId,
    /// What it is made of, as its source.
    pub kind: VolumeKind,
    /// The size of its source then.
    pub size_bytes: u64,
    /// When it was cut, since 1970.
    pub created: Duration,
    /// The group of snapshots to which it belongs.
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
    /// Whether callers may know of it.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// The snapshot as the spec has it.
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

/// Everything that is remembered of a group of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Its id.
    pub id: ResourceId,
    /// The name under which it was asked for.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// Its snapshots.
    pub snapshots: Vec<ResourceId>,
    /// When it was cut, since 1970.
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

/// The time since 1970.
pub fn since_epoch(now: SystemTime) -> Duration {
    now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
