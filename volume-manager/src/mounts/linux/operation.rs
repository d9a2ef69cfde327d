//! The operations of the probe process. Each of them may hang.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::super::{Inspection, MountPath, PathState, RemoveError, SafeRemoval};
use super::entry::{Entry, inspect, open_directory};
use super::probe::{Answer, Request};

/// Executes a request.
pub(super) fn execute(request: &Request) -> Answer {
    let outcome = match request {
        Request::Inspect(path) => inspect(path).map(Answer::State),
        Request::CreateDirectory(path) => create_directory(path),
        Request::Remove(removal) => remove(removal),
    };
    outcome.unwrap_or_else(|errno| Answer::Errno(errno.raw_os_error()))
}

/// The mode of kubelet's directories. A probe process has no umask.
const MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);

fn create_directory(path: &MountPath) -> Result<Answer, Errno> {
    let parent = match open_directory(path.parent()) {
        Err(Errno::NOENT) => make_directories(path.parent())?,
        opened => opened?,
    };
    let name = path.name();
    match rustix::fs::mkdirat(&parent, name, MODE) {
        Ok(()) => return Ok(Answer::Done),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    match Entry::open_in(parent, name)?.state()? {
        PathState::Directory => Ok(Answer::Done),
        found => Ok(Answer::State(Inspection::of(found))),
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

/// Removes an empty entry by the rules of [`SafeRemoval`].
fn remove(removal: &SafeRemoval) -> Result<Answer, Errno> {
    let path = removal.path();
    let opened = match Entry::open(path) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(Answer::State(Inspection::of(PathState::Missing))),
        Err(errno) => return Err(errno),
    };
    if opened.mount()?.is_some() {
        return Ok(Answer::Mounted);
    }
    let found = opened.state()?;
    if !SafeRemoval::is_removable(found) {
        return Ok(Answer::State(Inspection::of(found)));
    }
    let is_directory = found == PathState::Directory;
    if is_directory && let Some((count, first)) = entries(&opened)? {
        return Ok(Answer::NotEmpty { count, first });
    }
    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let Entry { parent, entry } = opened;
    drop(entry);
    unlink(&parent, path.name(), flags)
}

fn unlink(parent: &OwnedFd, name: &OsStr, flags: AtFlags) -> Result<Answer, Errno> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) => Ok(Answer::Done),
        Err(Errno::NOENT) => Ok(Answer::State(Inspection::of(PathState::Missing))),
        Err(Errno::BUSY) => Ok(Answer::Mounted),
        Err(errno) => Err(errno),
    }
}

/// Counts the entries of a directory, up to [`RemoveError::MAX_COUNTED`]. Returns the count and the first entry;
/// `None` if the directory is empty.
fn entries(directory: &Entry) -> Result<Option<(usize, OsString)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Opens it relative to the descriptor, since the name may refer to another directory by now.
    let directory = rustix::fs::openat(&directory.entry, ".", flags, Mode::empty())?;
    let (mut count, mut first) = (0, None);
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        count += 1;
        first.get_or_insert_with(|| name.to_owned());
        if count == RemoveError::MAX_COUNTED {
            break;
        }
    }
    Ok(first.map(|first| (count, first)))
}
