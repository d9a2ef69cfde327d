//! The Identity service.

use csi::PluginCapability;
use csi::plugin_capability::{service, volume_expansion};
use csi_proto::csi::v1 as csi;

use super::driver::Driver;
use super::error::CallError;

impl Driver {
    pub(super) fn get_plugin_info(
        &self,
        _: csi::GetPluginInfoRequest,
    ) -> Result<csi::GetPluginInfoResponse, CallError> {
        Ok(csi::GetPluginInfoResponse {
            name: self.config.driver_name.to_string(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        })
    }

    pub(super) fn get_plugin_capabilities(
        &self,
        _: csi::GetPluginCapabilitiesRequest,
    ) -> Result<csi::GetPluginCapabilitiesResponse, CallError> {
        use service::Type::{
            ControllerService, GroupControllerService, SnapshotAccessibilityConstraints,
            VolumeAccessibilityConstraints,
        };
        let always = [ControllerService, VolumeAccessibilityConstraints, GroupControllerService];
        let services = always
            .into_iter()
            .chain(self.config.snapshot_topology.then_some(SnapshotAccessibilityConstraints));
        let expansion = PluginCapability::volume_expansion(volume_expansion::Type::Online);
        Ok(services.map(PluginCapability::service).chain([expansion]).collect())
    }

    /// Reports ready while the disk with the state responds.
    pub(super) fn probe(&self, _: csi::ProbeRequest) -> Result<csi::ProbeResponse, CallError> {
        self.data.statistics().map_err(|error| CallError::Precondition {
            subject: "the state directory".to_owned(),
            state: format!("cannot be reached: {error}"),
            fix: "bring its disk back",
        })?;
        Ok(csi::ProbeResponse { ready: Some(true) })
    }
}
