//! Filesystems on loop devices: looked for, made on a blank device only, checked, mounted and grown.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::command::{self, CommandError, LONG, SHORT};
use super::requirements::capability;

/// A filesystem that this driver makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// The fourth extended filesystem.
    Ext4,
    /// XFS.
    Xfs,
}

/// Every filesystem by its name.
pub const FILE_SYSTEMS: &[(&str, FileSystem)] = &[("ext4", FileSystem::Ext4), ("xfs", FileSystem::Xfs)];

// blkid(8), low-level probing: nothing was found.
const NOTHING_FOUND: i32 = 2;
// e2fsck(8): errors were left uncorrected, and everything worse.
const UNCORRECTED: i32 = 4;

/// Why a filesystem could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileSystemError {
    /// A tool failed.
    #[error("{}: {source}", device.display())]
    Tool {
        /// The device.
        device: PathBuf,
        /// What the tool said.
        source: CommandError,
    },
    /// The device holds something that is not to be overwritten.
    #[error("{} holds {found} and not {expected}: it is left as it is; use a new volume, or the access type that wrote it", device.display())]
    ForeignData {
        /// The device.
        device: PathBuf,
        /// What it holds.
        found: String,
        /// The filesystem that was to be there.
        expected: &'static str,
    },
    /// The kernel lets only a process with CAP_SYS_RESOURCE grow a mounted ext4.
    #[error(
        "{} has a mounted ext4, and growing that needs CAP_SYS_RESOURCE: it grows the next time the volume is staged",
        device.display()
    )]
    NotWhileMounted {
        /// The device.
        device: PathBuf,
    },
}

impl FileSystem {
    /// Takes the name of one of [`FILE_SYSTEMS`].
    pub fn parse(name: &str) -> Option<Self> {
        FILE_SYSTEMS.iter().find(|(known, _)| *known == name).map(|(_, fs)| *fs)
    }

    /// Its name, as in `fs_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The smallest device in bytes on which it can be made.
    pub const fn minimum_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 256 << 10,
            Self::Xfs => 300 << 20,
        }
    }

    /// Makes one, over anything that is on the device.
    ///
    /// # Errors
    /// If the tool fails.
    pub fn make(self, device: &Path) -> Result<(), FileSystemError> {
        let path = device.to_string_lossy();
        match self {
            Self::Ext4 => run(
                device,
                "mkfs.ext4",
                &["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1", &path],
                LONG,
            ),
            Self::Xfs => run(device, "mkfs.xfs", &["-q", "-f", "-K", &path], LONG),
        }
    }

    /// Repairs what can be repaired without a question.
    ///
    /// # Errors
    /// If more is broken than that.
    pub fn check(self, device: &Path) -> Result<(), FileSystemError> {
        // The kernel replays the journal of XFS when it mounts, and its repair tool is for people.
        match self {
            Self::Ext4 => check_ext4(device, "-p"),
            Self::Xfs => Ok(()),
        }
    }

    /// Mounts a device that holds one.
    ///
    /// # Errors
    /// If the tool fails; its words are in the error.
    pub fn mount(
        self,
        device: &Path,
        on: &Path,
        flags: &[String],
        read_only: bool,
    ) -> Result<(), FileSystemError> {
        let mut options = vec![if read_only { "ro" } else { "rw" }];
        options.extend(flags.iter().map(String::as_str));
        if self == Self::Xfs {
            // A restored snapshot has the id of its source, and both may be mounted here.
            options.push("nouuid");
        }
        let (device_path, on) = (device.to_string_lossy(), on.to_string_lossy());
        run(device, "mount", &["-t", self.name(), "-o", &options.join(","), &device_path, &on], SHORT)
    }

    /// Grows one that is not mounted to the size of its device, if that can be done.
    ///
    /// # Errors
    /// If the tool fails.
    pub fn grow_at_rest(self, device: &Path) -> Result<bool, FileSystemError> {
        match self {
            Self::Ext4 => {
                // Without a full check just before, the growing is refused.
                check_ext4(device, "-fp")?;
                run(device, "resize2fs", &[&device.to_string_lossy()], LONG).map(|()| true)
            }
            // XFS grows while it is mounted only.
            Self::Xfs => Ok(false),
        }
    }

    /// Grows a mounted one to the size of its device.
    ///
    /// # Errors
    /// [`FileSystemError::NotWhileMounted`] if the kernel does not let this process do that, else if the tool fails.
    pub fn grow(self, device: &Path, on: &Path) -> Result<(), FileSystemError> {
        match self {
            Self::Ext4 => run(device, "resize2fs", &[&device.to_string_lossy()], LONG).map_err(|error| {
                if capability::may(capability::SYS_RESOURCE) {
                    error
                } else {
                    FileSystemError::NotWhileMounted { device: device.to_owned() }
                }
            }),
            Self::Xfs => run(device, "xfs_growfs", &["-d", &on.to_string_lossy()], LONG),
        }
    }
}

fn check_ext4(device: &Path, how: &str) -> Result<(), FileSystemError> {
    let tool = |source| FileSystemError::Tool { device: device.to_owned(), source };
    let output = command::output("e2fsck", &[how, &device.to_string_lossy()], LONG).map_err(tool)?;
    if output.status.code().is_none_or(|code| code >= UNCORRECTED) {
        return Err(tool(command::failure("e2fsck", &output)));
    }
    Ok(())
}

/// What is known to be on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// Nothing that is known.
    None,
    /// One of ours.
    FileSystem(FileSystem),
    /// Something else, by its name.
    Other(String),
}

/// Looks for the signature of a filesystem, a partition table, RAID, LVM or encryption.
///
/// # Errors
/// If the tool fails, or finds several that contradict.
pub fn probe(device: &Path) -> Result<Signature, FileSystemError> {
    let tool = |source| FileSystemError::Tool { device: device.to_owned(), source };
    let path = device.to_string_lossy();
    let output = command::output("blkid", &["-p", "-o", "export", &path], SHORT).map_err(tool)?;
    match output.status.code() {
        Some(0) => Ok(signature(&String::from_utf8_lossy(&output.stdout))),
        Some(NOTHING_FOUND) => Ok(Signature::None),
        _ => Err(tool(command::failure("blkid", &output))),
    }
}

fn signature(printed: &str) -> Signature {
    let value = |key: &str| printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match value("TYPE").or_else(|| value("PTTYPE")) {
        Some(name) => {
            FileSystem::parse(name).map_or_else(|| Signature::Other(name.to_owned()), Signature::FileSystem)
        }
        // blkid also prints sizes of a device that holds nothing.
        None => Signature::None,
    }
}

fn run(
    device: &Path,
    program: &'static str,
    arguments: &[&str],
    limit: std::time::Duration,
) -> Result<(), FileSystemError> {
    let tool = |source| FileSystemError::Tool { device: device.to_owned(), source };
    command::run(program, arguments, limit).map(drop).map_err(tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_told_from_none() {
        assert_eq!(signature("DEVNAME=/dev/loop0\nTYPE=ext4\n"), Signature::FileSystem(FileSystem::Ext4));
        assert_eq!(signature("TYPE=LVM2_member\n"), Signature::Other("LVM2_member".into()));
        assert_eq!(signature("DEVNAME=/dev/loop0\nPTTYPE=gpt\n"), Signature::Other("gpt".into()));
        assert_eq!(signature("DEVNAME=/dev/loop0\n"), Signature::None);
    }

    #[test]
    fn names_go_both_ways() {
        for (name, fs) in FILE_SYSTEMS {
            assert_eq!((FileSystem::parse(name), fs.name()), (Some(*fs), *name));
        }
        assert_eq!(FileSystem::parse("btrfs"), None);
    }
}
