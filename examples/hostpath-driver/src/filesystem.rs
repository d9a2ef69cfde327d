//! Filesystems on loop devices: detected, created on a blank device only, checked, mounted and grown.

use std::path::Path;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::command::{self, CommandError, LONG, SHORT, run};
use super::error::CallError;
use super::requirements::has_capability;

/// A filesystem that this driver creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// Every filesystem by its name.
pub const FILE_SYSTEMS: &[(&str, FileSystem)] = &[("ext4", FileSystem::Ext4), ("xfs", FileSystem::Xfs)];

// blkid(8), low-level probing: the exit code if nothing was found.
const NOTHING_FOUND: i32 = 2;
// e2fsck(8): the lowest exit code for uncorrected errors and other failures.
const UNCORRECTED: i32 = 4;

impl FileSystem {
    /// Parses the name of one of [`FILE_SYSTEMS`].
    pub fn parse(name: &str) -> Option<Self> {
        FILE_SYSTEMS.iter().find(|(known, _)| *known == name).map(|(_, fs)| *fs)
    }

    /// Returns the name, as in `fs_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Returns the minimum size of a device for this filesystem, in bytes.
    pub const fn minimum_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 256 << 10,
            Self::Xfs => 300 << 20,
        }
    }

    /// Creates the filesystem, and overwrites the device.
    ///
    /// # Errors
    /// Returns an error if the tool fails.
    pub fn make(self, device: &Path) -> Result<(), CommandError> {
        let path = device.to_string_lossy();
        match self {
            Self::Ext4 => {
                let extended = "nodiscard,lazy_itable_init=1";
                run("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", extended, &path], LONG)
            }
            Self::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", &path], LONG),
        }
    }

    /// Checks the filesystem, and makes the repairs that need no confirmation.
    ///
    /// # Errors
    /// Returns an error if further damage is left.
    pub fn check(self, device: &Path) -> Result<(), CommandError> {
        // The kernel replays the journal of XFS when it mounts, and XFS's repair tool is for manual use.
        match self {
            Self::Ext4 => check_ext4(device, "-p"),
            Self::Xfs => Ok(()),
        }
    }

    /// Mounts a device with this filesystem.
    ///
    /// # Errors
    /// Returns an error with the tool's output if the tool fails.
    pub fn mount(
        self,
        device: &Path,
        on: &Path,
        flags: &[String],
        read_only: bool,
    ) -> Result<(), CommandError> {
        let mut options = vec![if read_only { "ro" } else { "rw" }];
        options.extend(flags.iter().map(String::as_str));
        if self == Self::Xfs {
            // A restored snapshot has the UUID of its source, and both may be mounted here.
            options.push("nouuid");
        }
        let (device, on) = (device.to_string_lossy(), on.to_string_lossy());
        run("mount", &["-t", self.name(), "-o", &options.join(","), &device, &on], SHORT)
    }

    /// Grows an unmounted filesystem to the size of its device. Returns false if the filesystem must be mounted for that.
    ///
    /// # Errors
    /// Returns an error if the tool fails.
    pub fn grow_at_rest(self, device: &Path) -> Result<bool, CommandError> {
        match self {
            Self::Ext4 => {
                // resize2fs requires a full check immediately before.
                check_ext4(device, "-fp")?;
                run("resize2fs", &[&device.to_string_lossy()], LONG).map(|()| true)
            }
            // XFS grows only while it is mounted.
            Self::Xfs => Ok(false),
        }
    }

    /// Grows a mounted filesystem to the size of its device.
    ///
    /// # Errors
    /// Returns [`CallError::Precondition`] if the kernel denies this to the process, otherwise an error if the tool fails.
    pub fn grow(self, device: &Path, on: &Path) -> Result<(), CallError> {
        let grown = match self {
            Self::Ext4 => run("resize2fs", &[&device.to_string_lossy()], LONG),
            Self::Xfs => run("xfs_growfs", &["-d", &on.to_string_lossy()], LONG),
        };
        // The kernel lets only a process with this capability grow a mounted ext4.
        if grown.is_err() && self == Self::Ext4 && !has_capability(CapabilitySet::SYS_RESOURCE) {
            return Err(CallError::Precondition {
                subject: device.display().to_string(),
                state: "has a mounted ext4, and growing that needs CAP_SYS_RESOURCE".to_owned(),
                fix: "it grows the next time the volume is staged",
            });
        }
        Ok(grown?)
    }
}

fn check_ext4(device: &Path, how: &str) -> Result<(), CommandError> {
    let arguments = [how, &device.to_string_lossy()];
    command::output("e2fsck", &arguments, LONG, |code| code < UNCORRECTED).map(drop)
}

/// The detected content of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// No known signature.
    None,
    /// A filesystem of [`FileSystem`].
    FileSystem(FileSystem),
    /// Another signature, by its name.
    Other(String),
}

/// Detects the signature of a filesystem, a partition table, RAID, LVM or encryption.
///
/// # Errors
/// Returns an error if the tool fails, or finds contradicting signatures.
pub fn probe(device: &Path) -> Result<Signature, CommandError> {
    let arguments = ["-p", "-o", "export", &device.to_string_lossy()];
    let printed = command::output("blkid", &arguments, SHORT, |code| matches!(code, 0 | NOTHING_FOUND))?;
    Ok(signature(&printed))
}

fn signature(printed: &str) -> Signature {
    let value = |key: &str| printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match value("TYPE").or_else(|| value("PTTYPE")) {
        Some(name) => {
            FileSystem::parse(name).map_or_else(|| Signature::Other(name.to_owned()), Signature::FileSystem)
        }
        // blkid also prints sizes of an empty device.
        None => Signature::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_a_signature_from_none() {
        assert_eq!(signature("DEVNAME=/dev/loop0\nTYPE=ext4\n"), Signature::FileSystem(FileSystem::Ext4));
        assert_eq!(signature("TYPE=LVM2_member\n"), Signature::Other("LVM2_member".into()));
        assert_eq!(signature("DEVNAME=/dev/loop0\nPTTYPE=gpt\n"), Signature::Other("gpt".into()));
        assert_eq!(signature("DEVNAME=/dev/loop0\n"), Signature::None);
    }

    #[test]
    fn names_round_trip() {
        for (name, fs) in FILE_SYSTEMS {
            assert_eq!((FileSystem::parse(name), fs.name()), (Some(*fs), *name));
        }
        assert_eq!(FileSystem::parse("btrfs"), None);
    }
}
