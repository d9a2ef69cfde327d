//! ControllerModifyVolume: parameters that are remembered, and change nothing here.

use csi_proto::csi::v1 as csi;

use super::parameters;
use crate::hostpath::driver::Driver;
use crate::hostpath::error::CallError;

impl Driver {
    pub(in crate::hostpath) fn controller_modify_volume(
        &self,
        request: csi::ControllerModifyVolumeRequest,
    ) -> Result<csi::ControllerModifyVolumeResponse, CallError> {
        let (mut volume, _guard) = self.take_volume(&request.volume_id)?;
        parameters::mutable(&request.mutable_parameters, &self.config.mutable_parameters)?;
        if volume.mutable_parameters != request.mutable_parameters {
            volume.mutable_parameters.extend(request.mutable_parameters);
            self.volumes.put(volume)?;
        }
        Ok(csi::ControllerModifyVolumeResponse {})
    }
}
