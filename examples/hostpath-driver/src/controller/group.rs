//! Snapshots of several volumes at one point in time.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use csi_proto::csi::v1 as csi;

use super::{checked_name, or_discard, parameters};
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::snapshot::{GroupRecord, SnapshotRecord, since_epoch};
use crate::volume::{Phase, VolumeRecord};

/// Maximum number of volumes in a group.
const MAX_MEMBERS: usize = 64;

impl Driver {
    pub(crate) fn create_volume_group_snapshot(
        &self,
        request: csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<csi::CreateVolumeGroupSnapshotResponse, CallError> {
        let name = checked_name(&request.name)?;
        parameters::no_others(&request.parameters, &[])?;
        let sources: BTreeSet<&str> = request.source_volume_ids.iter().map(String::as_str).collect();
        if sources.is_empty() || sources.len() > MAX_MEMBERS {
            let expected = format!("1 to {MAX_MEMBERS} volumes");
            return Err(CallError::invalid("source_volume_ids", sources.len(), expected));
        }
        let _name = self.lock("group named", name)?;
        match self.groups.by_name(name) {
            Some(existing) if existing.phase == Phase::Ready => {
                let members = self.members(&existing);
                let found: BTreeSet<&str> =
                    members.iter().map(|snapshot| snapshot.source_volume.as_str()).collect();
                if found == sources {
                    return Ok(csi::CreateVolumeGroupSnapshotResponse {
                        group_snapshot: Some(self.describe_group(&existing)),
                    });
                }
                return Err(CallError::Incompatible {
                    subject: format!("group snapshot {name:?}"),
                    difference: "set of source volumes",
                    found: format!("{found:?}"),
                    expected: format!("{sources:?}"),
                });
            }
            Some(leftover) => self.discard_group(leftover)?,
            None => {}
        }
        let taken = sources.iter().map(|id| self.lock_volume(id)).collect::<Result<Vec<_>, _>>()?;
        let volumes: Vec<VolumeRecord> = taken.iter().map(|(volume, _)| volume.clone()).collect();
        let now = SystemTime::now();
        let mut group = GroupRecord {
            id: ResourceId::generate("group", now),
            name: name.to_owned(),
            phase: Phase::Creating,
            snapshots: Vec::new(),
            created: since_epoch(now),
        };
        self.groups.put(group.clone())?;
        let filled = self.fill_group(&mut group, &volumes);
        or_discard(filled, "group", || self.discard_group(group.clone()))?;
        let group_snapshot = Some(self.describe_group(&group));
        Ok(csi::CreateVolumeGroupSnapshotResponse { group_snapshot })
    }

    fn fill_group(&self, group: &mut GroupRecord, volumes: &[VolumeRecord]) -> Result<(), CallError> {
        let mut records = Vec::new();
        for volume in volumes {
            // A caller cannot use this name for a snapshot: it is longer than the group's id, which cannot be guessed.
            let record =
                self.reserve_snapshot(format!("{}/{}", group.id, volume.id), volume, Some(group.id.clone()))?;
            group.snapshots.push(record.id.clone());
            records.push(record);
        }
        {
            let _frozen = volumes.iter().map(|volume| self.freeze(volume)).collect::<Result<Vec<_>, _>>()?;
            for (volume, record) in volumes.iter().zip(&records) {
                self.data.copy(&volume.id, &record.id, volume.kind, record.size_bytes)?;
            }
        }
        for record in &records {
            self.finish_snapshot(record)?;
        }
        group.phase = Phase::Ready;
        self.groups.put(group.clone())?;
        Ok(())
    }

    pub(crate) fn delete_volume_group_snapshot(
        &self,
        request: csi::DeleteVolumeGroupSnapshotRequest,
    ) -> Result<csi::DeleteVolumeGroupSnapshotResponse, CallError> {
        let id = required("group_snapshot_id", "the id of a group snapshot", &request.group_snapshot_id)?;
        let Some(group) = ResourceId::parse(id).and_then(|id| self.groups.by_id(&id)) else {
            return Ok(csi::DeleteVolumeGroupSnapshotResponse {});
        };
        let _name = self.lock("group named", &group.name)?;
        check_members(&group, &request.snapshot_ids)?;
        let _members =
            group.snapshots.iter().map(|id| self.lock("snapshot", id)).collect::<Result<Vec<_>, _>>()?;
        self.discard_group(group)?;
        Ok(csi::DeleteVolumeGroupSnapshotResponse {})
    }

    pub(crate) fn get_volume_group_snapshot(
        &self,
        request: csi::GetVolumeGroupSnapshotRequest,
    ) -> Result<csi::GetVolumeGroupSnapshotResponse, CallError> {
        let id = required("group_snapshot_id", "the id of a group snapshot", &request.group_snapshot_id)?;
        let group =
            ResourceId::parse(id).and_then(|id| self.groups.by_id(&id)).filter(|g| g.phase == Phase::Ready);
        let group = group.ok_or_else(|| CallError::NotFound {
            subject: "group snapshot",
            found: id.to_owned(),
            hint: String::new(),
        })?;
        check_members(&group, &request.snapshot_ids)?;
        Ok(csi::GetVolumeGroupSnapshotResponse { group_snapshot: Some(self.describe_group(&group)) })
    }

    /// Removes a group with all its snapshots, including those of an interrupted attempt that the record does not list yet.
    pub(crate) fn discard_group(&self, mut group: GroupRecord) -> Result<(), CallError> {
        group.phase = Phase::Deleting;
        let id = group.id.clone();
        self.groups.put(group)?;
        let belongs = |snapshot: &&SnapshotRecord| snapshot.group.as_ref() == Some(&id);
        for snapshot in self.snapshots.read(|rows| rows.values().filter(belongs).cloned().collect::<Vec<_>>())
        {
            self.discard_snapshot(snapshot)?;
        }
        self.groups.remove(&id)
    }

    fn members(&self, group: &GroupRecord) -> Vec<SnapshotRecord> {
        group.snapshots.iter().filter_map(|id| self.snapshots.by_id(id)).collect()
    }

    fn describe_group(&self, group: &GroupRecord) -> csi::VolumeGroupSnapshot {
        csi::VolumeGroupSnapshot {
            group_snapshot_id: group.id.to_string(),
            snapshots: self
                .members(group)
                .iter()
                .map(|snapshot| snapshot.to_csi(self.config.topology_of_snapshots()))
                .collect(),
            creation_time: Some((UNIX_EPOCH + group.created).into()),
            ready_to_use: group.phase == Phase::Ready,
        }
    }
}

/// Checks that a request that lists members lists exactly those of the group.
fn check_members(group: &GroupRecord, requested: &[String]) -> Result<(), CallError> {
    let requested: BTreeSet<&str> = requested.iter().map(String::as_str).collect();
    let known: BTreeSet<&str> = group.snapshots.iter().map(ResourceId::as_str).collect();
    if requested.is_empty() || requested == known {
        return Ok(());
    }
    let expected = format!("none, or exactly the members {known:?}");
    Err(CallError::invalid("snapshot_ids", format!("{requested:?}"), expected))
}
