//! The Controller and GroupController services.

mod attach;
mod create;
mod delete;
mod expand;
pub(super) mod freeze;
mod group;
mod health;
mod inspect;
mod parameters;
mod snapshots;

use csi::controller_service_capability::rpc;
use csi::group_controller_service_capability;
use csi_proto::csi::v1 as csi;

use super::driver::Driver;
use super::error::CallError;

// Maximum length of a name in bytes: the spec's limit for a string.
const MAX_NAME: usize = 128;

impl Driver {
    pub(super) fn controller_get_capabilities(
        &self,
        _: csi::ControllerGetCapabilitiesRequest,
    ) -> Result<csi::ControllerGetCapabilitiesResponse, CallError> {
        use rpc::Type::{
            CloneVolume, CreateDeleteSnapshot, CreateDeleteVolume, ExpandVolume, GetCapacity, GetSnapshot,
            GetVolume, GetVolumeHealth, ListSnapshots, ListVolumeHealth, ListVolumes,
            ListVolumesPublishedNodes, ModifyVolume, PublishReadonly, PublishUnpublishVolume,
            SingleNodeMultiWriter,
        };
        let always = [
            CreateDeleteVolume,
            PublishUnpublishVolume,
            PublishReadonly,
            ListVolumes,
            ListVolumesPublishedNodes,
            GetVolume,
            GetCapacity,
            CreateDeleteSnapshot,
            ListSnapshots,
            GetSnapshot,
            CloneVolume,
            ExpandVolume,
            SingleNodeMultiWriter,
            GetVolumeHealth,
            ListVolumeHealth,
        ];
        let modify = (!self.config.mutable_parameters.is_empty()).then_some(ModifyVolume);
        Ok(always.into_iter().chain(modify).collect())
    }

    pub(super) fn group_controller_get_capabilities(
        &self,
        _: csi::GroupControllerGetCapabilitiesRequest,
    ) -> Result<csi::GroupControllerGetCapabilitiesResponse, CallError> {
        use group_controller_service_capability::rpc::Type::CreateDeleteGetVolumeGroupSnapshot;
        Ok([CreateDeleteGetVolumeGroupSnapshot].into_iter().collect())
    }
}

/// Checks the name in a create request.
fn checked_name(name: &str) -> Result<&str, CallError> {
    let name = super::driver::required("name", "the name that identifies retries of the request", name)?;
    if name.len() > MAX_NAME {
        let expected = format!("at most {MAX_NAME} bytes");
        return Err(CallError::invalid("name", format!("{} bytes long", name.len()), expected));
    }
    Ok(name)
}

/// Discards a partial result: now, or at the next attempt or start.
fn or_discard<T>(
    made: Result<T, CallError>,
    kind: &'static str,
    discard: impl FnOnce() -> Result<(), CallError>,
) -> Result<T, CallError> {
    if made.is_err()
        && let Err(left) = discard()
    {
        tracing::warn!(%left, "cannot remove an unfinished {kind} now; the next attempt or start removes it");
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discards_unfinished_volumes_only() {
        let mut discarded = 0;
        let mut discard = || {
            discarded += 1;
            Err(CallError::no_volume("left"))
        };
        assert_eq!(or_discard(Ok(7), "volume", &mut discard).unwrap(), 7);
        let error = or_discard::<()>(Err(CallError::no_volume("first")), "volume", &mut discard).unwrap_err();
        assert!(error.to_string().contains("first") && discarded == 1, "{error}");
    }
}
