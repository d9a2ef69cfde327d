//! NodeExpandVolume: grows a mounted volume to the size that ControllerExpandVolume has set.

use std::path::Path;

use csi_proto::csi::v1 as csi;

use crate::capability::Access;
use crate::capacity::SizeRange;
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::filesystem::{Signature, probe};
use crate::volume::VolumeRecord;

impl Driver {
    pub(crate) fn node_expand_volume(
        &self,
        request: csi::NodeExpandVolumeRequest,
    ) -> Result<csi::NodeExpandVolumeResponse, CallError> {
        required("volume_path", "a path at which the volume is published or staged", &request.volume_path)?;
        let range = SizeRange::parse(request.capacity_range.as_ref())?;
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        self.granted_access(&volume, &request.volume_path)?;
        if !range.contains(volume.capacity_bytes) {
            return Err(CallError::OutOfRange {
                found: range.describe(),
                expected: format!(
                    "{} bytes, the size that ControllerExpandVolume has set",
                    volume.capacity_bytes
                ),
            });
        }
        self.grow_in_place(&mut volume)?;
        let capacity_bytes = i64::try_from(volume.capacity_bytes).unwrap_or(i64::MAX);
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
    }

    fn grow_in_place(&self, volume: &mut VolumeRecord) -> Result<(), CallError> {
        let presence = self.presence(volume)?;
        let (Some(device), Some((staging, granted))) = (presence.device(), volume.staged.clone()) else {
            return Ok(());
        };
        device.update_capacity()?;
        if let Access::Mount { .. } = granted.capability.access {
            if granted.read_only {
                return Err(CallError::volume_state(
                    &volume.id,
                    "is staged read-only",
                    "its filesystem grows when it is staged for writing",
                ));
            }
            if let Signature::FileSystem(filesystem) = probe(&device.path)? {
                filesystem.grow(&device.path, Path::new(&staging))?;
            }
        }
        self.record_grown(volume)
    }
}
