//! Snapshots: full copies that outlive their source.

use std::time::SystemTime;

use csi_proto::csi::v1 as csi;

use super::{checked_name, or_discard, parameters};
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::paging;
use crate::snapshot::{SnapshotRecord, since_epoch};
use crate::volume::{Phase, VolumeRecord};

impl Driver {
    pub(crate) fn create_snapshot(
        &self,
        request: csi::CreateSnapshotRequest,
    ) -> Result<csi::CreateSnapshotResponse, CallError> {
        let name = checked_name(&request.name)?;
        let source = required("source_volume_id", "the id of a volume", &request.source_volume_id)?;
        parameters::no_others(&request.parameters, &[])?;
        let _name = self.lock("snapshot named", name)?;
        match self.snapshots.by_name(name) {
            Some(existing) if existing.is_ready() && existing.source_volume.as_str() == source => {
                return Ok(self.snapshot_created(&existing));
            }
            Some(existing) if existing.is_ready() => {
                return Err(CallError::Incompatible {
                    subject: format!("snapshot {name:?}"),
                    difference: "source volume",
                    found: existing.source_volume.to_string(),
                    expected: source.to_owned(),
                });
            }
            Some(leftover) => self.discard_snapshot(leftover)?,
            None => {}
        }
        let requirement = request.accessibility_requirements.as_ref();
        self.check_topology(requirement, "snapshots stay on the node of their volume")?;
        let (volume, _volume) = self.lock_volume(source)?;
        let record = self.reserve_snapshot(name.to_owned(), &volume, None)?;
        let made = self
            .copy_at_rest(&volume, &record.id, record.size_bytes)
            .and_then(|()| self.finish_snapshot(&record));
        let snapshot = or_discard(made, "snapshot", || self.discard_snapshot(record))?;
        tracing::info!(snapshot = %snapshot.id, volume = %volume.id, "snapshot created");
        Ok(self.snapshot_created(&snapshot))
    }

    /// Reserves the space for a snapshot and records its creation.
    pub(super) fn reserve_snapshot(
        &self,
        name: String,
        volume: &VolumeRecord,
        group: Option<ResourceId>,
    ) -> Result<SnapshotRecord, CallError> {
        let now = SystemTime::now();
        let record = SnapshotRecord {
            id: ResourceId::generate("snap", now),
            name,
            phase: Phase::Creating,
            source_volume: volume.id.clone(),
            kind: volume.kind,
            size_bytes: volume.capacity_bytes,
            created: since_epoch(now),
            group,
        };
        let _admission = self.admission();
        self.check_space(record.size_bytes)?;
        self.snapshots.put(record.clone())?;
        Ok(record)
    }

    pub(super) fn finish_snapshot(&self, record: &SnapshotRecord) -> Result<SnapshotRecord, CallError> {
        let snapshot = SnapshotRecord { phase: Phase::Ready, ..record.clone() };
        self.snapshots.put(snapshot.clone())?;
        Ok(snapshot)
    }

    /// Removes a snapshot that is not being copied: marks the record, removes the data, then the record.
    pub(crate) fn discard_snapshot(&self, mut snapshot: SnapshotRecord) -> Result<(), CallError> {
        let id = snapshot.id.clone();
        snapshot.phase = Phase::Deleting;
        self.snapshots.put(snapshot)?;
        self.data.remove(&id)?;
        self.snapshots.remove(&id)
    }

    pub(crate) fn delete_snapshot(
        &self,
        request: csi::DeleteSnapshotRequest,
    ) -> Result<csi::DeleteSnapshotResponse, CallError> {
        let id = ResourceId::parse(required("snapshot_id", "the id of a snapshot", &request.snapshot_id)?);
        let Some(id) = id.filter(|id| self.snapshots.by_id(id).is_some()) else {
            return Ok(csi::DeleteSnapshotResponse {});
        };
        let _guard = self.lock("snapshot", &id)?;
        let Some(snapshot) = self.snapshots.by_id(&id) else { return Ok(csi::DeleteSnapshotResponse {}) };
        if snapshot.phase == Phase::Creating {
            return Err(CallError::Pending(format!("snapshot {id}")));
        }
        if let Some(group) = &snapshot.group {
            return Err(CallError::invalid(
                "snapshot_id",
                id,
                format!(
                    "a snapshot that is not in a group; delete this one with DeleteVolumeGroupSnapshot of {group}"
                ),
            ));
        }
        self.discard_snapshot(snapshot)?;
        tracing::info!(snapshot = %id, "snapshot deleted");
        Ok(csi::DeleteSnapshotResponse {})
    }

    pub(crate) fn list_snapshots(
        &self,
        request: csi::ListSnapshotsRequest,
    ) -> Result<csi::ListSnapshotsResponse, CallError> {
        let is_asked_for = |snapshot: &SnapshotRecord| {
            snapshot.is_ready()
                && (request.snapshot_id.is_empty() || snapshot.id.as_str() == request.snapshot_id)
                && (request.source_volume_id.is_empty()
                    || snapshot.source_volume.as_str() == request.source_volume_id)
        };
        let show = |snapshot: &SnapshotRecord| csi::list_snapshots_response::Entry {
            snapshot: Some(snapshot.to_csi(self.config.topology_of_snapshots())),
        };
        let page = self.snapshots.read(|rows| {
            let found = rows.iter().filter(|(_, snapshot)| is_asked_for(snapshot));
            paging::page(found, request.max_entries, &request.starting_token, show)
        })?;
        Ok(csi::ListSnapshotsResponse { entries: page.entries, next_token: page.next_token })
    }

    pub(crate) fn get_snapshot(
        &self,
        request: csi::GetSnapshotRequest,
    ) -> Result<csi::GetSnapshotResponse, CallError> {
        let id = ResourceId::parse(required("snapshot_id", "the id of a snapshot", &request.snapshot_id)?);
        let snapshot = id.and_then(|id| self.snapshots.by_id(&id)).filter(SnapshotRecord::is_ready);
        let snapshot = snapshot.ok_or_else(|| CallError::no_snapshot(&request.snapshot_id))?;
        Ok(csi::GetSnapshotResponse { snapshot: Some(snapshot.to_csi(self.config.topology_of_snapshots())) })
    }

    fn snapshot_created(&self, snapshot: &SnapshotRecord) -> csi::CreateSnapshotResponse {
        csi::CreateSnapshotResponse { snapshot: Some(snapshot.to_csi(self.config.topology_of_snapshots())) }
    }
}
