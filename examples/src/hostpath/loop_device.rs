//! Loop devices, found again by the file behind them.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::command::{self, CommandError};

const BLOCK_DEVICES: &str = "/sys/block";

/// Why a loop device could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The kernel's list of devices cannot be read.
    #[error("cannot list {BLOCK_DEVICES}: {source}; mount /sys")]
    List {
        /// Why not.
        source: io::Error,
    },
    /// losetup failed.
    #[error("loop device for {}: {source}", image.display())]
    Tool {
        /// The file behind the device.
        image: PathBuf,
        /// Why not.
        source: CommandError,
    },
    /// losetup gave no device that exists.
    #[error("loop device for {}: losetup gave {found:?}, which is not in {BLOCK_DEVICES}", image.display())]
    Missing {
        /// The file behind the device.
        image: PathBuf,
        /// What losetup printed.
        found: String,
    },
    /// The device is on its way out, held by its last user.
    #[error("{} of {} goes away when its last user lets go: try again then", device.display(), image.display())]
    Detaching {
        /// The file behind the device.
        image: PathBuf,
        /// The device.
        device: PathBuf,
    },
}

/// An attached loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// Like `/dev/loop0`.
    pub path: PathBuf,
    /// Major and minor number.
    pub number: (u32, u32),
    detaching: bool,
}

impl LoopDevice {
    /// The device's path as text, which it always is.
    pub fn name(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    /// Lets the device see that its file has grown.
    ///
    /// # Errors
    /// If losetup fails.
    pub fn take_new_size(&self, image: &Path) -> Result<(), LoopError> {
        losetup(image, &["--set-capacity", self.name()]).map(drop)
    }

    /// Gives the device back to the system.
    ///
    /// # Errors
    /// If losetup fails.
    pub fn detach(&self, image: &Path) -> Result<(), LoopError> {
        losetup(image, &["--detach", self.name()]).map(drop)
    }
}

/// The device that has this file behind it, if there is one.
///
/// # Errors
/// If the kernel's list of devices cannot be read.
pub fn find(image: &Path) -> Result<Option<LoopDevice>, LoopError> {
    let list = |source| LoopError::List { source };
    for entry in fs::read_dir(BLOCK_DEVICES).map_err(list)? {
        let entry = entry.map_err(list)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        let attributes = entry.path();
        // The attribute is there only while a file is attached.
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

/// Attaches a file, or finds the device that has it already, which keeps the mode that it has.
///
/// # Errors
/// If losetup fails, or a device with this file is just being taken down.
pub fn attach(image: &Path, read_only: bool) -> Result<LoopDevice, LoopError> {
    match find(image)? {
        Some(device) if device.detaching => {
            Err(LoopError::Detaching { image: image.to_owned(), device: device.path })
        }
        Some(device) => Ok(device),
        None => {
            let path = image.to_string_lossy();
            let mode: &[&str] = if read_only { &["--read-only"] } else { &[] };
            let printed = losetup(image, &[mode, &["--find", "--show", &path]].concat())?;
            find(image)?.ok_or_else(|| LoopError::Missing {
                image: image.to_owned(),
                found: printed.trim().to_owned(),
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
        number: (major.parse().ok()?, minor.parse().ok()?),
        detaching: read("loop/autoclear").is_some_and(|flag| flag.trim() == "1"),
    })
}

fn losetup(image: &Path, arguments: &[&str]) -> Result<String, LoopError> {
    command::run("losetup", arguments, command::SHORT)
        .map_err(|source| LoopError::Tool { image: image.to_owned(), source })
}
