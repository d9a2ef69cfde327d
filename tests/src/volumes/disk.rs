//! A disk that can be mounted more than once and be frozen.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::MountFlags;

/// A loop device with an ext4 on it. Detached when dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Creates a disk of 4 MiB in the file `name` of a directory.
    ///
    /// # Panics
    /// If the file, the file system or the loop device cannot be created.
    #[must_use]
    pub fn new(directory: &Path, name: &str) -> Self {
        let file = directory.join(name);
        File::create(&file).and_then(|file| file.set_len(4 << 20)).expect("a file for a disk");
        let file = file.to_str().expect("the directory of a test is text");
        run("mkfs.ext4", &["-q", "-F", file]);
        Self(run("losetup", &["--find", "--show", file]).into())
    }

    /// Returns the path of the loop device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.0
    }

    /// Mounts a disk's device at a directory, which is created. A device can be mounted at several directories.
    ///
    /// # Errors
    /// Returns the error of the failed system call.
    pub fn mount(device: &Path, at: &Path) -> io::Result<()> {
        fs::create_dir_all(at)?;
        rustix::mount::mount(device, at, "ext4", MountFlags::empty(), None::<&CStr>).map_err(Into::into)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The kernel detaches a mounted device with its last mount.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A frozen file system: every writer blocks and cannot even be killed. The file system is thawed when dropped.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Frozen {
    /// Freezes the file system at a path.
    ///
    /// # Panics
    /// If the file system cannot be frozen.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        run("fsfreeze", &["--freeze", path.to_str().expect("the directory of a test is text")]);
        Self(path.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
