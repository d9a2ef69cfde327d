//! An entry of a directory, held by a descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::super::{DeviceNumber, Inspection, MountId, MountPath, Presence};
use super::table::read_table;

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
    pub(super) fn open(path: &MountPath) -> Result<Self, Errno> {
        Self::open_in(open_directory(path.parent())?, path.name())
    }

    pub(super) fn open_in(parent: OwnedFd, name: &OsStr) -> Result<Self, Errno> {
        let entry = rustix::fs::openat(&parent, name, PATH | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { parent, entry })
    }

    /// The mount whose root it is. `None` if it is in the mount of its directory.
    pub(super) fn mount(&self) -> Result<Option<MountId>, Errno> {
        let own = mount_of(self.entry.as_fd())?;
        Ok((own != mount_of(self.parent.as_fd())?).then_some(own))
    }

    /// What it is. Asks the server of the file system, however sure the kernel's cache is.
    pub(super) fn presence(&self) -> Result<Presence, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        match rustix::fs::statx(&self.entry, "", flags, StatxFlags::TYPE | StatxFlags::SIZE) {
            Ok(found) => Ok(kind(&found)),
            Err(errno) if is_dead(errno) && self.mount()?.is_some() => {
                Ok(Presence::Dead { errno: errno.raw_os_error() })
            }
            Err(errno) => Err(errno),
        }
    }
}

/// What is at a path, and in which mount.
pub(super) fn inspect(path: &MountPath) -> Result<Inspection, Errno> {
    let parent = match open_directory(path.parent()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(Inspection::of(Presence::Missing)),
        // Whatever is dead on the way says nothing of what is at the path.
        Err(errno) => return Err(errno),
    };
    let at = real_path(&parent);
    match Entry::open_in(parent, path.name()) {
        Ok(entry) => {
            let mount = entry.mount()?;
            Ok(Inspection { presence: entry.presence()?, mount })
        }
        Err(Errno::NOENT) => Ok(Inspection::of(Presence::Missing)),
        // A share whose server has forgotten it cannot even be opened; the table knows whether it is one.
        Err(errno) if is_dead(errno) => {
            let table = read_table().map_err(|_| errno)?;
            let mount = table.at(&at?.join(path.name())).ok_or(errno)?.id;
            Ok(Inspection::mounted(Presence::Dead { errno: errno.raw_os_error() }, mount))
        }
        Err(errno) => Err(errno),
    }
}

/// The path of what is held, without links, as the mount table has it.
fn real_path(held: &OwnedFd) -> Result<PathBuf, Errno> {
    std::fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).map_err(|error| number_of(&error))
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, PATH | OFlags::DIRECTORY, Mode::empty())
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

/// Whether an error means that the connection of a mount to its server has ended for good. Others pass: a driver may answer
/// EIO or ETIMEDOUT while the link to its storage is cut, and its mount is as healthy as ever.
fn is_dead(errno: Errno) -> bool {
    [Errno::NOTCONN, Errno::STALE, Errno::SHUTDOWN, Errno::CONNABORTED].contains(&errno)
}

/// From `fdinfo`, which every kernel has, asks no server, and so also answers for a mount that is dead.
fn mount_of(descriptor: BorrowedFd<'_>) -> Result<MountId, Errno> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))
        .map_err(|error| number_of(&error))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok()).map(MountId::new).ok_or(Errno::NOSYS)
}

fn number_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
