//! NodePublishVolume and NodeUnpublishVolume.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use csi_proto::csi::v1 as csi;

use super::host_path::HostPath;
use super::stage::mount_flags;
use crate::capability::{Access, Capability};
use crate::driver::{Driver, required};
use crate::error::CallError;
use crate::mounts::{BIND_FLAGS, bind};
use crate::volume::{GrantedAccess, MAX_TARGETS, VolumeKind, VolumeRecord};

const FIELD: &str = "target_path";

impl Driver {
    pub(crate) fn node_publish_volume(
        &self,
        request: csi::NodePublishVolumeRequest,
    ) -> Result<csi::NodePublishVolumeResponse, CallError> {
        required(FIELD, "an absolute path", &request.target_path)?;
        let capability = Capability::parse(request.volume_capability.as_ref())?;
        let (mut volume, _guard) = self.lock_volume(&request.volume_id)?;
        self.check_provides(&volume, &capability)?;
        let target = HostPath::parse(FIELD, &request.target_path)?;
        target.need_parent(FIELD)?;
        let staged = self.staged_for(&volume, &request.staging_target_path, &capability)?;
        let read_only = request.readonly || staged.read_only || capability.is_read_only();
        if read_only && !staged.read_only && capability.access == Access::Block {
            return Err(CallError::invalid(
                "readonly",
                "true",
                "false, since the block device is staged for writing; attach or stage it read-only",
            ));
        }
        let granted = GrantedAccess { capability, read_only };
        if self.is_published_already(&volume, &target, &granted)? {
            return Ok(csi::NodePublishVolumeResponse {});
        }
        volume.published.insert(target.as_str().to_owned(), granted.clone());
        self.volumes.put(volume.clone())?;
        if let Err(error) = self.bind_to_target(&volume, &target, &granted) {
            if let Err(left) = self.unpublish(volume, &target) {
                tracing::warn!(%left, path = target.as_str(), "cannot undo a failed publishing; NodeUnpublishVolume undoes it");
            }
            return Err(error);
        }
        Ok(csi::NodePublishVolumeResponse {})
    }

    /// Returns the staging that the request's staging path refers to.
    fn staged_for(
        &self,
        volume: &VolumeRecord,
        staging_path: &str,
        capability: &Capability,
    ) -> Result<GrantedAccess, CallError> {
        const FIX: &str = "call NodeStageVolume first, and give the same staging_target_path";
        if staging_path.is_empty() {
            return Err(CallError::volume_state(
                &volume.id,
                "cannot be published without staging_target_path",
                FIX,
            ));
        }
        let path = HostPath::parse("staging_target_path", staging_path)?;
        let presence = self.presence(volume)?;
        match &volume.staged {
            Some((at, staged)) if at == path.as_str() && presence.is_staged(volume) => {
                if (staged.capability.access == Access::Block) == (capability.access == Access::Block) {
                    return Ok(staged.clone());
                }
                Err(CallError::volume_state(&volume.id, "is staged for the other access type", FIX))
            }
            _ => Err(CallError::volume_state(&volume.id, format!("is not staged at {}", path.as_str()), FIX)),
        }
    }

    fn is_published_already(
        &self,
        volume: &VolumeRecord,
        target: &HostPath,
        wanted: &GrantedAccess,
    ) -> Result<bool, CallError> {
        let presence = self.presence(volume)?;
        if presence.is_foreign(target.as_path()) {
            return Err(target.occupied(FIELD));
        }
        if presence.is_on(target.as_path()) {
            return match volume.published.get(target.as_str()) {
                Some(existing) if existing == wanted => Ok(true),
                Some(existing) => Err(differs(volume, target, existing, wanted)),
                None => Err(CallError::volume_state(
                    &volume.id,
                    format!(
                        "is mounted at {} already, as its staging path or by another process",
                        target.as_str()
                    ),
                    "give another path",
                )),
            };
        }
        let others = || presence.targets(volume).filter(|path| *path != target.as_str());
        if let Some(other) = others().next()
            && !wanted.capability.allows_more_targets()
        {
            let state =
                format!("is published at {other}, and {:?} allows one target", wanted.capability.mode());
            return Err(CallError::volume_state(&volume.id, state, "unpublish it there first"));
        }
        if volume.published.len() >= MAX_TARGETS {
            return Err(CallError::Exhausted {
                subject: "the number of target paths of a volume",
                limit: MAX_TARGETS.to_string(),
                found: (volume.published.len() + 1).to_string(),
                fix: "unpublish one",
            });
        }
        Ok(false)
    }

    /// Creates the target and binds the volume to it.
    fn bind_to_target(
        &self,
        volume: &VolumeRecord,
        target: &HostPath,
        granted: &GrantedAccess,
    ) -> Result<(), CallError> {
        let (from, flags) = match (&granted.capability.access, &volume.staged) {
            (Access::Block, _) => {
                make_file(target)?;
                let presence = self.presence(volume)?;
                let lost =
                    || CallError::volume_state(&volume.id, "has lost its loop device", "stage it again");
                (presence.device().ok_or_else(lost)?.path.clone(), Vec::new())
            }
            (Access::Mount { .. }, Some((staging, _))) => {
                make_directory(target)?;
                (PathBuf::from(staging), flags_of_bind(volume.kind, &granted.capability))
            }
            (Access::Mount { .. }, None) => {
                return Err(CallError::volume_state(
                    &volume.id,
                    "is not staged",
                    "call NodeStageVolume first",
                ));
            }
        };
        // The mount of a device file cannot make it read-only: the device must be read-only.
        let read_only = granted.read_only && granted.capability.access != Access::Block;
        bind(&from, target.as_path(), &flags, read_only)
    }
}

/// Returns the flags of the bind mount. A filesystem has its flags since staging; the bind mount gets those that it supports.
fn flags_of_bind(kind: VolumeKind, capability: &Capability) -> Vec<String> {
    let flags = mount_flags(capability).iter().flat_map(|flags| flags.split(','));
    flags
        .filter(|flag| kind == VolumeKind::Directory || BIND_FLAGS.contains(flag))
        .map(str::to_owned)
        .collect()
}

fn make_directory(target: &HostPath) -> Result<(), CallError> {
    let path = target.as_path();
    match target.metadata(FIELD)? {
        None => fs::DirBuilder::new()
            .mode(0o750)
            .create(path)
            .map_err(|error| CallError::path("make", path, error)),
        Some(found) if found.is_dir() => match fs::read_dir(path).map(|mut entries| entries.next().is_none())
        {
            Ok(true) => Ok(()),
            Ok(false) => Err(occupied(target, "is a directory that is not empty")),
            Err(error) => Err(CallError::path("list", path, error)),
        },
        Some(_) => Err(occupied(target, "is not a directory")),
    }
}

fn make_file(target: &HostPath) -> Result<(), CallError> {
    let path = target.as_path();
    match target.metadata(FIELD)? {
        None => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            made.map(drop).map_err(|error: io::Error| CallError::path("make", path, error))
        }
        Some(found) if found.is_file() && found.len() == 0 => Ok(()),
        Some(_) => Err(occupied(target, "is not an empty file")),
    }
}

fn occupied(target: &HostPath, state: &str) -> CallError {
    CallError::Precondition {
        subject: format!("{FIELD} {}", target.as_str()),
        state: state.to_owned(),
        fix: "move it away; the driver creates the target itself",
    }
}

/// Creates an error for a path that is in use with another capability or readonly flag.
pub(super) fn differs(
    volume: &VolumeRecord,
    path: &HostPath,
    existing: &GrantedAccess,
    wanted: &GrantedAccess,
) -> CallError {
    CallError::Incompatible {
        subject: format!("volume {} at {}", volume.id, path.as_str()),
        difference: "capability or readonly flag",
        found: existing.to_string(),
        expected: wanted.to_string(),
    }
}

impl Driver {
    pub(crate) fn node_unpublish_volume(
        &self,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse, CallError> {
        let target = HostPath::parse("target_path", &request.target_path)?;
        let (volume, _guard) = self.lock_volume(&request.volume_id)?;
        // A staging path is never a target.
        if volume.staged.as_ref().is_some_and(|(at, _)| at == target.as_str()) {
            return Err(CallError::volume_state(
                &volume.id,
                format!("has {} as its staging path", target.as_str()),
                "call NodeUnstageVolume instead",
            ));
        }
        self.unpublish(volume, &target)?;
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    /// Unmounts a volume from a target, removes the target if this driver created it, and removes its record.
    pub(super) fn unpublish(&self, mut volume: VolumeRecord, target: &HostPath) -> Result<(), CallError> {
        let presence = self.unmount_layers(&volume, target.as_path())?;
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

/// Removes an empty directory or file. A directory with content stays, since the content is not the driver's.
fn remove_empty(target: &HostPath) -> Result<(), CallError> {
    let path = target.as_path();
    let removed = match target.metadata("target_path")? {
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
