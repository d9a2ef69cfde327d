//! ControllerExpandVolume, and ControllerModifyVolume, whose parameters are recorded and have no effect here.

use csi_proto::csi::v1 as csi;

use super::parameters;
use crate::capacity::SizeRange;
use crate::driver::Driver;
use crate::error::CallError;
use crate::volume::VolumeKind;

impl Driver {
    pub(crate) fn controller_expand_volume(
        &self,
        request: csi::ControllerExpandVolumeRequest,
    ) -> Result<csi::ControllerExpandVolumeResponse, CallError> {
        if request.capacity_range.is_none() {
            return Err(CallError::Missing {
                field: "capacity_range",
                expected: "the new size of the volume",
            });
        }
        let range = SizeRange::parse(request.capacity_range.as_ref())?;
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        let current = volume.capacity_bytes;
        if !range.contains(current) {
            // A volume never shrinks: its current size is the minimum.
            let bytes = range.choose(volume.kind, current)?;
            let _admission = self.admission();
            self.check_space(bytes - current)?;
            volume.capacity_bytes = bytes;
            volume.grow = volume.kind == VolumeKind::Loop;
            self.volumes.put(volume.clone())?;
        }
        // Called even if the record has the size: an earlier attempt may have stopped before the image grew.
        self.data.grow(&volume.id, volume.kind, volume.capacity_bytes)?;
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: i64::try_from(volume.capacity_bytes).unwrap_or(i64::MAX),
            node_expansion_required: volume.kind == VolumeKind::Loop,
        })
    }
}

impl Driver {
    pub(crate) fn controller_modify_volume(
        &self,
        request: csi::ControllerModifyVolumeRequest,
    ) -> Result<csi::ControllerModifyVolumeResponse, CallError> {
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        parameters::mutable(&request.mutable_parameters, &self.config.mutable_parameters)?;
        if volume.mutable_parameters != request.mutable_parameters {
            volume.mutable_parameters.extend(request.mutable_parameters);
            self.volumes.put(volume)?;
        }
        Ok(csi::ControllerModifyVolumeResponse {})
    }
}
