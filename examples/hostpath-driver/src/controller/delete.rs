//! DeleteVolume.

use csi_proto::csi::v1 as csi;

use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::loop_device;
use crate::volume::{Phase, VolumeKind, VolumeRecord};

impl Driver {
    pub(crate) fn delete_volume(
        &self,
        request: csi::DeleteVolumeRequest,
    ) -> Result<csi::DeleteVolumeResponse, CallError> {
        let id = ResourceId::parse(required("volume_id", "the id of a volume", &request.volume_id)?);
        let Some(id) = id.filter(|id| self.volumes.by_id(id).is_some()) else {
            return Ok(csi::DeleteVolumeResponse {});
        };
        let _guard = self.lock("volume", &id)?;
        let Some(volume) = self.volumes.by_id(&id) else { return Ok(csi::DeleteVolumeResponse {}) };
        if volume.attachment.is_some() {
            let state = format!("is attached to node {}", self.config.node_id);
            return Err(CallError::volume_state(&id, state, "detach it with ControllerUnpublishVolume"));
        }
        self.refuse_if_mounted(&volume)?;
        self.discard_volume(volume)?;
        tracing::info!(volume = %id, "volume deleted");
        Ok(csi::DeleteVolumeResponse {})
    }

    /// Fails while the volume is mounted anywhere.
    pub(super) fn refuse_if_mounted(&self, volume: &VolumeRecord) -> Result<(), CallError> {
        match self.presence(volume)?.first_mount(volume) {
            None => Ok(()),
            Some(path) => {
                let state = format!("is mounted at {}", path.display());
                Err(CallError::volume_state(&volume.id, state, "unpublish and unstage it first"))
            }
        }
    }

    /// Removes an unused volume: marks the record, removes the data, then the record.
    pub(crate) fn discard_volume(&self, mut volume: VolumeRecord) -> Result<(), CallError> {
        let id = volume.id.clone();
        // Checked before the phase is recorded: a volume in deletion cannot be used, not even to unmount it.
        self.data.refuse_if_mounted(&id)?;
        volume.phase = Phase::Deleting;
        let content = self.content(&volume);
        let kind = volume.kind;
        self.volumes.put(volume)?;
        if kind == VolumeKind::Loop
            && let Some(device) = loop_device::find(&content)?
        {
            device.detach()?;
        }
        self.data.remove(&id)?;
        self.volumes.remove(&id)
    }
}
