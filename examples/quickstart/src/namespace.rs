//! A private mount namespace: mounts are real, and the kernel removes all of them with the process.

use std::fs;
use std::io;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use volume_manager::mounts::linux::read_table;

/// Mounting is not permitted.
#[derive(Debug, thiserror::Error)]
#[error(
    "the quickstart mounts volumes: run it as root (sudo target/debug/quickstart; in a container with CAP_SYS_ADMIN), or where \
     user namespaces are allowed (sysctl user.max_user_namespaces above 0, on some systems kernel.unprivileged_userns_clone=1 or \
     kernel.apparmor_restrict_unprivileged_userns=0): {doing}: {source}"
)]
pub(super) struct NoMounts {
    doing: &'static str,
    source: io::Error,
}

/// Enters the namespace, and returns a sentence about its kind. Must be called before the process has a second
/// thread.
///
/// # Errors
/// If the host does not allow the namespace.
pub(super) fn enter() -> Result<&'static str, NoMounts> {
    let (uid, gid) = (geteuid(), getegid());
    let mut mounts = "Mounts are real, in a mount namespace of this process.";
    // Root in a container may lack the capability as well.
    if !uid.is_root() || unshare(CloneFlags::CLONE_NEWNS).is_err() {
        // A user namespace allows bind mounts of directories, but no loop devices.
        mounts = "Not root: mounts are real, in a user namespace of this process.";
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUSER)
            .map_err(|cause| NoMounts { doing: "unshare", source: cause.into() })?;
        let map = |file: &str, text: String| {
            fs::write(Path::new("/proc/self").join(file), text)
                .map_err(|source| NoMounts { doing: "map the user", source })
        };
        map("setgroups", "deny".to_owned())?;
        map("uid_map", format!("0 {uid} 1"))?;
        map("gid_map", format!("0 {gid} 1"))?;
    }
    // Otherwise the host would receive the mounts and keep them.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|cause| NoMounts { doing: "make mounts private", source: cause.into() })?;
    Ok(mounts)
}

/// Unmounts everything at or below `directory`, the innermost first, so that removing the directory deletes no
/// files through a mount.
///
/// # Errors
/// If a mount cannot be removed.
pub(super) fn unmount_all(directory: &Path) -> io::Result<()> {
    let table = read_table().map_err(io::Error::other)?;
    let places: Vec<&Path> = table.within(directory).map(|mount| mount.mount_point.as_path()).collect();
    places.into_iter().rev().try_for_each(|place| Ok(umount2(place, MntFlags::MNT_DETACH)?))
}
