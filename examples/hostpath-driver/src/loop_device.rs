//! Loop devices, identified by their backing files.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use volume_manager::mounts::DeviceNumber;

use super::command::{CommandError, SHORT, run};
use super::error::CallError;
use edge_csi_common::state::PathError;

const BLOCK_DEVICES: &str = "/sys/block";

/// An attached loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// Like `/dev/loop0`.
    pub path: PathBuf,
    /// Major and minor number.
    pub number: DeviceNumber,
    detaching: bool,
}

impl LoopDevice {
    /// Returns the device's path as text.
    pub fn name(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// Updates the device to the size of its file.
    ///
    /// # Errors
    /// Returns an error if losetup fails.
    pub fn update_capacity(&self) -> Result<(), CommandError> {
        run("losetup", &["--set-capacity", self.name()], SHORT)
    }

    /// Detaches the device from its file.
    ///
    /// # Errors
    /// Returns an error if losetup fails.
    pub fn detach(&self) -> Result<(), CommandError> {
        run("losetup", &["--detach", self.name()], SHORT)
    }
}

/// Returns the device with this backing file, if there is one.
///
/// # Errors
/// Returns an error if the kernel's list of devices cannot be read.
pub fn find(image: &Path) -> Result<Option<LoopDevice>, PathError> {
    let list = |source| PathError { action: "list", path: BLOCK_DEVICES.into(), source };
    for entry in fs::read_dir(BLOCK_DEVICES).map_err(list)? {
        let entry = entry.map_err(list)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        let attributes = entry.path();
        // The attribute exists only while a file is attached.
        let Ok(mut backing) = fs::read(attributes.join("loop/backing_file")) else { continue };
        while backing.last() == Some(&b'\n') {
            backing.pop();
        }
        if Path::new(&std::ffi::OsString::from_vec(backing)) == image
            && let Some(device) = describe(&attributes)
        {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Attaches a file, or returns the device that already has it, with that device's mode.
///
/// # Errors
/// Returns an error if losetup fails, or if a device with this file is being detached.
pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, CallError> {
    match find(image)? {
        // The kernel releases the device when its last user closes it.
        Some(device) if device.detaching => Err(CallError::Pending(device.name().to_owned())),
        Some(device) => Ok(device),
        None => {
            let path = image.to_string_lossy();
            let mode: &[&str] = if read_only { &["--read-only"] } else { &[] };
            run("losetup", &[mode, &["--find", &path]].concat(), SHORT)?;
            find(image)?.ok_or_else(|| {
                CallError::path("find the loop device of", image, io::ErrorKind::NotFound.into())
            })
        }
    }
}

fn describe(attributes: &Path) -> Option<LoopDevice> {
    let read = |name: &str| fs::read_to_string(attributes.join(name)).ok();
    let number = read("dev")?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(LoopDevice {
        path: Path::new("/dev").join(attributes.file_name()?),
        number: DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? },
        detaching: read("loop/autoclear").is_some_and(|flag| flag.trim() == "1"),
    })
}
