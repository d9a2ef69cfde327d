//! The few steps that a durable write is made of, as a seam: the real disk, and in tests one that loses its power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The steps of a durable write. Each may be the last one before a power cut.
pub trait Disk: Send + Sync + 'static {
    /// Writes a new file or replaces one, readable by its owner only; not yet durable.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's bytes durable.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, replacing what has it.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Those of the filesystem.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The disk of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}
