//! Bind mounts, from descriptor to descriptor: what was looked at is what is bound.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind, mount_remount, move_mount, open_tree,
};

use super::super::super::{Bind, Presence};
use super::super::entry::Entry;
use super::super::probe::Answer;

pub(super) fn bind(wish: &Bind) -> Result<Answer, Errno> {
    let source = match Entry::open(&wish.source) {
        Ok(source) => source,
        Err(Errno::NOENT) => return Ok(Answer::SourceMissing),
        Err(errno) => return Err(errno),
    };
    let target = match Entry::open(&wish.target) {
        Ok(target) => target,
        Err(Errno::NOENT) => return Ok(Answer::TargetMissing),
        Err(errno) => return Err(errno),
    };
    if target.mount()?.is_some() {
        return Ok(Answer::TargetMounted);
    }
    match (source.presence()?, target.presence()?) {
        (Presence::Dead { errno }, _) => return Ok(Answer::Errno(errno)),
        (Presence::Symlink, _) => return Err(Errno::LOOP),
        (Presence::Directory, Presence::Directory) => {}
        (Presence::Directory, found) => return Ok(Answer::TargetUnfit(found)),
        (_, Presence::RegularFile { size: 0 }) => {}
        (_, found) => return Ok(Answer::TargetUnfit(found)),
    }
    let mount = match attach(&source.entry, &target.entry) {
        // Kernels before 5.2.
        Err(Errno::NOSYS) => {
            mount_bind(descriptor(&source.entry), descriptor(&target.entry))?;
            Entry::open(&wish.target)?.entry
        }
        attached => attached?,
    };
    if wish.read_only
        && let Err(errno) = make_read_only(&mount)
    {
        drop(mount);
        rustix::mount::unmount(wish.target.as_path(), UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
        return Err(errno);
    }
    Ok(Answer::Bound)
}

/// A mount of what the one descriptor holds, over what the other holds. The descriptor is of its root.
fn attach(source: &OwnedFd, target: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, "", flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, "", target, "", flags)?;
    Ok(tree)
}

fn make_read_only(mount: &OwnedFd) -> Result<(), Errno> {
    // A remount sets all that holds for the mount: what is not named again would be given up.
    let now = rustix::fs::fstatvfs(mount)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (is, keep) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if now.contains(is) {
            flags |= keep;
        }
    }
    mount_remount(descriptor(mount), flags, "")
}

fn descriptor(held: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}
