//! Making directories, step by step from descriptor to descriptor.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::super::{AbsolutePath, Presence};
use super::super::entry::{Entry, open_directory};
use super::super::probe::Answer;

/// As kubelet makes its directories. The process of a probe has no umask, so it is taken as it is.
const MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);

pub(super) fn create_directory(path: &AbsolutePath) -> Result<Answer, Errno> {
    let parent = match open_directory(path.parent()) {
        Err(Errno::NOENT) => make_directories(path.parent())?,
        opened => opened?,
    };
    let name = path.name();
    match rustix::fs::mkdirat(&parent, name, MODE) {
        Ok(()) => return Ok(Answer::Created),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    match Entry::open_in(parent, name)?.presence()? {
        Presence::Directory => Ok(Answer::Created),
        found => Ok(Answer::Occupied(found)),
    }
}

fn make_directories(path: &Path) -> Result<OwnedFd, Errno> {
    let mut at = open_directory(Path::new("/"))?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, name, MODE) {
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
