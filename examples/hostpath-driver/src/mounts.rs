//! The mounts that this driver makes.

use std::io;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, UnmountFlags};

use super::error::CallError;

/// The flags that a bind mount supports per mount.
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

/// Bind-mounts a directory or a device file, with flags from [`BIND_FLAGS`].
///
/// # Errors
/// Returns an error, and mounts nothing, if a flag is unknown or the kernel refuses.
pub fn bind(from: &Path, on: &Path, flags: &[String], read_only: bool) -> Result<(), CallError> {
    let own = bind_flags(flags)? | if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let refused = |errno: Errno| {
        let mut cause = io::Error::from(errno);
        if errno == Errno::PERM {
            let fix = "mounting needs root or a user namespace of the process";
            cause = io::Error::new(cause.kind(), format!("{cause}; {fix}"));
        }
        CallError::path("bind a volume to", on, cause)
    };
    mount::mount_bind(from, on).map_err(refused)?;
    if own.is_empty() {
        return Ok(());
    }
    // The flags of the source's mount stay: in a user namespace the kernel does not remove them.
    let restricted = inherited_flags(on)
        .and_then(|inherited| mount::mount_remount(on, MountFlags::BIND | inherited | own, ""))
        .map_err(refused);
    if restricted.is_err() {
        // A mount with more access than requested must not stay.
        let _ = mount::unmount(on, UnmountFlags::NOFOLLOW);
    }
    restricted
}

/// Checks flags for a bind mount.
///
/// # Errors
/// Returns [`CallError::Invalid`] for a flag that a bind mount does not support.
pub fn bind_flags(flags: &[String]) -> Result<MountFlags, CallError> {
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
                _ => {
                    let expected = format!("{BIND_FLAGS:?}; a loop volume takes any flag of its filesystem");
                    return Err(CallError::invalid("mount_flags", flag, expected));
                }
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
/// Returns [`CallError::Precondition`] while files are open there.
pub fn unmount(on: &Path) -> Result<(), CallError> {
    mount::unmount(on, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => CallError::Precondition {
            subject: on.display().to_string(),
            state: "is in use".to_owned(),
            fix: "end the processes that have files open there",
        },
        _ => CallError::path("unmount", on, errno.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_of_a_bind_mount_are_named() {
        assert!(bind_flags(&["noatime,nodev".into(), "ro".into()]).unwrap().contains(MountFlags::RDONLY));
        assert!(
            matches!(bind_flags(&["discard".into()]), Err(CallError::Invalid { found, .. }) if found == "discard")
        );
    }
}
