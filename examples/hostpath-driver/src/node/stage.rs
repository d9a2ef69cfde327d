//! NodeStageVolume and NodeUnstageVolume.

use csi_proto::csi::v1 as csi;

use super::host_path::HostPath;
use crate::capability::{Access, Capability};
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::filesystem::{FileSystem, Signature, probe};
use crate::loop_device::{self, LoopDevice};
use crate::mounts::{bind, bind_flags};
use crate::sparse;
use crate::volume::{Format, GrantedAccess, VolumeKind, VolumeRecord};

const FIELD: &str = "staging_target_path";

impl Driver {
    pub(crate) fn node_stage_volume(
        &self,
        request: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse, CallError> {
        required(FIELD, "an absolute path", &request.staging_target_path)?;
        let capability = Capability::parse(request.volume_capability.as_ref())?;
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        self.check_provides(&volume, &capability)?;
        let path = HostPath::parse(FIELD, &request.staging_target_path)?;
        if path.metadata(FIELD)?.is_none_or(|found| !found.is_dir()) {
            let expected = "an existing directory; the caller creates it".to_owned();
            return Err(CallError::invalid(FIELD, path.as_str(), expected));
        }
        let read_only = capability.is_read_only() || volume.attachment.as_ref().is_some_and(|a| a.read_only);
        let granted = GrantedAccess { capability, read_only };
        if self.is_staged_already(&volume, &path, &granted)? {
            return Ok(csi::NodeStageVolumeResponse {});
        }
        volume.staged = Some((path.as_str().to_owned(), granted.clone()));
        self.volumes.put(volume.clone())?;
        let staged = match volume.kind {
            VolumeKind::Directory => self.stage_directory(&volume, &path, &granted),
            VolumeKind::Loop => self.stage_device(&mut volume, &path, &granted),
        };
        if let Err(error) = staged {
            if let Err(left) = self.unstage(volume, &path) {
                tracing::warn!(%left, path = path.as_str(), "cannot undo a failed staging; NodeUnstageVolume undoes it");
            }
            return Err(error);
        }
        Ok(csi::NodeStageVolumeResponse {})
    }

    fn is_staged_already(
        &self,
        volume: &VolumeRecord,
        path: &HostPath,
        wanted: &GrantedAccess,
    ) -> Result<bool, CallError> {
        let presence = self.presence(volume)?;
        match volume.staged.as_ref().filter(|_| presence.is_staged(volume)) {
            Some((at, _)) if at != path.as_str() => {
                let state = format!("is staged at {at}");
                Err(CallError::volume_state(
                    &volume.id,
                    state,
                    "one staging path at a time: unstage it there first",
                ))
            }
            Some((_, existing)) if existing == wanted => Ok(true),
            Some((_, existing)) => Err(super::publish::differs(volume, path, existing, wanted)),
            None if presence.is_foreign(path.as_path()) => Err(path.occupied(FIELD)),
            None => Ok(false),
        }
    }

    fn stage_directory(
        &self,
        volume: &VolumeRecord,
        path: &HostPath,
        granted: &GrantedAccess,
    ) -> Result<(), CallError> {
        let flags = mount_flags(&granted.capability);
        bind_flags(flags)?;
        bind(&self.content(volume), path.as_path(), flags, granted.read_only)
    }

    fn stage_device(
        &self,
        volume: &mut VolumeRecord,
        path: &HostPath,
        granted: &GrantedAccess,
    ) -> Result<(), CallError> {
        let image = self.content(volume);
        // A device that an earlier process left may have another size or mode.
        if let Some(leftover) = loop_device::find(&image)? {
            leftover.detach()?;
        }
        let is_block = granted.capability.access == Access::Block;
        let device = loop_device::attach(&image, is_block && granted.read_only)?;
        if is_block {
            return self.record_grown(volume);
        }
        let filesystem = self.prepare_filesystem(volume, &device, granted.capability.fs_type())?;
        if !granted.read_only {
            filesystem.check(&device.path)?;
        }
        if volume.grow && !granted.read_only && filesystem.grow_at_rest(&device.path)? {
            self.record_grown(volume)?;
        }
        filesystem.mount(
            &device.path,
            path.as_path(),
            mount_flags(&granted.capability),
            granted.read_only,
        )?;
        if volume.grow && !granted.read_only {
            filesystem.grow(&device.path, path.as_path())?;
            self.record_grown(volume)?;
        }
        Ok(())
    }

    /// Records that the filesystem fills the device.
    pub(super) fn record_grown(&self, volume: &mut VolumeRecord) -> Result<(), CallError> {
        if volume.grow {
            volume.grow = false;
            self.volumes.put(volume.clone())?;
        }
        Ok(())
    }

    /// Detects the filesystem on a device, or creates one on a blank device.
    fn prepare_filesystem(
        &self,
        volume: &mut VolumeRecord,
        device: &LoopDevice,
        wanted: Option<FileSystem>,
    ) -> Result<FileSystem, CallError> {
        let expected = wanted.unwrap_or(FileSystem::Ext4);
        let foreign = |found: &str| CallError::Precondition {
            subject: device.path.display().to_string(),
            state: format!("holds {found} and not {}, and is left unchanged", expected.name()),
            fix: "use a new volume, or the access type that wrote it",
        };
        // An interrupted creation can be restarted, since the volume has not been mounted since.
        if !matches!(volume.format, Format::Started(_)) {
            match probe(&device.path)? {
                Signature::FileSystem(found) if wanted.is_none_or(|wanted| wanted == found) => {
                    return Ok(found);
                }
                Signature::FileSystem(found) => return Err(foreign(found.name())),
                Signature::Other(found) => return Err(foreign(&found)),
                Signature::None => {}
            }
            let image = self.content(volume);
            if !sparse::is_blank(&image).map_err(|error| CallError::path("read", image, error))? {
                return Err(foreign("data in an unknown format"));
            }
        }
        volume.format = Format::Started(expected);
        self.volumes.put(volume.clone())?;
        expected.make(&device.path)?;
        volume.format = Format::Done(expected);
        volume.grow = false;
        self.volumes.put(volume.clone())?;
        Ok(expected)
    }
}

/// Returns the flags of a mount; a block device has none.
pub(super) fn mount_flags(capability: &Capability) -> &[String] {
    match &capability.access {
        Access::Mount { flags, .. } => flags,
        Access::Block => &[],
    }
}

impl Driver {
    pub(crate) fn node_unstage_volume(
        &self,
        request: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse, CallError> {
        let path = HostPath::parse("staging_target_path", &request.staging_target_path)?;
        let (volume, _guard) = self.lock_volume(&request.volume_id)?;
        let presence = self.presence(&volume)?;
        let is_staging_path = volume.staged.as_ref().is_some_and(|(at, _)| at == path.as_str());
        if !is_staging_path && !presence.is_on(path.as_path()) {
            return Ok(csi::NodeUnstageVolumeResponse {});
        }
        if let Some(target) = presence.targets(&volume).next() {
            let state = format!("is published at {target}");
            return Err(CallError::volume_state(&volume.id, state, "unpublish it there first"));
        }
        self.unstage(volume, &path)?;
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    /// Unmounts a volume from its staging path, detaches its device, and removes the staging record.
    pub(super) fn unstage(&self, mut volume: VolumeRecord, path: &HostPath) -> Result<(), CallError> {
        let presence = self.unmount_layers(&volume, path.as_path())?;
        if let Some(device) = presence.device()
            && !presence.device_is_mounted()
        {
            device.detach()?;
        }
        if volume.staged.as_ref().is_some_and(|(at, _)| at == path.as_str()) {
            volume.staged = None;
            self.volumes.put(volume)?;
        }
        Ok(())
    }
}
