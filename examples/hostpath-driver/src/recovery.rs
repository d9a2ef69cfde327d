//! Recovery at the start, which leaves no resource partly created or partly removed.

use super::controller::freeze;
use super::driver::Driver;
use super::error::CallError;
use super::identifier::ResourceId;
use super::snapshot::SnapshotRecord;
use super::volume::{ContentSource, Phase, VolumeRecord};

impl Driver {
    /// Undoes unfinished operations. Their callers retry.
    ///
    /// A resource that cannot be recovered now is logged and stays on record for the next start: one damaged volume must not
    /// prevent service for the others.
    pub(super) fn recover(&self) {
        for volume in self.volumes.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            log_failure("volume", &volume.id, self.recover_volume(&volume));
        }
        for snapshot in self.snapshots.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            log_failure("snapshot", &snapshot.id, self.recover_snapshot(&snapshot));
        }
        for group in self.groups.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            if group.phase != Phase::Ready {
                let id = group.id.clone();
                tracing::info!(group = %id, "removing an unfinished group of snapshots");
                log_failure("group of snapshots", &id, self.discard_group(group));
            }
        }
    }

    fn recover_volume(&self, volume: &VolumeRecord) -> Result<(), CallError> {
        match volume.phase {
            Phase::Creating | Phase::Deleting => {
                self.thaw_source_of(volume);
                tracing::info!(volume = %volume.id, phase = ?volume.phase, "removing an unfinished volume");
                self.discard_volume(volume.clone())
            }
            Phase::Ready if !self.data.exists(&volume.id, volume.kind) => {
                // The volume's health reports the loss too. The record stays: only the owner may decide that the
                // volume is lost.
                tracing::error!(volume = %volume.id, "the data of a volume is missing");
                Ok(())
            }
            // The size is recorded before the image grows.
            Phase::Ready => Ok(self.data.grow(&volume.id, volume.kind, volume.capacity_bytes)?),
        }
    }

    /// Thaws the source of an interrupted copy: a process that is killed during a copy leaves the source, and its writers,
    /// frozen.
    fn thaw_source_of(&self, volume: &VolumeRecord) {
        if let (Phase::Creating, Some(ContentSource::Volume(source))) = (volume.phase, &volume.source)
            && let Some(source) = self.volumes.by_id(source)
        {
            freeze::thaw(&source);
        }
    }

    fn recover_snapshot(&self, snapshot: &SnapshotRecord) -> Result<(), CallError> {
        if snapshot.phase == Phase::Creating
            && let Some(volume) = self.volumes.by_id(&snapshot.source_volume)
        {
            freeze::thaw(&volume);
        }
        if snapshot.phase != Phase::Ready {
            tracing::info!(snapshot = %snapshot.id, "removing an unfinished snapshot");
            self.discard_snapshot(snapshot.clone())?;
        }
        Ok(())
    }
}

fn log_failure(kind: &'static str, id: &ResourceId, recovered: Result<(), CallError>) {
    if let Err(error) = recovered {
        tracing::error!(kind, %id, %error, "cannot recover a resource; the next start retries");
    }
}
