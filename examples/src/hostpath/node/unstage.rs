//! NodeUnstageVolume.

use csi_proto::csi::v1 as csi;

use super::host_path::HostPath;
use crate::hostpath::driver::Driver;
use crate::hostpath::error::CallError;
use crate::hostpath::volume::VolumeRecord;

impl Driver {
    pub(in crate::hostpath) fn node_unstage_volume(
        &self,
        request: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse, CallError> {
        let path = HostPath::parse("staging_target_path", &request.staging_target_path)?;
        let (volume, _guard) = self.take_volume(&request.volume_id)?;
        let presence = self.presence(&volume)?;
        let is_the_place = volume.staged.as_ref().is_some_and(|(at, _)| at == path.as_str());
        if !is_the_place && !presence.is_on(path.as_path()) {
            return Ok(csi::NodeUnstageVolumeResponse {});
        }
        if let Some(target) = presence.targets(&volume).next() {
            let state = format!("is published at {target}");
            return Err(CallError::volume_state(&volume.id, state, "unpublish it there first"));
        }
        self.unstage(volume, &path)?;
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    /// Takes a volume off its staging path, gives its device back, and forgets what was meant.
    pub(super) fn unstage(&self, mut volume: VolumeRecord, path: &HostPath) -> Result<(), CallError> {
        let presence = self.take_off(&volume, path.as_path())?;
        if let Some(device) = presence.device()
            && !presence.device_is_mounted()
        {
            device.detach()?;
        }
        if volume.staged.as_ref().is_some_and(|(at, _)| at == path.as_str()) {
            volume.staged = None;
            self.volumes.put(volume)?;
        }
        Ok(())
    }
}
