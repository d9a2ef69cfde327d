//! The Node service.

mod expand;
mod health;
mod host_path;
mod presence;
mod publish;
mod stage;
mod statistics;

use csi::node_service_capability::rpc;
use csi_proto::csi::v1 as csi;

use super::driver::Driver;
use super::error::CallError;

impl Driver {
    pub(super) fn node_get_info(
        &self,
        _: csi::NodeGetInfoRequest,
    ) -> Result<csi::NodeGetInfoResponse, CallError> {
        Ok(csi::NodeGetInfoResponse {
            node_id: self.config.node_id.clone(),
            max_volumes_per_node: self.config.attach_limit.into(),
            accessible_topology: Some(self.config.topology.clone()),
        })
    }

    pub(super) fn node_get_capabilities(
        &self,
        _: csi::NodeGetCapabilitiesRequest,
    ) -> Result<csi::NodeGetCapabilitiesResponse, CallError> {
        use rpc::Type::{
            ExpandVolume, GetStorageHealth, GetVolumeHealth, GetVolumeStats, SingleNodeMultiWriter,
            StageUnstageVolume,
        };
        let all = [
            StageUnstageVolume,
            GetVolumeStats,
            ExpandVolume,
            SingleNodeMultiWriter,
            GetVolumeHealth,
            GetStorageHealth,
        ];
        Ok(all.into_iter().collect())
    }
}
