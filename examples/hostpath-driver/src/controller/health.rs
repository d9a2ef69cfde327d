//! The health of volumes from the controller's perspective (alpha in spec 1.13).

use std::collections::BTreeMap;

use csi::VolumeHealthErrorType::DataLoss;
use csi::volume_health::VolumeHealthEntry;
use csi_proto::csi::v1 as csi;

use crate::driver::Driver;
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::paging;
use crate::volume::VolumeRecord;

impl Driver {
    pub(crate) fn controller_get_volume_health(
        &self,
        request: csi::ControllerGetVolumeHealthRequest,
    ) -> Result<csi::ControllerGetVolumeHealthResponse, CallError> {
        let volume = self.read_volume(&request.volume_id)?;
        Ok(csi::ControllerGetVolumeHealthResponse { volume_health: Some(self.health_of_data(&volume)) })
    }

    pub(crate) fn controller_list_volume_health(
        &self,
        request: csi::ControllerListVolumeHealthRequest,
    ) -> Result<csi::ControllerListVolumeHealthResponse, CallError> {
        let volumes =
            self.volumes.read(|rows| rows.values().filter(|v| v.is_ready()).cloned().collect::<Vec<_>>());
        let is_abnormal = |health: &csi::VolumeHealth| !health.health_statuses.is_empty();
        // The list contains only abnormal volumes, so it is built before it is divided into pages.
        let abnormal: BTreeMap<ResourceId, csi::VolumeHealth> = volumes
            .into_iter()
            .map(|volume| (volume.id.clone(), self.health_of_data(&volume)))
            .filter(|(_, health)| is_abnormal(health))
            .collect();
        let show = csi::VolumeHealth::clone;
        let page = paging::page(abnormal.iter(), request.max_entries, &request.starting_token, show)?;
        Ok(csi::ControllerListVolumeHealthResponse { entries: page.entries, next_token: page.next_token })
    }

    /// Reports the health of a volume's tree or image. An empty list means healthy.
    pub(crate) fn health_of_data(&self, volume: &VolumeRecord) -> csi::VolumeHealth {
        let lost = !self.data.exists(&volume.id, volume.kind);
        let entry = || VolumeHealthEntry {
            status: DataLoss.into(),
            reason: "DataMissing".to_owned(),
            message: format!(
                "{} does not exist; restore it from a snapshot or a backup",
                self.content(volume).display()
            ),
        };
        csi::VolumeHealth {
            volume_id: volume.id.to_string(),
            health_statuses: lost.then(entry).into_iter().collect(),
        }
    }
}
