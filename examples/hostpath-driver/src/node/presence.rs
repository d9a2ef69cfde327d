//! The kernel's state of a volume, which takes precedence over the record.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use volume_manager::mounts::linux::read_table;
use volume_manager::mounts::{DeviceNumber, Mount, MountTable};

use crate::capability::Access;
use crate::driver::Driver;
use crate::error::CallError;
use crate::loop_device::{self, LoopDevice};
use crate::mounts::unmount;
use crate::volume::{VolumeKind, VolumeRecord};

/// The kernel's state of a volume at one point in time.
#[derive(Debug)]
pub(crate) struct Presence {
    table: MountTable,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Device and inode of the tree; `None` if it is lost.
    Directory(Option<(u64, u64)>),
    /// The loop device with the image.
    Loop(Option<LoopDevice>),
}

impl Driver {
    /// Reads the mounts and the loop device of a volume.
    pub(crate) fn presence(&self, volume: &VolumeRecord) -> Result<Presence, CallError> {
        let content = self.content(volume);
        let content = match volume.kind {
            VolumeKind::Directory => {
                Content::Directory(fs::symlink_metadata(content).ok().map(|found| (found.dev(), found.ino())))
            }
            VolumeKind::Loop => Content::Loop(loop_device::find(&content)?),
        };
        // Read after the device is resolved, so that no mount of it is missed.
        Ok(Presence { table: read_table()?, content })
    }
}

impl Presence {
    /// Returns the loop device, if there is one.
    pub(crate) fn device(&self) -> Option<&LoopDevice> {
        match &self.content {
            Content::Loop(device) => device.as_ref(),
            Content::Directory(_) => None,
        }
    }

    /// Returns true if this volume is mounted on a path.
    pub(crate) fn is_on(&self, path: &Path) -> bool {
        let Some(mount) = self.table.at(path) else { return false };
        match &self.content {
            Content::Directory(None) | Content::Loop(None) => false,
            Content::Directory(Some(tree)) => {
                fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == *tree)
            }
            Content::Loop(Some(device)) => {
                mount.device == device.number
                    || fs::symlink_metadata(path).is_ok_and(|found| {
                        found.file_type().is_block_device() && number_of(found.rdev()) == device.number
                    })
            }
        }
    }

    /// Returns true if something else is mounted on a path.
    pub(super) fn is_foreign(&self, path: &Path) -> bool {
        self.table.at(path).is_some() && !self.is_on(path)
    }

    /// Returns true if the volume is mounted on its recorded staging path.
    pub(super) fn is_staged(&self, volume: &VolumeRecord) -> bool {
        volume.staged.as_ref().is_some_and(|(path, granted)| match granted.capability.access {
            Access::Block => self.device().is_some(),
            Access::Mount { .. } => self.is_on(Path::new(path)),
        })
    }

    /// Returns the recorded target paths at which the volume is mounted.
    pub(super) fn targets<'a>(&'a self, volume: &'a VolumeRecord) -> impl Iterator<Item = &'a String> {
        volume.published.keys().filter(|path| self.is_on(Path::new(path)))
    }

    /// Returns a path at which the volume is mounted, recorded or not.
    pub(crate) fn first_mount(&self, volume: &VolumeRecord) -> Option<PathBuf> {
        let staging = volume.staged.iter().map(|(path, _)| path);
        let on_record = || volume.published.keys().chain(staging).find(|path| self.is_on(Path::new(path)));
        self.mount_of_device()
            .map(|mount| mount.mount_point.clone())
            .or_else(|| on_record().map(PathBuf::from))
    }

    /// Returns true if the device is mounted anywhere.
    pub(super) fn device_is_mounted(&self) -> bool {
        self.mount_of_device().is_some()
    }

    fn mount_of_device(&self) -> Option<&Mount> {
        self.table.of_device(self.device()?.number).next()
    }
}

fn number_of(device: u64) -> DeviceNumber {
    DeviceNumber { major: major(device), minor: minor(device) }
}

impl Driver {
    /// Unmounts all layers of a volume from a path, and leaves other mounts there.
    pub(super) fn unmount_layers(&self, volume: &VolumeRecord, path: &Path) -> Result<Presence, CallError> {
        loop {
            let presence = self.presence(volume)?;
            if !presence.is_on(path) {
                return Ok(presence);
            }
            unmount(path)?;
        }
    }
}
