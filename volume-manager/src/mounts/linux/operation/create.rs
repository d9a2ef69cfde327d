//! Making directories and placeholders, step by step from descriptor to descriptor.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::super::{Created, Creation, CreationKind, Presence};
use super::super::entry::{Entry, open_directory};
use super::super::probe::Answer;

pub(super) fn create(creation: &Creation) -> Result<Answer, Errno> {
    // The process of a probe has no umask, so the mode is taken as it is.
    let mode = Mode::from_raw_mode(creation.mode);
    let parent = match open_directory(creation.path.parent()) {
        Err(Errno::NOENT) if creation.parents => make_directories(creation.path.parent(), mode)?,
        opened => opened?,
    };
    let name = creation.path.name();
    let made = match creation.kind {
        CreationKind::Directory => rustix::fs::mkdirat(&parent, name, mode),
        CreationKind::Placeholder => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&parent, name, flags, mode).map(drop)
        }
    };
    match made {
        Ok(()) => return Ok(Answer::Created(Created::Made)),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    match (Entry::open_in(parent, name)?.presence()?, creation.kind) {
        (Presence::Directory, CreationKind::Directory)
        | (Presence::RegularFile { size: 0 }, CreationKind::Placeholder) => {
            Ok(Answer::Created(Created::WasThere))
        }
        (found, _) => Ok(Answer::Occupied(found)),
    }
}

fn make_directories(path: &Path, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut at = open_directory(Path::new("/"))?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                rustix::fs::openat(&at, name, flags | OFlags::NOFOLLOW, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(at)
}
