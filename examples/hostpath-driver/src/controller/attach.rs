//! ControllerPublishVolume and ControllerUnpublishVolume. Attaching only counts volumes here.

use csi_proto::csi::v1 as csi;

use crate::capability::Capability;
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::volume::GrantedAccess;

impl Driver {
    pub(crate) fn controller_publish_volume(
        &self,
        request: csi::ControllerPublishVolumeRequest,
    ) -> Result<csi::ControllerPublishVolumeResponse, CallError> {
        let node_id = required("node_id", "the id that NodeGetInfo returns", &request.node_id)?;
        let capability = Capability::parse(request.volume_capability.as_ref())?;
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        if node_id != self.config.node_id {
            let hint = format!("; this driver serves node {}", self.config.node_id);
            return Err(CallError::NotFound { subject: "node", found: node_id.to_owned(), hint });
        }
        self.check_provides(&volume, &capability)?;
        let wanted = GrantedAccess { capability, read_only: request.readonly };
        match &volume.attachment {
            Some(existing) if *existing == wanted => {}
            Some(existing) => {
                return Err(CallError::Incompatible {
                    subject: format!("attachment of volume {} to node {node_id}", volume.id),
                    difference: "capability or readonly flag",
                    found: existing.to_string(),
                    expected: wanted.to_string(),
                });
            }
            None => {
                // Held during the write too, so that two concurrent calls cannot exceed the limit.
                let _admission = self.admission();
                self.check_attach_limit()?;
                volume.attachment = Some(wanted);
                self.volumes.put(volume)?;
            }
        }
        Ok(csi::ControllerPublishVolumeResponse { publish_context: Default::default() })
    }

    fn check_attach_limit(&self) -> Result<(), CallError> {
        let limit = self.config.attach_limit as usize;
        let attached =
            self.volumes.read(|rows| rows.values().filter(|volume| volume.attachment.is_some()).count());
        if limit == 0 || attached < limit {
            return Ok(());
        }
        Err(CallError::Exhausted {
            subject: "the number of volumes attached to the node",
            limit: limit.to_string(),
            found: (attached + 1).to_string(),
            fix: "detach one, or raise --attach-limit",
        })
    }

    pub(crate) fn controller_unpublish_volume(
        &self,
        request: csi::ControllerUnpublishVolumeRequest,
    ) -> Result<csi::ControllerUnpublishVolumeResponse, CallError> {
        let done = Ok(csi::ControllerUnpublishVolumeResponse {});
        let id = ResourceId::parse(required("volume_id", "the id of a volume", &request.volume_id)?);
        // A volume or node that does not exist has no attachment. An empty node id means every node.
        let here = request.node_id.is_empty() || request.node_id == self.config.node_id;
        if !here || id.is_none_or(|id| self.volumes.by_id(&id).is_none()) {
            return done;
        }
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        if volume.attachment.is_some() {
            self.refuse_if_mounted(&volume)?;
            volume.attachment = None;
            self.volumes.put(volume)?;
        }
        done
    }
}
