//! The mounts that this driver makes.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, UnmountFlags};
use volume_manager::mounts::TableError;

/// Why a mount could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The kernel refused a bind mount.
    #[error("cannot bind {} on {}: {source}{hint}", from.display(), on.display())]
    Bind {
        /// What was to be shown.
        from: PathBuf,
        /// Where.
        on: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do, or empty.
        hint: &'static str,
    },
    /// The kernel refused to unmount.
    #[error("cannot unmount {}: {source}", on.display())]
    Unmount {
        /// Where.
        on: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something uses the mount.
    #[error("{} is in use: end the processes that have files open there", on.display())]
    Busy {
        /// Where.
        on: PathBuf,
    },
    /// A mount flag that a bind mount does not have.
    #[error(
        "mount_flags holds {found:?}: a volume of kind directory takes {BIND_FLAGS:?}, a loop volume any flag of its filesystem"
    )]
    Flag {
        /// The flag.
        found: String,
    },
}

/// The flags that a bind mount can have of its own.
pub const BIND_FLAGS: &[&str] = &[
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "noatime",
    "atime",
    "nodiratime",
    "relatime",
    "bind",
];

/// Shows a directory or a device file at another place, with flags from [`BIND_FLAGS`].
///
/// # Errors
/// If a flag is unknown or the kernel refuses; then nothing is mounted.
pub fn bind(from: &Path, on: &Path, flags: &[String], read_only: bool) -> Result<(), MountError> {
    let own = bind_flags(flags)? | if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let refused = |errno: Errno| MountError::Bind {
        from: from.to_owned(),
        on: on.to_owned(),
        source: errno.into(),
        hint: if errno == Errno::PERM {
            "; mounting needs root or a user namespace of one's own"
        } else {
            ""
        },
    };
    mount::mount_bind(from, on).map_err(refused)?;
    if own.is_empty() {
        return Ok(());
    }
    // What the source is mounted with stays: in a user namespace the kernel does not let go of it.
    let restricted = inherited_flags(on)
        .and_then(|inherited| mount::mount_remount(on, MountFlags::BIND | inherited | own, ""))
        .map_err(refused);
    if restricted.is_err() {
        // A mount that shows more than was asked for must not stay.
        let _ = mount::unmount(on, UnmountFlags::NOFOLLOW);
    }
    restricted
}

/// Checks flags for a bind mount before anything is done.
///
/// # Errors
/// [`MountError::Flag`] for one that a bind mount does not have.
pub fn bind_flags(flags: &[String]) -> Result<MountFlags, MountError> {
    flags.iter().flat_map(|flag| flag.split(',')).try_fold(MountFlags::empty(), |all, flag| {
        Ok(all
            | match flag {
                "ro" => MountFlags::RDONLY,
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                known if BIND_FLAGS.contains(&known) => MountFlags::empty(),
                _ => return Err(MountError::Flag { found: flag.to_owned() }),
            })
    })
}

fn inherited_flags(on: &Path) -> rustix::io::Result<MountFlags> {
    let shown = statvfs(on)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    Ok(pairs
        .iter()
        .filter(|(there, _)| shown.contains(*there))
        .fold(MountFlags::empty(), |all, (_, flag)| all | *flag))
}

/// Undoes the topmost mount on a path.
///
/// # Errors
/// [`MountError::Busy`] while files are open there.
pub fn unmount(on: &Path) -> Result<(), MountError> {
    mount::unmount(on, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => MountError::Busy { on: on.to_owned() },
        _ => MountError::Unmount { on: on.to_owned(), source: errno.into() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_of_a_bind_mount_are_named() {
        assert!(bind_flags(&["noatime,nodev".into(), "ro".into()]).unwrap().contains(MountFlags::RDONLY));
        assert!(
            matches!(bind_flags(&["discard".into()]), Err(MountError::Flag { found }) if found == "discard")
        );
    }
}
