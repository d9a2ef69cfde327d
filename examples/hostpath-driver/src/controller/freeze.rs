//! Holding a mounted volume still while it is copied.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::capability::Access;
use crate::command::{self, CommandError, SHORT};
use crate::driver::Driver;
use crate::error::CallError;
use crate::identifier::ResourceId;
use crate::volume::{VolumeKind, VolumeRecord};

/// A filesystem that takes no writes. It does again when this is dropped.
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
    /// Copies a volume as it is at one moment.
    pub(super) fn copy_at_rest(
        &self,
        from: &VolumeRecord,
        to: &ResourceId,
        bytes: u64,
    ) -> Result<(), CallError> {
        let _still = self.freeze(from)?;
        self.data.copy(&from.id, to, from.kind, bytes)
    }

    /// Brings what was written to the image, and stops a mounted filesystem from writing more.
    ///
    /// A directory cannot be held still, and neither can the user of a block device: their copy is what was there
    /// while it was made.
    pub(super) fn freeze(&self, volume: &VolumeRecord) -> Result<Option<Frozen>, CallError> {
        let Some((path, placement)) = &volume.staged else { return Ok(None) };
        let presence = self.presence(volume)?;
        let Some(device) = presence.device().filter(|_| volume.kind == VolumeKind::Loop) else {
            return Ok(None);
        };
        if placement.capability.access == Access::Block {
            let sync = || File::open(&device.path)?.sync_all();
            sync().map_err(|error| CallError::path("sync", device.path.clone(), error))?;
            return Ok(None);
        }
        let on = PathBuf::from(path);
        if placement.read_only || !presence.is_on(&on) {
            return Ok(None);
        }
        fsfreeze("--freeze", &on)?;
        Ok(Some(Frozen { on }))
    }
}

/// Lets a volume write again that a killed process may have left frozen.
pub(crate) fn thaw(volume: &VolumeRecord) {
    if volume.kind == VolumeKind::Loop
        && let Some((path, placement)) = &volume.staged
        && placement.capability.access != Access::Block
        // It fails when nothing is frozen there, which is what is wanted.
        && fsfreeze("--unfreeze", path.as_ref()).is_ok()
    {
        tracing::warn!(volume = %volume.id, "a filesystem that was left frozen can be written to again");
    }
}

fn fsfreeze(action: &str, on: &Path) -> Result<(), CommandError> {
    command::run("fsfreeze", &[action, &on.to_string_lossy()], SHORT)
}
