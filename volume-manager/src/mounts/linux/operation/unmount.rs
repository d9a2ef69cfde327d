//! Unmounting one mount.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::super::super::{MountId, Unmount, UnmountMode, Unmounted};
use super::super::entry::Entry;
use super::super::probe::Answer;
use super::super::table::read_table;

pub(super) fn unmount(wish: &Unmount) -> Result<Answer, Errno> {
    if let Some(expected) = wish.only {
        match topmost(wish)? {
            None => return Ok(Answer::Unmounted(Unmounted::WasNotMounted)),
            Some(found) if found != expected => return Ok(Answer::AnotherMount(found)),
            Some(_) => {}
        }
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    match wish.mode {
        UnmountMode::Normal => {}
        UnmountMode::Force => flags |= UnmountFlags::FORCE,
        UnmountMode::Lazy => flags |= UnmountFlags::DETACH,
    }
    match rustix::mount::unmount(wish.path.as_path(), flags) {
        Ok(()) => Ok(Answer::Unmounted(Unmounted::Unmounted)),
        Err(Errno::NOENT) => Ok(Answer::Unmounted(Unmounted::WasNotMounted)),
        // The kernel's word for what is no root of a mount, and also for a mount that this namespace may not take away.
        Err(Errno::INVAL) if topmost(wish)?.is_none() => Ok(Answer::Unmounted(Unmounted::WasNotMounted)),
        Err(Errno::BUSY) => Ok(Answer::Busy),
        Err(errno) => Err(errno),
    }
}

/// From the table if it is there under this path, since opening it may hang on a dead server.
fn topmost(wish: &Unmount) -> Result<Option<MountId>, Errno> {
    let table = read_table().map_err(|_| Errno::IO)?;
    if let Some(mount) = table.at(wish.path.as_path()) {
        return Ok(Some(mount.id));
    }
    match Entry::open(&wish.path) {
        Ok(entry) => entry.mount(),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
