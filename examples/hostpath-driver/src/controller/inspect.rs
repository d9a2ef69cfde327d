//! Queries about volumes: validation, lists, single volumes and free space.

use csi::validate_volume_capabilities_response::Confirmed;
use csi_proto::csi::v1 as csi;

use super::parameters;
use crate::capability::Capability;
use crate::capacity::minimum_bytes;
use crate::driver::Driver;
use crate::error::CallError;
use crate::paging;
use crate::volume::{Phase, VolumeKind, VolumeRecord};

impl Driver {
    pub(crate) fn validate_volume_capabilities(
        &self,
        request: csi::ValidateVolumeCapabilitiesRequest,
    ) -> Result<csi::ValidateVolumeCapabilitiesResponse, CallError> {
        let capabilities = Capability::parse_all(&request.volume_capabilities);
        if let Err(missing @ CallError::Missing { .. }) = capabilities {
            return Err(missing);
        }
        let volume = self.read_volume(&request.volume_id)?;
        let confirmed = capabilities.and_then(|capabilities| {
            capabilities.iter().try_for_each(|capability| self.check_provides(&volume, capability))?;
            parameters::mutable(&request.mutable_parameters, &self.config.mutable_parameters)?;
            let own = volume.to_csi(self.config.topology.clone()).volume_context;
            same("volume_context", &request.volume_context, &own)?;
            same("parameters", &request.parameters, &volume.parameters)
        });
        Ok(match confirmed {
            Ok(()) => csi::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
            Err(reason) => {
                csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message: reason.to_string() }
            }
        })
    }

    /// Refuses capabilities that a volume of this kind does not provide.
    pub(crate) fn check_provides(
        &self,
        volume: &VolumeRecord,
        capability: &Capability,
    ) -> Result<(), CallError> {
        if volume.kind.provides(capability) {
            return Ok(());
        }
        let state =
            format!("is of kind {}, which supports neither block access nor an fs_type", volume.kind.name());
        Err(CallError::volume_state(&volume.id, state, "request a mount without fs_type"))
    }

    /// Refuses a topology that excludes this node.
    pub(super) fn check_topology(
        &self,
        requirement: Option<&csi::TopologyRequirement>,
        fix: &'static str,
    ) -> Result<(), CallError> {
        if self.config.satisfies(requirement) {
            return Ok(());
        }
        Err(CallError::Exhausted {
            subject: "accessibility_requirements",
            limit: format!("node {}", self.config.node_id),
            found: "a node that the requisite topologies exclude".to_owned(),
            fix,
        })
    }

    pub(crate) fn list_volumes(
        &self,
        request: csi::ListVolumesRequest,
    ) -> Result<csi::ListVolumesResponse, CallError> {
        use csi::list_volumes_response::{Entry, VolumeStatus};
        let show = |volume: &VolumeRecord| Entry {
            volume: Some(volume.to_csi(self.config.topology.clone())),
            status: Some(VolumeStatus { published_node_ids: self.published_nodes(volume) }),
        };
        let page = self.volumes.read(|rows| {
            let ready = rows.iter().filter(|(_, volume)| volume.is_ready());
            paging::page(ready, request.max_entries, &request.starting_token, show)
        })?;
        Ok(csi::ListVolumesResponse { entries: page.entries, next_token: page.next_token })
    }

    pub(crate) fn controller_get_volume(
        &self,
        request: csi::ControllerGetVolumeRequest,
    ) -> Result<csi::ControllerGetVolumeResponse, CallError> {
        let volume = self.read_volume(&request.volume_id)?;
        let published_node_ids = self.published_nodes(&volume);
        Ok(csi::ControllerGetVolumeResponse {
            volume: Some(volume.to_csi(self.config.topology.clone())),
            status: Some(csi::controller_get_volume_response::VolumeStatus { published_node_ids }),
        })
    }

    fn published_nodes(&self, volume: &VolumeRecord) -> Vec<String> {
        volume.attachment.iter().map(|_| self.config.node_id.clone()).collect()
    }

    pub(crate) fn get_capacity(
        &self,
        request: csi::GetCapacityRequest,
    ) -> Result<csi::GetCapacityResponse, CallError> {
        let kind = parameters::volume_kind(&request.parameters)?;
        let capabilities = request
            .volume_capabilities
            .iter()
            .map(|c| Capability::parse(Some(c)))
            .collect::<Result<Vec<_>, _>>()?;
        let possible =
            kind.is_none_or(|kind| capabilities.iter().all(|capability| kind.provides(capability)));
        let here = request.accessible_topology.as_ref().is_none_or(|topology| self.config.is_in(topology));
        let available = if possible && here { self.available_bytes()? } else { 0 };
        let available = i64::try_from(available).unwrap_or(i64::MAX);
        let minimum = minimum_bytes(kind.unwrap_or(VolumeKind::Loop), &capabilities);
        Ok(csi::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(available),
            minimum_volume_size: i64::try_from(minimum).ok(),
        })
    }

    /// Returns the bytes that new volumes and snapshots may take: the rest of the limit, but at most the free space on the
    /// disk.
    pub(super) fn available_bytes(&self) -> Result<u64, CallError> {
        let disk = self.data.statistics()?;
        let total = self.config.capacity.unwrap_or_else(|| disk.f_blocks.saturating_mul(disk.f_frsize));
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let volumes: u64 = self.volumes.read(|rows| rows.values().map(|volume| volume.capacity_bytes).sum());
        let live = |phase: Phase| phase != Phase::Deleting;
        let snapshots: u64 =
            self.snapshots.read(|rows| rows.values().filter(|s| live(s.phase)).map(|s| s.size_bytes).sum());
        Ok(total.saturating_sub(volumes).saturating_sub(snapshots).min(free))
    }

    /// Refuses to reserve more than the available space. The caller holds the admission lock until its record is written.
    pub(super) fn check_space(&self, bytes: u64) -> Result<(), CallError> {
        let available = self.available_bytes()?;
        if bytes <= available {
            return Ok(());
        }
        Err(CallError::Exhausted {
            subject: "space for volumes and snapshots on this node",
            limit: format!("{available} free bytes"),
            found: format!("{bytes} bytes"),
            fix: "request less, delete a volume or snapshot, or raise --capacity",
        })
    }
}

/// Checks that a value in a request equals the recorded one.
fn same<T: PartialEq + Default>(field: &'static str, requested: &T, known: &T) -> Result<(), CallError> {
    if *requested == T::default() || requested == known {
        return Ok(());
    }
    let expected = "none, or those of the volume".to_owned();
    Err(CallError::invalid(field, "those of another volume", expected))
}
