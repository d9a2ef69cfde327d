//! An entry of a directory, held by a descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::super::{AbsolutePath, DeviceNumber, MountId, Presence};

/// An entry and the directory that it is in. Neither can be exchanged for another while this is held.
///
/// While it is held, its mount is in use: let it go before an unmount.
pub(super) struct Entry {
    pub(super) parent: OwnedFd,
    pub(super) entry: OwnedFd,
}

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

impl Entry {
    /// Follows links on the way, and none at the end.
    pub(super) fn open(path: &AbsolutePath) -> Result<Self, Errno> {
        let parent = open_directory(path.parent())?;
        let entry = rustix::fs::openat(&parent, path.name(), PATH | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { parent, entry })
    }

    /// The mount whose root it is. `None` if it is in the mount of its directory.
    pub(super) fn mount(&self) -> Result<Option<MountId>, Errno> {
        let own = mount_of(self.entry.as_fd())?;
        Ok((own != mount_of(self.parent.as_fd())?).then_some(own))
    }

    /// What it is. Asks the server of the file system, however sure the kernel's cache is.
    pub(super) fn presence(&self) -> Result<Presence, Errno> {
        presence(self.entry.as_fd())
    }
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, PATH | OFlags::DIRECTORY, Mode::empty())
}

pub(super) fn open_in(directory: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, PATH | OFlags::NOFOLLOW, Mode::empty())
}

pub(super) fn presence(entry: BorrowedFd<'_>) -> Result<Presence, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
    match rustix::fs::statx(entry, "", flags, StatxFlags::TYPE | StatxFlags::SIZE) {
        Ok(found) => Ok(kind(&found)),
        Err(errno) if is_dead(errno) => Ok(Presence::Dead { errno: errno.raw_os_error() }),
        Err(errno) => Err(errno),
    }
}

fn kind(found: &Statx) -> Presence {
    let device = DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor };
    match FileType::from_raw_mode(u32::from(found.stx_mode)) {
        FileType::Directory => Presence::Directory,
        FileType::RegularFile => Presence::RegularFile { size: found.stx_size },
        FileType::BlockDevice => Presence::BlockDevice(device),
        FileType::CharacterDevice => Presence::CharacterDevice(device),
        FileType::Symlink => Presence::Symlink,
        _ => Presence::Other,
    }
}

/// Whether an error means that the server of a mount is gone, or that its connection is.
pub(super) fn is_dead(errno: Errno) -> bool {
    [
        Errno::NOTCONN,
        Errno::STALE,
        Errno::SHUTDOWN,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::CONNABORTED,
        Errno::CONNRESET,
        Errno::TIMEDOUT,
        Errno::IO,
        Errno::REMOTEIO,
        Errno::NODEV,
        Errno::NXIO,
    ]
    .contains(&errno)
}

/// From `fdinfo`, which every kernel has, asks no server, and so also answers for a mount that is dead.
fn mount_of(descriptor: BorrowedFd<'_>) -> Result<MountId, Errno> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok()).map(MountId::new).ok_or(Errno::NOSYS)
}
