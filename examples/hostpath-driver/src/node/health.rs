//! The health of volumes and of the disk from the node's perspective (alpha in spec 1.13).

use csi::StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
use csi::VolumeHealthErrorType::Inaccessible;
use csi::node_get_storage_health_response::StorageBackendHealth;
use csi::volume_health::VolumeHealthEntry;
use csi_proto::csi::v1 as csi;

use crate::driver::Driver;
use crate::error::CallError;

// The disk is degraded if less than this fraction (1/n) is free.
const LOW_SPACE: u64 = 20;

impl Driver {
    pub(crate) fn node_get_volume_health(
        &self,
        request: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse, CallError> {
        let volume = self.read_volume(&request.volume_id)?;
        let mut health = self.health_of_data(&volume);
        let presence = self.presence(&volume)?;
        let lost_staging =
            volume.staged.iter().filter(|_| !presence.is_staged(&volume)).map(|(path, _)| path);
        let lost_targets = volume.published.keys().filter(|path| !presence.is_on(path.as_ref()));
        health.health_statuses.extend(lost_staging.chain(lost_targets).map(|path| VolumeHealthEntry {
            status: Inaccessible.into(),
            reason: "NotMounted".to_owned(),
            message: format!("the volume is no longer mounted at {path}; stage and publish it again"),
        }));
        Ok(csi::NodeGetVolumeHealthResponse { volume_health: Some(health) })
    }

    pub(crate) fn node_get_storage_health(
        &self,
        _: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse, CallError> {
        let failure = match self.data.statistics() {
            Err(error) => Some((StorageUnreachable, "StateDirectory", error.to_string())),
            Ok(disk) if disk.f_bavail < disk.f_blocks / LOW_SPACE => {
                let free = disk.f_bavail.saturating_mul(disk.f_frsize);
                Some((
                    StorageDegraded,
                    "LowSpace",
                    format!("{free} bytes are free on the disk with the volumes"),
                ))
            }
            Ok(_) => None,
        };
        let backend =
            |(status, reason, message): (csi::StorageHealthErrorType, &str, String)| StorageBackendHealth {
                status: status.into(),
                reason: reason.to_owned(),
                message,
                volume_capability: None,
            };
        Ok(csi::NodeGetStorageHealthResponse { backend_health: failure.map(backend).into_iter().collect() })
    }
}
