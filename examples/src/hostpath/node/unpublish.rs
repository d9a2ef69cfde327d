//! NodeUnpublishVolume.

use std::fs;
use std::io;

use csi_proto::csi::v1 as csi;

use super::host_path::HostPath;
use crate::hostpath::driver::Driver;
use crate::hostpath::error::CallError;
use crate::hostpath::volume::VolumeRecord;

impl Driver {
    pub(in crate::hostpath) fn node_unpublish_volume(
        &self,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse, CallError> {
        let target = HostPath::parse("target_path", &request.target_path)?;
        let (volume, _guard) = self.take_volume(&request.volume_id)?;
        // The staging path is no target, whoever asks.
        if volume.staged.as_ref().is_some_and(|(at, _)| at == target.as_str()) {
            return Err(CallError::volume_state(
                &volume.id,
                format!("has {} as its staging path", target.as_str()),
                "that is NodeUnstageVolume's to undo",
            ));
        }
        self.unpublish(volume, &target)?;
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    /// Takes a volume off a target, removes the target if this driver made it, and forgets it.
    pub(super) fn unpublish(&self, mut volume: VolumeRecord, target: &HostPath) -> Result<(), CallError> {
        let presence = self.take_off(&volume, target.as_path())?;
        if volume.published.contains_key(target.as_str()) {
            if !presence.is_foreign(target.as_path()) {
                remove_empty(target)?;
            }
            volume.published.remove(target.as_str());
            self.volumes.put(volume)?;
        }
        Ok(())
    }
}

/// Removes a directory or a file with nothing in it. One with something in it stays, since it is not ours.
fn remove_empty(target: &HostPath) -> Result<(), CallError> {
    let path = target.as_path();
    let removed = match target.look("target_path")? {
        Some(found) if found.is_dir() => fs::remove_dir(path),
        Some(found) if found.is_file() && found.len() == 0 => fs::remove_file(path),
        _ => Ok(()),
    };
    match removed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Ok(())
        }
        other => other.map_err(|error| CallError::path("remove", path, error)),
    }
}
