//! Freezes a mounted volume while it is copied.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::capability::Access;
use crate::command::{self, CommandError, SHORT};
use crate::driver::Driver;
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::volume::{VolumeKind, VolumeRecord};

/// A frozen filesystem, which is thawed on drop.
#[derive(Debug)]
pub(super) struct Frozen {
    on: PathBuf,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = fsfreeze("--unfreeze", &self.on) {
            tracing::error!(%error, on = %self.on.display(), "a filesystem stays frozen: run fsfreeze --unfreeze");
        }
    }
}

impl Driver {
    /// Copies a volume at one point in time.
    pub(super) fn copy_at_rest(
        &self,
        from: &VolumeRecord,
        to: &ResourceId,
        bytes: u64,
    ) -> Result<(), CallError> {
        let _frozen = self.freeze(from)?;
        self.data.copy(&from.id, to, from.kind, bytes)
    }

    /// Writes cached data to the image, and freezes a mounted filesystem.
    ///
    /// A directory and a raw block device cannot be frozen: their copy contains the writes that happen during the copying.
    pub(super) fn freeze(&self, volume: &VolumeRecord) -> Result<Option<Frozen>, CallError> {
        let Some((path, granted)) = &volume.staged else { return Ok(None) };
        let presence = self.presence(volume)?;
        let Some(device) = presence.device().filter(|_| volume.kind == VolumeKind::Loop) else {
            return Ok(None);
        };
        if granted.capability.access == Access::Block {
            let sync = || File::open(&device.path)?.sync_all();
            sync().map_err(|error| CallError::path("sync", device.path.clone(), error))?;
            return Ok(None);
        }
        let on = PathBuf::from(path);
        if granted.read_only || !presence.is_on(&on) {
            return Ok(None);
        }
        fsfreeze("--freeze", &on)?;
        Ok(Some(Frozen { on }))
    }
}

/// Thaws a volume that a killed process may have left frozen.
pub(crate) fn thaw(volume: &VolumeRecord) {
    if volume.kind == VolumeKind::Loop
        && let Some((path, granted)) = &volume.staged
        && granted.capability.access != Access::Block
        // The command fails if the filesystem is not frozen, which is fine.
        && fsfreeze("--unfreeze", path.as_ref()).is_ok()
    {
        tracing::warn!(volume = %volume.id, "a filesystem that was left frozen can be written to again");
    }
}

fn fsfreeze(action: &str, on: &Path) -> Result<(), CommandError> {
    command::run("fsfreeze", &[action, &on.to_string_lossy()], SHORT)
}
