//! The mount backend of the driver.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use volume_manager::mounts::{MemoryFileSystem, MemoryMounts};

/// The place where the driver creates mounts.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountBackend {
    /// In-memory mounts. Requires no privileges.
    Memory {
        /// The directories and mounts.
        mounts: MemoryMounts,
        /// The filesystems that were created, by volume id.
        created: Mutex<HashMap<String, MemoryFileSystem>>,
    },
    /// The mount namespace of this process. Each volume is a tmpfs. Requires root.
    Linux,
}

impl MountBackend {
    /// Creates a backend that mounts in memory.
    #[must_use]
    pub fn memory(mounts: MemoryMounts) -> Self {
        Self::Memory { mounts, created: Mutex::default() }
    }

    pub(super) fn make_directory(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Memory { mounts, .. } => mounts.make_directory(path),
            Self::Linux => fs::create_dir_all(path),
        }
    }

    pub(super) fn stage(&self, volume: &str, staging: &Path) -> io::Result<()> {
        match self {
            Self::Memory { mounts, created } => {
                let mut created = created.lock().unwrap_or_else(PoisonError::into_inner);
                let new = || mounts.file_system("ext4", "/dev/volume", false);
                let file_system = *created.entry(volume.to_owned()).or_insert_with(new);
                mounts.mount(file_system, staging, false).map(drop)
            }
            Self::Linux => {
                let size = Some("size=64k");
                Ok(mount(Some("volume"), staging, Some("tmpfs"), MsFlags::empty(), size)?)
            }
        }
    }

    pub(super) fn publish(&self, staging: &Path, target: &Path) -> io::Result<()> {
        match self {
            Self::Memory { mounts, .. } => {
                mounts.make_directory(target)?;
                mounts.bind_over(staging, target, false).map(drop)
            }
            Self::Linux => {
                fs::create_dir_all(target)?;
                Ok(mount(Some(staging), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
            }
        }
    }

    /// Unmounts a path, and then removes its directory if `remove_directory` is true.
    pub(super) fn unmount(&self, path: &Path, remove_directory: bool) -> io::Result<()> {
        match self {
            Self::Memory { mounts, .. } => {
                mounts.detach(path);
                if remove_directory { mounts.destroy(path) } else { Ok(()) }
            }
            Self::Linux => {
                umount2(path, MntFlags::empty())?;
                if remove_directory { fs::remove_dir(path) } else { Ok(()) }
            }
        }
    }
}
