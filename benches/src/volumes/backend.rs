//! The mount backend of the driver.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use volume_manager::mounts::{MemoryFileSystem, MemoryMounts};

/// The place where mounts are made.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountBackend {
    /// Memory.
    Memory {
        /// The directories and mounts.
        mounts: MemoryMounts,
        /// The filesystems that were created, by volume id.
        made: Mutex<HashMap<String, MemoryFileSystem>>,
    },
    /// The mount namespace of this process. Each volume is a tmpfs. Needs root.
    Linux,
}

impl MountBackend {
    /// Creates a backend that mounts in memory.
    #[must_use]
    pub fn memory(mounts: MemoryMounts) -> Self {
        Self::Memory { mounts, made: Mutex::default() }
    }

    pub(super) fn make_directory(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Memory { mounts, .. } => mounts.make_directory(path),
            Self::Linux => fs::create_dir_all(path),
        }
    }

    pub(super) fn stage(&self, volume: &str, staging: &Path) -> io::Result<()> {
        match self {
            Self::Memory { mounts, made } => {
                let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                let new = || mounts.file_system("ext4", "/dev/volume", false);
                let file_system = *made.entry(volume.to_owned()).or_insert_with(new);
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

    /// Unmounts a path, and removes the directory if it is the driver's.
    pub(super) fn take_down(&self, path: &Path, directory: bool) -> io::Result<()> {
        match self {
            Self::Memory { mounts, .. } => {
                mounts.detach(path);
                if directory { mounts.destroy(path) } else { Ok(()) }
            }
            Self::Linux => {
                umount2(path, MntFlags::empty())?;
                if directory { fs::remove_dir(path) } else { Ok(()) }
            }
        }
    }
}
