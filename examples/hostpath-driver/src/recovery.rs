//! What happens at the start: nothing half made or half removed stays.

use super::controller::freeze;
use super::driver::Driver;
use super::error::CallError;
use super::identifier::ResourceId;
use super::snapshot::SnapshotRecord;
use super::volume::{ContentSource, Phase, VolumeRecord};

impl Driver {
    /// Undoes what was begun and not finished. Whoever asked for it will ask again.
    ///
    /// What cannot be undone now is told and stays on record for the next start: one volume's trouble is no reason to
    /// serve no other.
    pub(super) fn recover(&self) {
        for volume in self.volumes.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            told("volume", &volume.id, self.recover_volume(&volume));
        }
        for snapshot in self.snapshots.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            told("snapshot", &snapshot.id, self.recover_snapshot(&snapshot));
        }
        for group in self.groups.read(|rows| rows.values().cloned().collect::<Vec<_>>()) {
            if group.phase != Phase::Ready {
                let id = group.id.clone();
                tracing::info!(group = %id, "removing a group of snapshots that was left half done");
                told("group of snapshots", &id, self.discard_group(group));
            }
        }
    }

    fn recover_volume(&self, volume: &VolumeRecord) -> Result<(), CallError> {
        match volume.phase {
            Phase::Creating | Phase::Deleting => {
                self.thaw_source_of(volume);
                tracing::info!(volume = %volume.id, phase = ?volume.phase, "removing a volume that was left half done");
                self.discard_volume(volume.clone())
            }
            Phase::Ready if !self.data.exists(&volume.id, volume.kind) => {
                // Its health says so too. The record stays: only the owner may decide that the volume is gone.
                tracing::error!(volume = %volume.id, "the data of a volume is not there");
                Ok(())
            }
            // The size is on record before the image has it.
            Phase::Ready => Ok(self.data.grow(&volume.id, volume.kind, volume.capacity_bytes)?),
        }
    }

    /// A process that is killed while it copies leaves the source frozen, and all its writers with it.
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
            tracing::info!(snapshot = %snapshot.id, "removing a snapshot that was left half done");
            self.discard_snapshot(snapshot.clone())?;
        }
        Ok(())
    }
}

fn told(what: &'static str, id: &ResourceId, recovered: Result<(), CallError>) {
    if let Err(error) = recovered {
        tracing::error!(what, %id, %error, "what was left half done cannot be cleaned up; it stays for the next start");
    }
}
