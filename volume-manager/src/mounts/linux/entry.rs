//! A directory entry with open descriptors.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::super::{DeviceNumber, Inspection, MountId, MountPath, PathState};
use super::table::read_table;

/// An entry and its parent directory, both open, so that neither can be replaced by another.
///
/// The descriptors keep the mount busy: drop them before an unmount.
pub(super) struct Entry {
    pub(super) parent: OwnedFd,
    pub(super) entry: OwnedFd,
}

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

impl Entry {
    /// Opens a path. Follows symbolic links except at the last component.
    pub(super) fn open(path: &MountPath) -> Result<Self, Errno> {
        Self::open_in(open_directory(path.parent())?, path.name())
    }

    pub(super) fn open_in(parent: OwnedFd, name: &OsStr) -> Result<Self, Errno> {
        let entry = rustix::fs::openat(&parent, name, PATH | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { parent, entry })
    }

    /// The mount whose root the entry is. `None` if the entry is in the same mount as its directory.
    pub(super) fn mount(&self) -> Result<Option<MountId>, Errno> {
        let own = mount_of(self.entry.as_fd())?;
        Ok((own != mount_of(self.parent.as_fd())?).then_some(own))
    }

    /// The state of the entry. Queries the server of the file system, without the kernel's cache.
    pub(super) fn state(&self) -> Result<PathState, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        match rustix::fs::statx(&self.entry, "", flags, StatxFlags::TYPE | StatxFlags::SIZE) {
            Ok(found) => Ok(kind(&found)),
            Err(errno) if is_dead(errno) && self.mount()?.is_some() => {
                Ok(PathState::Dead { errno: errno.raw_os_error() })
            }
            Err(errno) => Err(errno),
        }
    }
}

/// The state of a path, and the mount at it.
pub(super) fn inspect(path: &MountPath) -> Result<Inspection, Errno> {
    let parent = match open_directory(path.parent()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(Inspection::of(PathState::Missing)),
        // A dead parent directory does not mean that the path is dead.
        Err(errno) => return Err(errno),
    };
    let at = real_path(&parent);
    match Entry::open_in(parent, path.name()) {
        Ok(entry) => {
            let mount = entry.mount()?;
            Ok(Inspection { state: entry.state()?, mount })
        }
        Err(Errno::NOENT) => Ok(Inspection::of(PathState::Missing)),
        // A share that its server no longer exports cannot be opened; the table shows whether the path is a mount point.
        Err(errno) if is_dead(errno) => {
            let table = read_table().map_err(|_| errno)?;
            let mount = table.at(&at?.join(path.name())).ok_or(errno)?.id;
            Ok(Inspection::mounted(PathState::Dead { errno: errno.raw_os_error() }, mount))
        }
        Err(errno) => Err(errno),
    }
}

/// The path of an open directory, without symbolic links, as in the mount table.
fn real_path(directory: &OwnedFd) -> Result<PathBuf, Errno> {
    std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).map_err(|error| number_of(&error))
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, PATH | OFlags::DIRECTORY, Mode::empty())
}

fn kind(found: &Statx) -> PathState {
    let device = DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor };
    match FileType::from_raw_mode(u32::from(found.stx_mode)) {
        FileType::Directory => PathState::Directory,
        FileType::RegularFile => PathState::RegularFile { size: found.stx_size },
        FileType::BlockDevice => PathState::BlockDevice(device),
        FileType::CharacterDevice => PathState::CharacterDevice(device),
        FileType::Symlink => PathState::Symlink,
        _ => PathState::Other,
    }
}

/// Whether an error means that the connection of a mount to its server has ended permanently. Other errors are temporary: a
/// driver may return EIO or ETIMEDOUT while its storage is unreachable, and the mount works again later.
fn is_dead(errno: Errno) -> bool {
    [Errno::NOTCONN, Errno::STALE, Errno::SHUTDOWN, Errno::CONNABORTED].contains(&errno)
}

/// Reads the mount id from `fdinfo`, which does not query the server, and works for dead mounts too.
fn mount_of(descriptor: BorrowedFd<'_>) -> Result<MountId, Errno> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))
        .map_err(|error| number_of(&error))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok()).map(MountId::new).ok_or(Errno::NOSYS)
}

fn number_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
